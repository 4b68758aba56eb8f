#include "discovery/resource_json.h"

#include <fmt/format.h>

#include "base/strings.h"

namespace penstock::discovery {

namespace {

using kubernetes::ReflectorState;
using kubernetes::Resource;

std::string begin_of(const Resource& resource) {
  return fmt::format(R"({{"resource":{},"version":{},"state":)",
                     json_quote(resource.plural.empty() ? resource.kind : resource.plural),
                     json_quote(kubernetes::api_version(resource)));
}

std::string end_of(std::string_view error) {
  return error.empty() ? "}" : fmt::format(R"(,"error":{}}})", json_quote(error));
}

std::string_view word_of(const ReflectorState& state) {
  if (!state.complete) return state.absent ? "absent" : "unknown";
  if (state.trouble_at != kNever) return "stale";
  return state.full ? "partial" : "followed";
}

}  // namespace

std::string resource_json(const Resource& resource, const std::optional<ReflectorState>& state) {
  std::string out = begin_of(resource);
  if (!state) return out + R"("unknown"})";
  const TimePoint now = SystemClock().now();
  out += fmt::format(R"("{}","objects":{})", word_of(*state), state->objects);
  if (state->bytes != 0) out += fmt::format(R"(,"bytes":{})", state->bytes);
  if (state->heard_at != kNever)
    out += fmt::format(R"(,"silent_s":{:.1f})", to_seconds(now - state->heard_at));
  if (state->trouble_at == kNever) return out + "}";
  out += fmt::format(R"(,"trouble_s":{:.1f},"reason":"{}")", to_seconds(now - state->trouble_at),
                     kubernetes::reason_name(state->reason));
  return out + end_of(state->message);
}

std::string resource_json(const OptionalKind& which, const std::optional<ReflectorState>& state) {
  const OptionalKind::State kind = which.state();
  if (state && kind.followed) return resource_json(*kind.followed, state);
  return begin_of(which.options().preferred) + (kind.absent ? "\"absent\"" : "\"unknown\"") +
         end_of(kind.trouble);
}

}  // namespace penstock::discovery
