#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cli/epp_flags.h"
#include "extproc/epp_runtime.h"

namespace penstock::cli {

// What `penstock epp` does.
struct EppPlan {
  extproc::EppOptions options;
  std::string admin_address;
  std::string metrics_certs;
  std::string metrics_client_ca;
  std::string log_level = "info";
  Duration drain_timeout{0};
  std::vector<std::string> warnings;
};

// Out of flags, the settings document that they name, and the environment (POD_NAME, NAMESPACE). Connects to
// nothing; a reload makes it again. `command` has parsed `flags`. Errors name the flag, or the document and
// its member.
Result<EppPlan> plan_of(const EppFlags& flags, const CLI::App& command);

}  // namespace penstock::cli
