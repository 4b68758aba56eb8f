#include "inference/notifications.h"

#include <algorithm>
#include <tuple>

namespace penstock {

void sort_objects(NotifiedObjects& objects) {
  std::sort(objects.begin(), objects.end(),
            [](const auto& a, const auto& b) { return std::tie(a->ns, a->name) < std::tie(b->ns, b->name); });
}

}  // namespace penstock
