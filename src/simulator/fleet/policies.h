#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::simulator {

// How a fleet's gateways choose: an EndpointPickerConfig as they would be started with.
struct FleetPolicy {
  std::string name;    // in reports
  std::string config;  // the document; empty: the built-in configuration
  std::string source;  // for messages: the file, or the name
  // Not a policy of Penstock but the yardstick of prefix studies: a hash of the prompt's first two pieces
  // names the one endpoint that the gateways may use.
  bool sticky = false;
};

struct BuiltinPolicy {
  std::string_view name;
  std::string_view summary;
};
std::vector<BuiltinPolicy> builtin_policies();

// `prefill_tokens_per_second`: of the fleet's engines, for the policies that reckon in milliseconds; 0: no
// time at all. Errors list the names.
Result<FleetPolicy> builtin_policy(std::string_view name, double prefill_tokens_per_second);
// The document in a file; the policy's name is the file's without its ending. Errors are
// config::load_config_text()'s.
Result<FleetPolicy> policy_from_file(const std::string& path);

}  // namespace penstock::simulator
