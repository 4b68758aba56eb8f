#include "assembly/pool_pages.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>

#include "base/strings.h"
#include "director/collected.h"

namespace penstock::assembly {

namespace {

// Not of the settings, which a reload replaces.
std::string full_name(PoolRuntime& pool) {
  return pool.pool().ns + "/" + pool.pool().name;
}

// Of now, RFC 3339 in UTC.
std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  return fmt::format("{}.{:09}Z", date.data(), nanos % 1'000'000'000);
}

// "plugins":{…}
void append_plugin_states(std::string& out, PoolRuntime& pool) {
  out += "\"plugins\":{";
  bool first = true;
  for (const auto& plugin : pool.policy()->plugins) {
    out += fmt::format("{}{}:{{\"name\":{},\"type\":{},", first ? "" : ",", json_quote(plugin->name()),
                       json_quote(plugin->name()), json_quote(plugin->type()));
    const auto state = pool.plugin_state(*plugin);
    out += state ? "\"state\":" + *state : "\"message\":\"plugin does not support state collection\"";
    out += '}';
    first = false;
  }
  out += '}';
}

}  // namespace

std::string readiness_list_json(Pools pools) {
  std::string out;
  for (size_t i = 0; i < pools.size(); ++i) {
    out += fmt::format("{}{{\"name\":{},\"endpoints\":{},\"scraped\":{},\"policy_epoch\":{}}}",
                       i == 0 ? "" : ",", json_quote(full_name(*pools[i])),
                       pools[i]->members().snapshot()->endpoints.size(), pools[i]->ready(),
                       pools[i]->policy()->epoch);
  }
  return out;
}

std::string decisions_json(Pools pools, size_t limit) {
  std::string out = "[";
  for (const auto& pool : pools) {
    std::string list = pool->pool().log.list_json(limit);
    if (list.size() <= 2) continue;
    if (out.size() > 1) out += ',';
    out.append(list, 1, list.rfind(']') - 1);
  }
  return out + "]\n";
}

std::optional<std::string> decision_json(Pools pools, std::string_view request_id) {
  for (const auto& pool : pools) {
    if (auto found = pool->pool().log.find_json(request_id)) return found;
  }
  return std::nullopt;
}

std::string plugin_states_json(Pools pools) {
  std::string out = "{\"timestamp\":" + json_quote(timestamp()) + ",\"pools\":{";
  for (size_t i = 0; i < pools.size(); ++i) {
    if (i > 0) out += ',';
    out += json_quote(full_name(*pools[i])) + ":{";
    append_plugin_states(out, *pools[i]);
    out += '}';
  }
  return out + "}}\n";
}

std::string picker_plugin_states_json(PoolRuntime& pool) {
  std::string out = "{\"timestamp\":" + json_quote(timestamp()) + ",";
  append_plugin_states(out, pool);
  return out + "}\n";
}

std::string endpoints_json(Pools pools, TimePoint now) {
  std::string out = "{\"pools\":{";
  for (size_t i = 0; i < pools.size(); ++i) {
    const director::Pool& pool = pools[i]->pool();
    out += fmt::format("{}{}:{{\"endpoints\":[", i == 0 ? "" : ",", json_quote(full_name(*pools[i])));
    for (const auto& endpoint : pools[i]->members().snapshot()->endpoints) {
      if (out.back() == '}') out += ',';
      const EndpointLive& live = *endpoint->live;
      out += fmt::format("{{\"endpoint\":{},\"address\":{},\"state\":{},\"in_flight\":{},",
                         json_quote(endpoint->id), json_quote(endpoint->host_port),
                         json_quote(director::endpoint_state_name(pool, *endpoint, now)),
                         EndpointLive::requests_of(live.load.load(std::memory_order_relaxed)));
      pool.health.append_json(out, *endpoint, now);
      if (const uint64_t others = EndpointLive::requests_of(live.others.load(std::memory_order_relaxed));
          others != 0) {
        out += fmt::format(",\"in_flight_of_others\":{}", others);
      }
      if (endpoint->draining) out += ",\"draining\":true";
      if (live.asleep.load(std::memory_order_relaxed)) out += ",\"asleep\":true";
      out += '}';
    }
    out += "]}";
  }
  return out + "}}\n";
}

std::string configuration_text(Pools pools) {
  std::string out;
  for (const auto& pool : pools) {
    const auto policy = pool->policy();
    out += fmt::format("pool {} (policy epoch {})\n{}\n", full_name(*pool), policy->epoch,
                       policy->effective_config);
    for (const std::string& warning : policy->warnings) out += "warning: " + warning + "\n";
  }
  return out;
}

}  // namespace penstock::assembly
