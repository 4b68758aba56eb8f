#include "base/source_path_testing.h"

namespace penstock {

std::string source_path(std::string_view relative) {
  return std::string(PENSTOCK_SOURCE_DIR) + "/" + std::string(relative);
}

}  // namespace penstock
