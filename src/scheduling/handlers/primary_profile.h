#pragma once

#include <string_view>

namespace penstock::scheduling {

// A profile handler that serves no request without the profile of this name: loading warns where it is not
// defined.
class PrimaryProfile {
 public:
  PrimaryProfile() = default;
  PrimaryProfile(const PrimaryProfile&) = delete;
  PrimaryProfile& operator=(const PrimaryProfile&) = delete;
  virtual ~PrimaryProfile() = default;
  virtual std::string_view primary_profile() const = 0;
};

}  // namespace penstock::scheduling
