#include "director/subset.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/strings.h"

namespace penstock::director {

SubsetEntry parse_subset_entry(std::string_view text) {
  text = trim(text);
  SubsetEntry out;
  const size_t colon = text.rfind(':');
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return {text, 0};
    out.address = text.substr(1, close - 1);
    if (close + 1 < text.size() && text[close + 1] == ':') port = text.substr(close + 2);
  } else if (colon == std::string_view::npos || text.find(':') != colon) {
    out.address = text;  // no port, or IPv6 without brackets
  } else {
    out.address = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  const std::optional<uint64_t> number = parse_u64(port);
  if (number && *number <= 65535) out.port = static_cast<uint16_t>(*number);
  return out;
}

std::span<const bool> allowed_by(std::span<const SubsetEntry> subset, const PoolSnapshot& pool,
                                 Arena& arena) {
  std::span<bool> allowed = arena.make_filled<bool>(pool.endpoints.size(), false);
  const auto key = [](const auto& of) { return std::pair(std::string_view(of.address), of.port); };
  const auto before = [&](const auto& a, const auto& b) { return key(a) < key(b); };
  std::span<SubsetEntry> entries = arena.make_span<SubsetEntry>(subset.size());
  std::uninitialized_copy(subset.begin(), subset.end(), entries.begin());
  std::sort(entries.begin(), entries.end(), before);
  const auto same = [&](const SubsetEntry& a, const SubsetEntry& b) { return key(a) == key(b); };
  entries =
      entries.first(static_cast<size_t>(std::unique(entries.begin(), entries.end(), same) - entries.begin()));

  // Endpoints that an entry means, and the entries that mean one.
  std::span<bool> exact = arena.make_filled<bool>(entries.size(), false);
  for (size_t c = 0; c < allowed.size(); ++c) {
    const Endpoint& endpoint = *pool.endpoints[c];
    if (endpoint.port == 0) continue;
    const auto found = std::lower_bound(entries.begin(), entries.end(), endpoint, before);
    if (found == entries.end() || key(*found) != key(endpoint)) continue;
    allowed[c] = true;
    exact[static_cast<size_t>(found - entries.begin())] = true;
  }
  // The first entry of each address knows whether all at that address are meant.
  std::span<bool> whole = arena.make_filled<bool>(entries.size(), false);
  bool any = false;
  for (size_t i = 0, first = 0; i < entries.size(); ++i) {
    if (entries[i].address != entries[first].address) first = i;
    if (exact[i]) continue;
    whole[first] = true;
    any = true;
  }
  for (size_t c = 0; any && c < allowed.size(); ++c) {
    const auto found = std::lower_bound(
        entries.begin(), entries.end(), pool.endpoints[c]->address,
        [](const SubsetEntry& entry, std::string_view address) { return entry.address < address; });
    if (found == entries.end() || found->address != pool.endpoints[c]->address) continue;
    if (whole[static_cast<size_t>(found - entries.begin())]) allowed[c] = true;
  }
  return allowed;
}

}  // namespace penstock::director
