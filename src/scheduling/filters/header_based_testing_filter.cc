#include "scheduling/filters/header_based_testing_filter.h"

#include <algorithm>

#include "base/strings.h"

namespace penstock::scheduling {

namespace {

struct Wanted {
  std::string_view address;
  std::string_view port;  // empty: any
};

Wanted parse(std::string_view entry) {
  if (entry.starts_with('[')) {
    const size_t close = entry.find(']');
    if (close == std::string_view::npos) return {entry, {}};
    const std::string_view rest = entry.substr(close + 1);
    return {entry.substr(1, close - 1), rest.starts_with(':') ? rest.substr(1) : std::string_view()};
  }
  const size_t colon = entry.rfind(':');
  if (colon == std::string_view::npos || entry.find(':') != colon) return {entry, {}};
  return {entry.substr(0, colon), entry.substr(colon + 1)};
}

}  // namespace

size_t HeaderBasedTestingFilter::filter(SchedulingContext& ctx, std::span<Candidate> inout) const {
  std::string_view rest = find_header(ctx.request.headers, "test-epp-endpoint-selection").value_or("");
  const std::span<Candidate> chosen = ctx.arena.make_span<Candidate>(inout.size());
  size_t count = 0;
  while (!rest.empty() && count < inout.size()) {
    const size_t comma = rest.find(',');
    const Wanted wanted = parse(trim(rest.substr(0, comma)));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (wanted.address.empty()) continue;
    const auto matches = [&](Candidate c) {
      const Endpoint& endpoint = *ctx.pool.endpoints[c];
      if (endpoint.address != wanted.address) return false;
      return wanted.port.empty() || parse_u64(wanted.port) == uint64_t{endpoint.port};
    };
    const auto found = std::find_if(inout.rbegin(), inout.rend(), matches);
    if (found == inout.rend()) continue;
    const auto same_address = [&](Candidate c) { return ctx.pool.endpoints[c]->address == wanted.address; };
    if (std::none_of(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(count), same_address))
      chosen[count++] = *found;
  }
  std::copy_n(chosen.begin(), count, inout.begin());
  return count;
}

}  // namespace penstock::scheduling
