#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "assembly/pool_runtime.h"

// What the admin pages say of a process's pools. Any thread.
namespace penstock::assembly {

using Pools = std::span<const std::shared_ptr<PoolRuntime>>;

// Members of "pools" of /readyz: name, endpoints, scraped, policy_epoch.
std::string readiness_list_json(Pools pools);
std::string decisions_json(Pools pools, size_t limit);
std::optional<std::string> decision_json(Pools pools, std::string_view request_id);
// {"timestamp","pools":{"<namespace>/<name>":{"plugins":{"<name>":{"name","type","state" or "message"}}}}}.
std::string plugin_states_json(Pools pools);
// The same of a process with one pool, in the shape of llm-d-router's picker: {"timestamp","plugins":{…}}.
std::string picker_plugin_states_json(PoolRuntime& pool);
// {"pools":{"<namespace>/<name>":{"endpoints":[{"endpoint","address","state","health",…}]}}}: state as
// director::endpoint_state_name() says, "draining" and "asleep" where they hold, the rest as
// director::EndpointHealth::append_json() says, "in_flight" requests, and "in_flight_of_others" where other
// replicas told of some.
std::string endpoints_json(Pools pools, TimePoint now);
std::string configuration_text(Pools pools);

}  // namespace penstock::assembly
