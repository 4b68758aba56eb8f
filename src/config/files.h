#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::config {

// The whole file. Errors are kIo with path and reason; kInvalidConfig when larger than `max_bytes`.
Result<std::string> read_file(const std::string& path, size_t max_bytes);
// The text of an EndpointPickerConfig; the error begins as the reference's and has the reason.
Result<std::string> load_config_text(const std::string& path);
// `path` itself when absolute or empty, else below `folder` ("" : the working directory).
std::string resolve_path(const std::string& folder, const std::string& path);
// The folder a file is in, "" for none.
std::string folder_of(const std::string& path);

}  // namespace penstock::config
