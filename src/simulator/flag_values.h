#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/node.h"
#include "config/params.h"

namespace penstock::simulator {

// Flags as (name without dashes, value), as the command line gave them.
using FlagValues = std::span<const std::pair<std::string, std::string>>;

// The map that config::decode_params() takes, made from flags whose types `docs` tells: a name may repeat
// where its type is a list; of others the last one counts. Booleans take "true" and "false". Errors name
// flag and value; only texts may be empty.
Result<config::Node> node_of_flags(FlagValues flags, const std::vector<config::ParamDoc>& docs);

// For a bind() function: fails with "<value> is not between <low> and <high>". Both ends are allowed, NaN is
// not.
void within(config::Binder& b, std::string_view name, int64_t value, int64_t low, int64_t high);
void within(config::Binder& b, std::string_view name, double value, double low, double high);
void within(config::Binder& b, std::string_view name, Duration value, Duration low, Duration high);

// An Options struct with a function bind(config::Binder&, Options&), as documentation and from flags.
template <typename Options>
std::vector<config::ParamDoc> flag_docs() {
  Options options;
  return config::describe_params([&](config::Binder& b) { bind(b, options); });
}
template <typename Options>
Result<Options> parse_flags(FlagValues flags, std::string_view command) {
  Result<config::Node> node = node_of_flags(flags, flag_docs<Options>());
  if (!node.ok()) return std::move(node).error();
  Options options;
  Status decoded = config::decode_params(
      &*node, "", [&](config::Binder& b) { bind(b, options); }, config::Binder::Case::kSensitive);
  if (!decoded.ok()) return decoded.error().wrap(command);
  return options;
}

}  // namespace penstock::simulator
