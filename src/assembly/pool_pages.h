#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "assembly/pool_runtime.h"

// What the admin pages say of a process's pools. Any thread.
namespace penstock::assembly {

using Pools = std::span<const std::unique_ptr<PoolRuntime>>;

// Members of "pools" of /readyz: name, endpoints, scraped, policy_epoch.
std::string readiness_list_json(Pools pools);
std::string decisions_json(Pools pools, size_t limit);
std::optional<std::string> decision_json(Pools pools, std::string_view request_id);
std::string plugin_states_json(Pools pools);
std::string configuration_text(Pools pools);

}  // namespace penstock::assembly
