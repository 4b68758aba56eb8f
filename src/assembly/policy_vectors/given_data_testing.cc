#include "assembly/policy_vectors/given_data_testing.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "inference/data_key.h"

namespace penstock::assembly::vectors {

namespace {

// The kinds of data that vectors may give and look at.
enum class Kind : uint8_t {
  kPrefixMatch,
  kInFlightLoad,
  kUncached,
  kMultiModal,
  kLatency,
  kTopology,
  kSession,
  kPeer,
  kCacheSource,
  kNumber
};

DataKey key_of(const std::string& text) {
  const size_t slash = text.rfind('/');
  return {text.substr(0, slash), slash == std::string::npos ? "" : text.substr(slash + 1)};
}

Kind kind_of(const std::string& text) {
  static const std::map<std::string, Kind> kKinds{
      {data_keys::kPrefixMatch.data_type, Kind::kPrefixMatch},
      {data_keys::kInFlightLoad.data_type, Kind::kInFlightLoad},
      {data_keys::kUncachedRequestTokens.data_type, Kind::kUncached},
      {data_keys::kMultiModalMatch.data_type, Kind::kMultiModal},
      {data_keys::kLatencyPrediction.data_type, Kind::kLatency},
      {data_keys::kTopology.data_type, Kind::kTopology},
      {data_keys::kSessionId.data_type, Kind::kSession},
      {data_keys::kPeerEndpoint.data_type, Kind::kPeer},
      {data_keys::kCacheSource.data_type, Kind::kCacheSource}};
  const auto found = kKinds.find(key_of(text).data_type);
  return found == kKinds.end() ? Kind::kNumber : found->second;
}

// Calls fn with a value of the type that data of this kind has.
template <typename Fn>
void with_type(Kind kind, Fn&& fn) {
  switch (kind) {
    case Kind::kPrefixMatch:
      return fn(PrefixMatch{});
    case Kind::kInFlightLoad:
      return fn(InFlightLoad{});
    case Kind::kUncached:
      return fn(UncachedTokens{});
    case Kind::kMultiModal:
      return fn(MultiModalMatch{});
    case Kind::kLatency:
      return fn(LatencyPrediction{});
    case Kind::kTopology:
      return fn(Topology{});
    case Kind::kSession:
      return fn(SessionId{});
    case Kind::kPeer:
      return fn(PeerEndpoint{});
    case Kind::kCacheSource:
      return fn(CacheSource{});
    case Kind::kNumber:
      return fn(EndpointScalar{});
  }
}
bool is_of_the_request(Kind kind) {
  return kind == Kind::kSession || kind == Kind::kPeer || kind == Kind::kCacheSource;
}

// A count in a field of any integer type.
template <typename T>
void count(Binder& b, std::string_view name, T& out) {
  int64_t wide = out;
  b.field(name, wide, "", "");
  out = static_cast<T>(wide);
}

void fill(const Node& node, const std::string& path, PrefixMatch& out) {
  out.cached_blocks = std::numeric_limits<uint32_t>::max();
  expect_decoded(node, path, [&](Binder& b) {
    count(b, "matchBlocks", out.match_blocks);
    count(b, "totalBlocks", out.total_blocks);
    count(b, "blockSizeTokens", out.block_size_tokens);
    count(b, "cachedBlocks", out.cached_blocks);
    count(b, "cpuTierBlocks", out.cpu_tier_blocks);
  });
  if (out.cached_blocks == std::numeric_limits<uint32_t>::max()) out.cached_blocks = out.match_blocks;
}
void fill(const Node& node, const std::string& path, InFlightLoad& out) {
  expect_decoded(node, path, [&](Binder& b) {
    count(b, "requests", out.requests);
    count(b, "tokens", out.tokens);
  });
}
void fill(const Node& node, const std::string& path, UncachedTokens& out) {
  expect_decoded(node, path, [&](Binder& b) { count(b, "tokens", out.tokens); });
}
void fill(const Node& node, const std::string& path, MultiModalMatch& out) {
  expect_decoded(node, path, [&](Binder& b) {
    count(b, "matchedItems", out.matched_items);
    count(b, "requestItems", out.request_items);
  });
}
void fill(const Node& node, const std::string& path, LatencyPrediction& out) {
  out.known = out.ttft_known = out.tpot_known = true;
  std::optional<bool> ttft_valid;
  std::optional<bool> tpot_valid;
  expect_decoded(node, path, [&](Binder& b) {
    b.field("ttft", out.ttft_ms, "", "");
    b.field("tpot", out.tpot_ms, "", "");
    b.field("ttftError", out.ttft_error_ms, "", "");
    b.field("tpotError", out.tpot_error_ms, "", "");
    b.field("prefillMsPerToken", out.prefill_ms_per_token, "", "");
    b.field("ttftHeadroom", out.ttft_headroom_ms, "", "");
    b.field("tpotHeadroom", out.tpot_headroom_ms, "", "");
    b.field("ttftValid", ttft_valid, "", "");
    b.field("tpotValid", tpot_valid, "", "");
    count(b, "dispatchedRequests", out.dispatched_requests);
  });
  out.ttft_valid = ttft_valid.value_or(out.ttft_headroom_ms >= 0);
  out.tpot_valid = tpot_valid.value_or(out.tpot_headroom_ms >= 0);
}
// Texts of the case's own nodes: they outlive the request.
void fill(const Node& node, const std::string& path, Topology& out) {
  for (const auto& [key, value] : node.members) {
    if (key == "hostname") {
      out.hostname = value.text;
    } else if (key == "rack") {
      out.rack = value.text;
    } else if (key == "zone") {
      out.zone = value.text;
    } else if (key == "region") {
      out.region = value.text;
    } else {
      ADD_FAILURE() << path << ": unknown field " << key;
    }
  }
}
void fill(const Node& node, const std::string& path, EndpointScalar& out) {
  const std::optional<double> value = number_of(node);
  EXPECT_TRUE(value) << path << ": expected a number";
  out.known = value.has_value();
  out.value = value.value_or(0);
}

Fields fields_of(const DataBook&, const PrefixMatch& v) {
  return {{"matchBlocks", static_cast<double>(v.match_blocks)},
          {"totalBlocks", static_cast<double>(v.total_blocks)},
          {"blockSizeTokens", static_cast<double>(v.block_size_tokens)},
          {"cachedBlocks", static_cast<double>(v.cached_blocks)}};
}
Fields fields_of(const DataBook&, const InFlightLoad& v) {
  return {{"requests", static_cast<double>(v.requests)}, {"tokens", static_cast<double>(v.tokens)}};
}
Fields fields_of(const DataBook&, const UncachedTokens& v) {
  return {{"tokens", static_cast<double>(v.tokens)}};
}
Fields fields_of(const DataBook&, const MultiModalMatch& v) {
  return {{"matchedItems", static_cast<double>(v.matched_items)},
          {"requestItems", static_cast<double>(v.request_items)}};
}
Fields fields_of(const DataBook&, const LatencyPrediction& v) {
  if (!v.known) return {};
  return {{"ttft", v.ttft_ms},
          {"tpot", v.tpot_ms},
          {"ttftError", v.ttft_error_ms},
          {"tpotError", v.tpot_error_ms},
          {"ttftHeadroom", v.ttft_headroom_ms},
          {"tpotHeadroom", v.tpot_headroom_ms},
          {"ttftValid", v.ttft_valid ? 1.0 : 0.0},
          {"tpotValid", v.tpot_valid ? 1.0 : 0.0},
          {"dispatchedRequests", static_cast<double>(v.dispatched_requests)}};
}
Fields fields_of(const DataBook&, const Topology& v) {
  return {{"hostname", std::string(v.hostname)},
          {"rack", std::string(v.rack)},
          {"zone", std::string(v.zone)},
          {"region", std::string(v.region)}};
}
Fields fields_of(const DataBook&, const EndpointScalar& v) {
  return v.known ? Fields{{"", v.value}} : Fields{};
}
Fields fields_of(const DataBook&, const SessionId& v) {
  return {{"", std::string(v.text)}};
}
Fields fields_of(const DataBook& book, const PeerEndpoint& v) {
  return {{"", book.name_of(v.endpoint)}};
}
Fields fields_of(const DataBook& book, const CacheSource& v) {
  return {{"endpoint", book.name_of(v.endpoint)}, {"cachedTokens", static_cast<double>(v.cached_tokens)}};
}

class GivenData final : public DataProducer, public PreRequest {
 public:
  explicit GivenData(DataBook& book) : book_(book) {}
  void declare_data(DataDeclaration& data) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult&) const override;

 private:
  DataBook& book_;
  std::map<std::string, AttributeSlot> slots_;
};

void GivenData::declare_data(DataDeclaration& data) const {
  for (const auto& [key, values] : book_.given)
    with_type(kind_of(key), [&](auto value) { data.produce<decltype(value)>(key_of(key)); });
  for (const std::string& key : book_.watched)
    with_type(kind_of(key), [&](auto value) { data.optional<decltype(value)>(key_of(key)); });
}

void GivenData::bind_slots(const SlotResolver& slots) {
  for (const auto& [key, values] : book_.given) slots_[key] = slots.slot(key_of(key));
  for (const std::string& key : book_.watched) slots_[key] = slots.slot(key_of(key));
}

Status GivenData::produce(SchedulingContext& ctx) const {
  for (const auto& [key, node] : book_.given) {
    const AttributeSlot slot = slots_.at(key);
    const Kind kind = kind_of(key);
    if (kind == Kind::kSession) {
      ctx.attributes.create_value<SessionId>(slot)->text = node.text;
    } else if (kind == Kind::kPeer) {
      ctx.attributes.create_value<PeerEndpoint>(slot)->endpoint = book_.candidate(node.text);
    } else {
      with_type(kind, [&, &values = node.members](auto type) {
        using T = decltype(type);
        if constexpr (!std::is_same_v<T, SessionId> && !std::is_same_v<T, PeerEndpoint> &&
                      !std::is_same_v<T, CacheSource>) {
          auto column = ctx.attributes.create<T>(slot);
          for (const auto& [name, value] : values)
            fill(value, "given." + name, column[book_.candidate(name)]);
        }
      });
    }
  }
  return {};
}

Status GivenData::pre_request(SchedulingContext& ctx, const SchedulingResult&) const {
  for (const std::string& key : book_.watched) {
    const Kind kind = kind_of(key);
    auto& seen = book_.published[key];
    seen.clear();
    with_type(kind, [&](auto type) {
      using T = decltype(type);
      if (is_of_the_request(kind)) {
        if (const T* value = ctx.attributes.value<T>(slots_.at(key))) seen[""] = fields_of(book_, *value);
        return;
      }
      const auto column = ctx.attributes.column<T>(slots_.at(key));
      for (Candidate c = 0; c < column.size(); ++c) {
        if (Fields fields = fields_of(book_, column[c]); !fields.empty())
          seen[book_.name_of(c)] = std::move(fields);
      }
    });
  }
  return {};
}

}  // namespace

DataBook::DataBook(const Case& vector) : given(vector.given) {
  for (const Step& step : vector.steps) {
    if (!step.expect) continue;
    for (const auto& [key, value] : step.expect->data) watched.insert(key);
  }
  for (const auto& [key, value] : given) watched.erase(key);
}

Candidate DataBook::candidate(const std::string& name) const {
  for (Candidate c = 0; c < pool->endpoints.size(); ++c) {
    if (pool->endpoints[c]->name == name) return c;
  }
  ADD_FAILURE() << "there is no endpoint " << name;
  return 0;
}

void DataBook::check(const std::map<std::string, Node>& expected) const {
  const auto check_one = [&](const std::string& key, const std::string& endpoint, const Node& wanted) {
    SCOPED_TRACE(key + (endpoint.empty() ? "" : " of " + endpoint));
    const auto all = published.find(key);
    const Fields* found = nullptr;
    if (all != published.end()) {
      if (const auto of = all->second.find(endpoint); of != all->second.end()) found = &of->second;
    }
    if (wanted.is_null()) {
      EXPECT_EQ(found, nullptr) << "is published";
      return;
    }
    ASSERT_NE(found, nullptr) << "is not published";
    const auto check_field = [&](const std::string& field, const Node& value) {
      const auto seen = found->find(field);
      ASSERT_TRUE(seen != found->end()) << "there is no field '" << field << "'";
      if (const auto* text = std::get_if<std::string>(&seen->second)) {
        EXPECT_EQ(*text, value.text) << field;
      } else if (value.kind == Node::Kind::kBool) {
        EXPECT_EQ(std::get<double>(seen->second), value.boolean ? 1 : 0) << field;
      } else if (value.is_map()) {
        double about = 0;
        double within = 0;
        expect_decoded(value, key + "." + field, [&](Binder& b) {
          b.field("about", about, "", "");
          b.field("within", within, "", "");
        });
        EXPECT_NEAR(std::get<double>(seen->second), about, within) << field;
      } else {
        const std::optional<double> number = number_of(value);
        ASSERT_TRUE(number) << field;
        EXPECT_NEAR(std::get<double>(seen->second), *number, kTolerance) << field;
      }
    };
    if (!wanted.is_map()) return check_field("", wanted);
    for (const auto& [field, value] : wanted.members) check_field(field, value);
  };
  for (const auto& [key, wanted] : expected) {
    if (is_of_the_request(kind_of(key))) {
      check_one(key, "", wanted);
      continue;
    }
    for (const auto& [endpoint, value] : wanted.members) check_one(key, endpoint, value);
  }
}

std::unique_ptr<Plugin> make_given_data(DataBook& book) {
  return std::make_unique<GivenData>(book);
}

}  // namespace penstock::assembly::vectors
