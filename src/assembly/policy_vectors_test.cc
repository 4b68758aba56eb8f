// Runs the policy conformance vectors: each case's configuration goes through the loader, its requests
// through a director, and what was decided is held against the file. Nothing here computes a score.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <variant>

#include "assembly/assembly.h"
#include "assembly/known_types.h"
#include "assembly/policy_vectors_test_support.h"
#include "base/hash.h"
#include "director/director.h"
#include "director/observer.h"
#include "protocol/errors.h"
#include "telemetry/metrics.h"

namespace penstock::assembly::vectors {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kTolerance = 1e-6;

const std::filesystem::path& folder() {
  static const std::filesystem::path path =
      std::filesystem::path(PENSTOCK_SOURCE_DIR) / "tests/vectors/policies";
  return path;
}

// What a piece of data says, by field: "" where it is one value. Texts and numbers.
using Fields = std::map<std::string, std::variant<double, std::string>>;

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

class Bench;

// Stands in for the producers that a case does without: publishes what the case gives, and notes what other
// producers published for the request.
class GivenData final : public DataProducer, public PreRequest {
 public:
  explicit GivenData(Bench& bench) : bench_(bench) {}
  void declare_data(DataDeclaration& data) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  Status pre_request(SchedulingContext& ctx, const SchedulingResult&) const override;

 private:
  Bench& bench_;
  std::map<std::string, AttributeSlot> slots_;
};

// One case at work: the pool as its steps leave it, the policy and a director.
class Bench final : public director::PictureSource {
 public:
  explicit Bench(const Case& vector) : case_(vector) {
    for (const Step& step : case_.steps) {
      if (!step.expect) continue;
      for (const auto& [key, value] : step.expect->data) watched.insert(key);
    }
    for (const auto& [key, value] : case_.given) watched.erase(key);
  }

  void run() {
    SCOPED_TRACE(fmt::format("{}.yaml, case '{}', line {}", case_.file, case_.name, case_.line));
    if (!load()) return;
    for (const Step& step : case_.steps) {
      SCOPED_TRACE(fmt::format("{}.yaml, line {}", case_.file, step.line));
      for (int i = 0; i < step.repeat; ++i) one_step(step);
    }
  }

  const director::Picture& refresh(TimePoint) override { return picture_; }

  const Case& vector() const { return case_; }
  std::set<std::string> watched;                                   // keys of others that some step expects
  std::map<std::string, std::map<std::string, Fields>> published;  // by key, then endpoint ("": the request)

  Candidate candidate(const std::string& name) const {
    for (Candidate c = 0; c < picture_.pool->endpoints.size(); ++c) {
      if (picture_.pool->endpoints[c]->name == name) return c;
    }
    ADD_FAILURE() << "there is no endpoint " << name;
    return 0;
  }
  std::string name_of(Candidate c) const { return picture_.pool->endpoints[c]->name; }

 private:
  bool load();
  void check_refusal(const std::string& message) const;
  void one_step(const Step& step);
  void set_pool(const std::vector<NamedEndpoint>& endpoints);
  std::shared_ptr<Endpoint> make_endpoint(const NamedEndpoint& input);
  void set_signals(const std::vector<NamedEndpoint>& endpoints);
  void answer(const Step& step, director::Request& request, director::Observer& observer);
  void check(const Step& step, const Status& status, const director::Request& request);
  void check_profiles(const Expectation& expect, const director::Request& request);
  void check_data(const Expectation& expect);
  void check_load(const std::map<std::string, Numbers>& expected, std::string_view when);
  void check_draws(const Step& step, const director::RequestInput& input);
  std::string name_of_id(std::string_view id) const {
    for (const auto& endpoint : picture_.pool->endpoints) {
      if (endpoint->id == id) return endpoint->name;
    }
    return std::string(id);
  }

  const Case& case_;
  ManualClock clock_;
  telemetry::MetricRegistry registry_;
  director::RequestMetrics metrics_{registry_};
  director::Pool pool_{"pool", "default", metrics_, {1, 16}};
  std::unique_ptr<director::Director> director_;
  std::shared_ptr<const director::Policy> policy_;
  director::Picture picture_;
  SignalView signals_;
  uint64_t epoch_ = 0;
  struct Member {
    std::shared_ptr<EndpointLive> live;
    EndpointSlot slot;
  };
  std::map<std::string, Member> members_;
  EndpointSlot next_slot_ = 0;
  uint64_t seed_ = 0;
  struct Held {
    director::Request request;
    director::Observer observer;
  };
  std::vector<std::unique_ptr<Held>> held_;
};

Bench* current_bench = nullptr;

Result<std::unique_ptr<Plugin>> make_given(const PluginFactoryContext&) {
  return std::unique_ptr<Plugin>(std::make_unique<GivenData>(*current_bench));
}

void GivenData::declare_data(DataDeclaration& data) const {
  for (const auto& [key, values] : bench_.vector().given)
    with_type(kind_of(key), [&](auto value) { data.produce<decltype(value)>(key_of(key)); });
  for (const std::string& key : bench_.watched)
    with_type(kind_of(key), [&](auto value) { data.optional<decltype(value)>(key_of(key)); });
}

void GivenData::bind_slots(const SlotResolver& slots) {
  for (const auto& [key, values] : bench_.vector().given) slots_[key] = slots.slot(key_of(key));
  for (const std::string& key : bench_.watched) slots_[key] = slots.slot(key_of(key));
}

// Strict, like everything in a vector file.
template <typename Bind>
void decode(const Node& node, const std::string& path, Bind&& bind) {
  const Status status = config::decode_params(&node, path, bind, Binder::Case::kSensitive);
  EXPECT_TRUE(status.ok()) << status.error().message;
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
  decode(node, path, [&](Binder& b) {
    count(b, "matchBlocks", out.match_blocks);
    count(b, "totalBlocks", out.total_blocks);
    count(b, "blockSizeTokens", out.block_size_tokens);
    count(b, "cachedBlocks", out.cached_blocks);
    count(b, "cpuTierBlocks", out.cpu_tier_blocks);
  });
  if (out.cached_blocks == std::numeric_limits<uint32_t>::max()) out.cached_blocks = out.match_blocks;
}
void fill(const Node& node, const std::string& path, InFlightLoad& out) {
  decode(node, path, [&](Binder& b) {
    count(b, "requests", out.requests);
    count(b, "tokens", out.tokens);
  });
}
void fill(const Node& node, const std::string& path, UncachedTokens& out) {
  decode(node, path, [&](Binder& b) { count(b, "tokens", out.tokens); });
}
void fill(const Node& node, const std::string& path, MultiModalMatch& out) {
  decode(node, path, [&](Binder& b) {
    count(b, "matchedItems", out.matched_items);
    count(b, "requestItems", out.request_items);
  });
}
void fill(const Node& node, const std::string& path, LatencyPrediction& out) {
  out.known = out.ttft_known = out.tpot_known = true;
  std::optional<bool> ttft_valid;
  std::optional<bool> tpot_valid;
  decode(node, path, [&](Binder& b) {
    b.field("ttft", out.ttft_ms, "", "");
    b.field("tpot", out.tpot_ms, "", "");
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
  const std::optional<double> value = Decoder::number(node);
  EXPECT_TRUE(value) << path << ": expected a number";
  out.known = value.has_value();
  out.value = value.value_or(0);
}

Fields fields_of(const Bench&, const PrefixMatch& v) {
  return {{"matchBlocks", static_cast<double>(v.match_blocks)},
          {"totalBlocks", static_cast<double>(v.total_blocks)},
          {"blockSizeTokens", static_cast<double>(v.block_size_tokens)},
          {"cachedBlocks", static_cast<double>(v.cached_blocks)}};
}
Fields fields_of(const Bench&, const InFlightLoad& v) {
  return {{"requests", static_cast<double>(v.requests)}, {"tokens", static_cast<double>(v.tokens)}};
}
Fields fields_of(const Bench&, const UncachedTokens& v) {
  return {{"tokens", static_cast<double>(v.tokens)}};
}
Fields fields_of(const Bench&, const MultiModalMatch& v) {
  return {{"matchedItems", static_cast<double>(v.matched_items)},
          {"requestItems", static_cast<double>(v.request_items)}};
}
Fields fields_of(const Bench&, const LatencyPrediction& v) {
  if (!v.known) return {};
  return {{"ttft", v.ttft_ms},
          {"tpot", v.tpot_ms},
          {"ttftHeadroom", v.ttft_headroom_ms},
          {"tpotHeadroom", v.tpot_headroom_ms},
          {"ttftValid", v.ttft_valid ? 1.0 : 0.0},
          {"tpotValid", v.tpot_valid ? 1.0 : 0.0},
          {"dispatchedRequests", static_cast<double>(v.dispatched_requests)}};
}
Fields fields_of(const Bench&, const Topology& v) {
  return {{"hostname", std::string(v.hostname)},
          {"rack", std::string(v.rack)},
          {"zone", std::string(v.zone)},
          {"region", std::string(v.region)}};
}
Fields fields_of(const Bench&, const EndpointScalar& v) {
  return v.known ? Fields{{"", v.value}} : Fields{};
}
Fields fields_of(const Bench&, const SessionId& v) {
  return {{"", std::string(v.text)}};
}
Fields fields_of(const Bench& bench, const PeerEndpoint& v) {
  return {{"", bench.name_of(v.endpoint)}};
}
Fields fields_of(const Bench& bench, const CacheSource& v) {
  return {{"endpoint", bench.name_of(v.endpoint)}, {"cachedTokens", static_cast<double>(v.cached_tokens)}};
}

Status GivenData::produce(SchedulingContext& ctx) const {
  for (const auto& [key, node] : bench_.vector().given) {
    const AttributeSlot slot = slots_.at(key);
    const Kind kind = kind_of(key);
    if (kind == Kind::kSession) {
      ctx.attributes.create_value<SessionId>(slot)->text = node.text;
    } else if (kind == Kind::kPeer) {
      ctx.attributes.create_value<PeerEndpoint>(slot)->endpoint = bench_.candidate(node.text);
    } else {
      with_type(kind, [&, &values = node.members](auto type) {
        using T = decltype(type);
        if constexpr (!std::is_same_v<T, SessionId> && !std::is_same_v<T, PeerEndpoint> &&
                      !std::is_same_v<T, CacheSource>) {
          auto column = ctx.attributes.create<T>(slot);
          for (const auto& [name, value] : values)
            fill(value, "given." + name, column[bench_.candidate(name)]);
        }
      });
    }
  }
  return {};
}

Status GivenData::pre_request(SchedulingContext& ctx, const SchedulingResult&) const {
  for (const std::string& key : bench_.watched) {
    const Kind kind = kind_of(key);
    auto& seen = bench_.published[key];
    seen.clear();
    with_type(kind, [&](auto type) {
      using T = decltype(type);
      if (is_of_the_request(kind)) {
        if (const T* value = ctx.attributes.value<T>(slots_.at(key))) seen[""] = fields_of(bench_, *value);
        return;
      }
      const auto column = ctx.attributes.column<T>(slots_.at(key));
      for (Candidate c = 0; c < column.size(); ++c) {
        if (Fields fields = fields_of(bench_, column[c]); !fields.empty())
          seen[bench_.name_of(c)] = std::move(fields);
      }
    });
  }
  return {};
}

bool Bench::load() {
  static const PluginDescriptor kGiven[] = {{.type = "given-data",
                                             .stability = Stability::kBeta,
                                             .summary = "The data that a vector gives.",
                                             .create = &make_given}};
  std::vector<std::span<const PluginDescriptor>> tables(builtin_tables().begin(), builtin_tables().end());
  tables.emplace_back(kGiven);
  AssemblyOptions options{.tables = tables, .metrics = registry_, .clock = clock_};
  options.allow_experimental = true;

  Result<Assembly> made = Error{};
  if (!case_.configuration) {
    EXPECT_TRUE(case_.given.empty()) << "the built-in configuration has no place for given data";
    made = assemble("", "built-in", options);
  } else {
    const auto text = [](std::string_view value) {
      Node node;
      node.kind = Node::Kind::kString;
      node.text = std::string(value);
      return node;
    };
    Node document = *case_.configuration;
    document.kind = Node::Kind::kMap;
    document.members.push_back({"apiVersion", text("llm-d.ai/v1alpha1")});
    document.members.push_back({"kind", text("EndpointPickerConfig")});
    if (!case_.given.empty() || !watched.empty()) {
      Node plugin;
      plugin.kind = Node::Kind::kMap;
      plugin.members.push_back({"type", text("given-data")});
      Node* plugins = nullptr;
      for (auto& member : document.members) {
        if (member.first == "plugins") plugins = &member.second;
      }
      if (plugins == nullptr) {
        ADD_FAILURE() << "data are given, but the configuration has no plugins";
        return false;
      }
      plugins->items.push_back(plugin);
    }
    current_bench = this;
    made = assemble(document, options);
  }
  if (case_.refused_config) {
    if (made.ok()) {
      ADD_FAILURE() << "the configuration loads";
    } else {
      check_refusal(made.error().message);
    }
    return false;
  }
  if (!made.ok()) {
    ADD_FAILURE() << made.error().message;
    return false;
  }
  for (const std::string& warning : case_.warnings)
    EXPECT_THAT(made->policy->warnings, testing::Contains(HasSubstr(warning)));
  policy_ = std::move(made->policy);
  pool_.policy.publish(policy_);

  class Borrowed final : public director::PictureSource {
   public:
    explicit Borrowed(Bench& bench) : bench_(bench) {}
    const director::Picture& refresh(TimePoint now) override { return bench_.refresh(now); }

   private:
    Bench& bench_;
  };
  director_ = std::make_unique<director::Director>(pool_, std::make_unique<Borrowed>(*this), clock_,
                                                   director::Director::Options{0, 1});
  return true;
}

// The error has the text and says where in this very case, once.
void Bench::check_refusal(const std::string& message) const {
  EXPECT_THAT(message, HasSubstr(*case_.refused_config));
  const size_t at = message.find("(line ");
  ASSERT_NE(at, std::string::npos) << message;
  EXPECT_GE(std::stoi(message.substr(at + 6)), case_.line) << message;
  EXPECT_EQ(message.find(") (line ", at), std::string::npos) << message;
}

std::shared_ptr<Endpoint> Bench::make_endpoint(const NamedEndpoint& input) {
  auto found = members_.find(input.name);
  if (found == members_.end()) {
    found = members_.emplace(input.name, Member{std::make_shared<EndpointLive>(), next_slot_++}).first;
    found->second.live->load = EndpointLive::pack(static_cast<uint64_t>(input.input.requests_in_flight),
                                                  static_cast<uint64_t>(input.input.tokens_in_flight));
    for (int64_t n = 0; n < input.input.sent_since; ++n) found->second.live->unseen.add();
  }
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->slot = found->second.slot;
  endpoint->live = found->second.live;
  endpoint->ns = input.input.ns;
  endpoint->name = input.name;
  endpoint->id = input.input.ns + "/" + input.name;
  endpoint->address = input.input.address;
  endpoint->port = static_cast<uint16_t>(input.input.port);
  endpoint->host_port = endpoint->host_port_at(endpoint->port);
  endpoint->metrics_host = endpoint->host_port;
  endpoint->labels = {input.input.labels.begin(), input.input.labels.end()};
  endpoint->draining = input.input.draining;
  return endpoint;
}

void Bench::set_pool(const std::vector<NamedEndpoint>& endpoints) {
  auto pool = std::make_shared<PoolSnapshot>();
  pool->pool_name = "pool";
  pool->pool_namespace = "default";
  pool->epoch = ++epoch_;
  for (const NamedEndpoint& endpoint : endpoints) pool->endpoints.push_back(make_endpoint(endpoint));
  if (picture_.pool != nullptr) {
    for (const auto& former : picture_.pool->endpoints) {
      const bool stays = std::any_of(pool->endpoints.begin(), pool->endpoints.end(),
                                     [&](const auto& other) { return other->slot == former->slot; });
      if (stays) continue;
      for (const EndpointObserver* observer : policy_->endpoint_observers)
        observer->endpoint_removed(*former);
      members_.erase(former->name);
    }
  }
  picture_.pool = std::move(pool);
  set_signals(endpoints);
  picture_.signals = &signals_;
}

void Bench::set_signals(const std::vector<NamedEndpoint>& endpoints) {
  signals_.resize(endpoints.size());
  signals_.epoch = epoch_;
  const auto sorted_hashes = [](const std::vector<std::string>& names, auto& out, uint16_t& size) {
    std::set<uint64_t> hashes;
    for (const std::string& name : names) hashes.insert(hash_of(name));
    std::copy(hashes.begin(), hashes.end(), out.begin());
    size = static_cast<uint16_t>(hashes.size());
  };
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const EndpointInput& in = endpoints[i].input;
    const std::pair<Signal, const SignalInput*> all[] = {{Signal::kWaitingRequests, &in.waiting},
                                                         {Signal::kRunningRequests, &in.running},
                                                         {Signal::kKvUsage, &in.kv_usage},
                                                         {Signal::kCacheBlockSize, &in.block_size},
                                                         {Signal::kCacheNumBlocks, &in.num_blocks}};
    for (const auto& [signal, input] : all) {
      const auto row = static_cast<size_t>(signal);
      const bool seen = input->state != SignalState::kNeverSeen && input->state != SignalState::kNameMissing;
      signals_.value[row][i] = seen ? input->value : 0;
      signals_.state[row][i] = input->state;
      signals_.observed_at[row][i] = seen ? clock_.now() - std::chrono::milliseconds(input->age_ms) : kNever;
    }
    LoraSignal& lora = signals_.lora_rows[i];
    if (in.adapters_max == 0 && in.adapters_running.empty() && in.adapters_waiting.empty()) continue;
    lora.state = SignalState::kFresh;
    lora.observed_at = clock_.now();
    lora.max_adapters = in.adapters_max;
    sorted_hashes(in.adapters_running, lora.running, lora.running_count);
    sorted_hashes(in.adapters_waiting, lora.waiting, lora.waiting_count);
  }
}

void Bench::one_step(const Step& step) {
  clock_.advance(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(step.after_ms)));
  set_pool(step.endpoints);

  std::vector<HeaderField> headers;
  for (const auto& [name, value] : step.request.headers) headers.push_back({name, value});
  if (step.request.priority != 0) {
    auto rules = std::make_shared<director::PoolRules>();
    rules->objective_priorities = {{"vector", step.request.priority}};
    pool_.rules.publish(rules);
    headers.push_back({"x-llm-d-inference-objective", "vector"});
  }
  std::string body =
      step.request.body.value_or("{\"model\":\"" + step.request.model + "\",\"prompt\":\"p\"}");
  const size_t size = body.size();
  body.append(protocol::kBodyPadding, '\0');
  std::vector<director::SubsetEntry> subset;
  director::RequestInput input;
  input.request_id = step.request.id;
  input.method = "POST";
  input.path = step.request.path;
  input.headers = headers;
  input.body = {body.data(), size};
  input.received_at = clock_.now();
  if (step.request.subset) {
    for (const std::string& name : *step.request.subset) {
      const Endpoint& endpoint = *picture_.pool->endpoints[candidate(name)];
      subset.push_back({endpoint.address, endpoint.port});
    }
    input.subset = subset;
  }
  if (case_.draws > 0) return check_draws(step, input);

  input.seed = ++seed_;
  auto work = std::make_unique<Held>();
  director::Request& request = work->request;
  director::Observer& observer = work->observer;
  observer.start(pool_, request, nullptr, 0);
  const Status status = director_->decide(request, input);
  check(step, status, request);
  if (step.answer && status.ok()) answer(step, request, observer);
  if (step.hold) {
    held_.push_back(std::move(work));
    return;
  }
  observer.end({.status = step.answer ? step.answer->status : 0,
                .reason = step.answer ? "ok" : "client_gone",
                .error = nullptr,
                .attempts = 1,
                .own_bytes = 0,
                .wall = {}},
               clock_.now());
  check_load(step.after_answer, "after the answer");
}

void Bench::answer(const Step& step, director::Request& request, director::Observer& observer) {
  const AnswerInput& in = *step.answer;
  const auto pass = [&](double ms) {
    clock_.advance(std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms)));
  };
  pass(in.first_token_ms);
  director::Observer::Served served{in.lb_metadata, std::nullopt};
  if (in.served) served.endpoint = *in.served;
  observer.head(in.status, in.stream ? "text/event-stream" : "application/json", "", clock_.now(), served);

  std::map<std::string, std::string> headers;
  for (const HeaderEdits::Edit& edit : request.response_edits)
    if (!edit.remove) headers[std::string(edit.name)] = edit.value;
  std::vector<HeaderEdits::Edit> edits;
  observer.append_header_edits(edits);
  for (const HeaderEdits::Edit& edit : edits) headers[std::string(edit.name)] = edit.value;
  if (step.expect) {
    for (const auto& [name, value] : step.expect->response_headers) {
      const auto found = headers.find(name);
      if (!value) {
        EXPECT_TRUE(found == headers.end()) << "answer header " << name << " is " << found->second;
      } else if (found == headers.end()) {
        ADD_FAILURE() << "answer header " << name << " is not set";
      } else {
        EXPECT_EQ(found->second, *value) << "answer header " << name;
      }
    }
  }

  std::vector<std::string_view> out;
  const std::string usage = in.usage ? ",\"usage\":" + *in.usage : "";
  for (int i = 0; i < in.chunks; ++i) {
    if (i > 0) pass(in.chunk_gap_ms);
    const std::string last = i + 1 == in.chunks ? usage : "";
    observer.piece(in.stream ? "data: {\"choices\":[{\"text\":\"a\"}]" + last + "}\n\n"
                             : "{\"choices\":[{\"text\":\"a\"}]" + last + "}",
                   clock_.now(), out);
    out.clear();
    if (i == 0) check_load(step.after_first_token, "after the first token");
  }
  observer.body_end(out);
  if (!step.expect) return;
  std::map<std::string, double> reported;
  for (const auto& entry : observer.metadata()) reported[entry.ns + "/" + entry.name] = entry.value;
  for (const auto& [name, value] : step.expect->metadata) {
    const auto found = reported.find(name);
    if (!value) {
      EXPECT_TRUE(found == reported.end()) << "metadata " << name << " is " << found->second;
    } else {
      ASSERT_TRUE(found != reported.end()) << "metadata " << name << " is not reported";
      EXPECT_NEAR(found->second, *value, kTolerance) << "metadata " << name;
    }
  }
}

void Bench::check(const Step& step, const Status& status, const director::Request& request) {
  if (!step.expect) {
    EXPECT_TRUE(status.ok()) << status.error().message;
    return;
  }
  const Expectation& expect = *step.expect;
  if (expect.refused) {
    ASSERT_FALSE(status.ok()) << "the request goes to " << name_of_id(request.record.winner);
    EXPECT_EQ(protocol::error_status(status.error().code).http_status, expect.refused->status);
    EXPECT_EQ(status.error().message, expect.refused->message);
    EXPECT_EQ(status.error().dropped_reason, expect.refused->reason);
  } else {
    ASSERT_TRUE(status.ok()) << status.error().message;
    for (const std::string& name : expect.winners) EXPECT_EQ(name_of_id(request.record.winner), name);
  }
  check_profiles(expect, request);
  if (expect.destination) {
    EXPECT_EQ(request.destination, *expect.destination);
  }
  if (expect.fairness_id) {
    EXPECT_EQ(request.inference.fairness_id, *expect.fairness_id);
  }
  if (expect.fallback) {
    EXPECT_EQ(fallback_state_name(request.record.fallback), *expect.fallback);
  }
  if (expect.prompt_tokens) {
    EXPECT_EQ(static_cast<int64_t>(request.record.prompt_tokens), *expect.prompt_tokens);
  }
  for (const auto& [name, value] : expect.request_headers) {
    std::optional<std::string> set;
    for (const HeaderEdits::Edit& edit : request.request_edits)
      if (edit.name == name && !edit.remove) set = edit.value;
    EXPECT_EQ(set, value) << "request header " << name;
  }
  check_data(expect);
  check_load(expect.in_flight, "after the decision");
}

void Bench::check_profiles(const Expectation& expect, const director::Request& request) {
  std::map<std::string, const ProfileRecord*> records;
  for (const ProfileRecord& record : request.record.profiles)
    records[std::string(record.profile_name)] = &record;
  const auto check_one = [&](const ProfileExpectation& wanted, const std::string& name) {
    SCOPED_TRACE("profile " + name);
    const bool anything =
        wanted.filtered || !wanted.scores.empty() || !wanted.totals.empty() || wanted.picked;
    if (!anything) return;
    const auto found = records.find(name);
    ASSERT_TRUE(found != records.end()) << "the profile did not run";
    const ProfileRecord& record = *found->second;
    ASSERT_LE(record.candidates, kRecordedCandidates) << "more endpoints than a record keeps";
    if (wanted.picked) {
      EXPECT_EQ(name_of_id(record.picked), *wanted.picked);
    }
    std::set<std::string> left;
    for (const CandidateRecord& c : record.top) left.insert(name_of_id(c.endpoint_id));
    if (wanted.filtered) {
      EXPECT_EQ(left, (std::set<std::string>(wanted.filtered->begin(), wanted.filtered->end())));
    }
    for (const auto& [plugin, scores] : wanted.scores) {
      const auto scorer = std::find_if(record.scorers.begin(), record.scorers.end(),
                                       [&](const ScorerRecord& s) { return s.plugin_name == plugin; });
      ASSERT_TRUE(scorer != record.scorers.end()) << "no scorer " << plugin;
      const auto index = static_cast<size_t>(scorer - record.scorers.begin());
      for (const CandidateRecord& c : record.top) {
        const std::string endpoint = name_of_id(c.endpoint_id);
        const auto score = scores.find(endpoint);
        ASSERT_TRUE(score != scores.end()) << plugin << " says nothing of " << endpoint;
        EXPECT_NEAR(c.scores[index], score->second, kTolerance) << plugin << " of " << endpoint;
      }
      for (const auto& [endpoint, score] : scores)
        EXPECT_TRUE(left.contains(endpoint)) << endpoint << " is not left";
    }
    for (const auto& [endpoint, total] : wanted.totals) {
      const auto c = std::find_if(record.top.begin(), record.top.end(), [&](const CandidateRecord& r) {
        return name_of_id(r.endpoint_id) == endpoint;
      });
      ASSERT_TRUE(c != record.top.end()) << endpoint << " is not left";
      EXPECT_NEAR(c->total, total, kTolerance) << "total of " << endpoint;
    }
  };
  const std::string primary = !request.record.primary_profile.empty()
                                  ? std::string(request.record.primary_profile)
                              : records.empty() ? std::string()
                                                : records.begin()->first;
  check_one(expect.primary, primary);
  for (const auto& [name, profile] : expect.profiles) check_one(profile, name);
  if (expect.ran) {
    std::set<std::string> ran;
    for (const auto& [name, record] : records) {
      if (!record->picked.empty()) ran.insert(name);
    }
    EXPECT_EQ(ran, (std::set<std::string>(expect.ran->begin(), expect.ran->end())));
  }
}

// Every field that stands in the vector, of every endpoint that does; {} or null: nothing is published.
void Bench::check_data(const Expectation& expect) {
  const auto check_one = [&](const std::string& key, const std::string& endpoint, const Node& wanted) {
    SCOPED_TRACE(key + (endpoint.empty() ? "" : " of " + endpoint));
    const auto& all = published[key];
    const auto found = all.find(endpoint);
    if (wanted.is_null()) {
      EXPECT_TRUE(found == all.end()) << "is published";
      return;
    }
    ASSERT_TRUE(found != all.end()) << "is not published";
    const auto check_field = [&](const std::string& field, const Node& value) {
      const auto seen = found->second.find(field);
      ASSERT_TRUE(seen != found->second.end()) << "there is no field '" << field << "'";
      if (const auto* text = std::get_if<std::string>(&seen->second)) {
        EXPECT_EQ(*text, value.text) << field;
      } else if (value.kind == Node::Kind::kBool) {
        EXPECT_EQ(std::get<double>(seen->second), value.boolean ? 1 : 0) << field;
      } else if (value.is_map()) {
        double about = 0;
        double within = 0;
        decode(value, key + "." + field, [&](Binder& b) {
          b.field("about", about, "", "");
          b.field("within", within, "", "");
        });
        EXPECT_NEAR(std::get<double>(seen->second), about, within) << field;
      } else {
        const std::optional<double> number = Decoder::number(value);
        ASSERT_TRUE(number) << field;
        EXPECT_NEAR(std::get<double>(seen->second), *number, kTolerance) << field;
      }
    };
    if (!wanted.is_map()) return check_field("", wanted);
    for (const auto& [field, value] : wanted.members) check_field(field, value);
  };
  for (const auto& [key, wanted] : expect.data) {
    if (is_of_the_request(kind_of(key))) {
      check_one(key, "", wanted);
      continue;
    }
    for (const auto& [endpoint, value] : wanted.members) check_one(key, endpoint, value);
  }
}

void Bench::check_load(const std::map<std::string, Numbers>& expected, std::string_view when) {
  for (const auto& [name, wanted] : expected) {
    const uint64_t word = picture_.pool->endpoints[candidate(name)]->live->load;
    for (const auto& [field, value] : wanted) {
      ASSERT_TRUE(field == "requests" || field == "tokens") << field;
      const double seen = field == "requests" ? static_cast<double>(EndpointLive::requests_of(word))
                                              : static_cast<double>(EndpointLive::tokens_of(word));
      EXPECT_EQ(seen, value) << field << " in flight on " << name << " " << when;
    }
  }
}

// Decides the same request with the seeds 1, 2, …, without anything left behind. Where shares are expected
// each must come within four standard deviations of a binomial draw: with these seeds it always does or
// never.
void Bench::check_draws(const Step& step, const director::RequestInput& input) {
  std::map<std::string, int> seen;
  for (int i = 1; i <= case_.draws; ++i) {
    director::RequestInput again = input;
    again.seed = static_cast<uint64_t>(i);
    director::Request request;
    director_->explain(request, again);
    ++seen[request.record.winner.empty() ? "refused" : name_of_id(request.record.winner)];
    if (i == 1) check_profiles(*step.expect, request);
  }
  if (step.expect->shares.empty()) {
    std::set<std::string> names;
    for (const auto& [name, times] : seen) names.insert(name);
    EXPECT_EQ(names, (std::set<std::string>(step.expect->winners.begin(), step.expect->winners.end())));
    return;
  }
  double sum = 0;
  for (const auto& [name, share] : step.expect->shares) {
    const double drawn = static_cast<double>(seen[name]) / case_.draws;
    EXPECT_NEAR(drawn, share, 4 * std::sqrt(share * (1 - share) / case_.draws)) << "share of " << name;
    sum += share;
  }
  EXPECT_NEAR(sum, 1, 1e-4) << "the expected shares";
  for (const auto& [name, times] : seen)
    EXPECT_TRUE(step.expect->shares.contains(name)) << name << " was drawn";
}

// --- The files ----------------------------------------------------------------------------------------

std::vector<std::filesystem::path> files() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() == ".yaml" && entry.path().stem() != "index") out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class PolicyVectors : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(PolicyVectors, HoldInEveryCase) {
  const Result<VectorFile> file = Decoder::read(GetParam());
  ASSERT_TRUE(file.ok()) << file.error().message;
  std::set<std::string> names;
  for (const Case& vector : file->cases) {
    EXPECT_TRUE(names.insert(vector.name).second) << "two cases are named " << vector.name;
    Bench(vector).run();
  }
}

INSTANTIATE_TEST_SUITE_P(Files, PolicyVectors, testing::ValuesIn(files()), [](const auto& info) {
  std::string name = info.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST(PolicyVectorFiles, EveryPluginTypeOfTheSchedulerHasVectorsThatUseIt) {
  std::set<std::string> covered;
  for (const auto& path : files()) {
    const Result<VectorFile> file = Decoder::read(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    for (const std::string& type : file->plugins) {
      // Named is not enough: a case's configuration has it.
      const bool used = std::any_of(file->cases.begin(), file->cases.end(), [&](const Case& vector) {
        if (!vector.configuration || vector.refused_config) return false;
        const Node* plugins = vector.configuration->find("plugins");
        return plugins != nullptr &&
               std::any_of(plugins->items.begin(), plugins->items.end(), [&](const Node& plugin) {
                 const Node* named = plugin.find("type");
                 return named != nullptr && named->text == type;
               });
      });
      EXPECT_TRUE(used) << path.filename() << " has no case with a " << type;
      covered.insert(type);
    }
  }
  for (const PluginDescriptor& plugin : scheduling::scheduling_plugins())
    EXPECT_TRUE(covered.contains(std::string(plugin.type))) << plugin.type << " has no vector";
}

const PluginDescriptor* registered(std::string_view type) {
  for (const auto table : builtin_tables()) {
    for (const PluginDescriptor& descriptor : table) {
      if (descriptor.type == type) return &descriptor;
    }
  }
  return nullptr;
}

// index.yaml against the registry, and against the list that tells a type that is missing from a typo.
TEST(PolicyVectorFiles, TheIndexSaysWhatIsRegisteredAndNamesWhatIsMissing) {
  const auto path = folder() / "index.yaml";
  std::ifstream in(path, std::ios::binary);
  const Result<Node> index =
      config::parse_document(std::string{std::istreambuf_iterator<char>(in), {}}, "index.yaml");
  ASSERT_TRUE(index.ok()) << index.error().message;
  const Node* types = nullptr;
  const Node* missing = nullptr;
  std::vector<std::string> own;
  decode(*index, "", [&](Binder& b) {
    b.node("types", types, "");
    b.node("missing", missing, "");
    b.field("own", own, "", "");
  });
  ASSERT_TRUE(types != nullptr && missing != nullptr);

  std::set<std::string, std::less<>> waiting;
  for (const Node& node : missing->items) {
    std::string type;
    std::string waits_for;
    decode(node, "missing", [&](Binder& b) {
      b.field("type", type, "", "");
      b.field("waitsFor", waits_for, "", "");
    });
    EXPECT_FALSE(waits_for.empty()) << type;
    EXPECT_EQ(registered(type), nullptr) << type << " is registered: no longer missing";
    waiting.insert(type);
  }
  std::set<std::string, std::less<>> known;
  for (const Node& node : types->items) {
    std::string type;
    std::string kind;
    std::string stability;
    std::string replaced_by;
    decode(node, "types", [&](Binder& b) {
      b.field("type", type, "", "");
      b.field("kind", kind, "", "");
      b.field("stability", stability, "", "");
      b.field("replacedBy", replaced_by, "", "");
    });
    EXPECT_TRUE(known.insert(type).second) << type << " stands there twice";
    const KnownType* name = find_known_type(type);
    ASSERT_NE(name, nullptr) << type;
    const Stability wanted = stability == "Alpha" ? Stability::kAlpha : Stability::kBeta;
    EXPECT_EQ(name->stability, wanted) << type;
    EXPECT_EQ(name->replaced_by, replaced_by) << type;
    const PluginDescriptor* plugin = registered(type);
    if (plugin == nullptr) {
      EXPECT_TRUE(waiting.contains(type)) << type << " is neither registered nor named as missing";
      continue;
    }
    EXPECT_EQ(plugin->stability, wanted) << type;
    EXPECT_EQ(plugin->replaced_by, replaced_by) << type;
  }
  for (const std::string& type : waiting) EXPECT_TRUE(known.contains(type)) << type;
  EXPECT_EQ(known.size(), known_types().size());
  for (const auto table : builtin_tables()) {
    for (const PluginDescriptor& plugin : table) {
      const bool ours = std::find(own.begin(), own.end(), plugin.type) != own.end();
      EXPECT_NE(known.contains(plugin.type), ours) << plugin.type << " belongs into one of the lists";
    }
  }
}

TEST(PolicyVectorFiles, AreReadStrictly) {
  const auto error_of = [](std::string_view text) {
    const auto file = Decoder::decode(text, "f");
    return file.ok() ? std::string() : file.error().message;
  };
  constexpr std::string_view kHead = "plugins: [p]\ncases:\n- name: c\n  endpoints: {a: {}}\n";
  const auto with = [&](std::string_view rest) { return error_of(std::string(kHead) + std::string(rest)); };
  EXPECT_EQ(with("  expect: {winner: a}\n"), "");
  EXPECT_THAT(with("  expect: {winer: a}\n"), HasSubstr("winer"));
  EXPECT_THAT(with("  expect: {winner: b}\n"), HasSubstr("there is no endpoint b"));
  EXPECT_THAT(with("  expekt: {winner: a}\n"), HasSubstr("expekt"));
  EXPECT_THAT(with("  expect: {scores: {s: {b: 1}}}\n"), HasSubstr("there is no endpoint b"));
  EXPECT_THAT(with("  expect: {scores: {s: {a: x}}}\n"), HasSubstr("expected a number"));
  EXPECT_THAT(with("  steps: [{request: {modl: m}}]\n"), HasSubstr("modl"));
  EXPECT_THAT(with("  steps: [{endpoints: {b: {}}}]\n"), HasSubstr("there is no such endpoint"));
  EXPECT_THAT(with(""), HasSubstr("the case expects nothing"));
  EXPECT_THAT(with("  expect: {winner: {a: 1}}\n"), HasSubstr("several winners need draws"));
  EXPECT_THAT(with("  draws: 9\n  expect: {winner: a, fallback: none}\n"), HasSubstr("of draws only"));
  EXPECT_THAT(with("  expect: {responseHeaders: {x: y}}\n"), HasSubstr("of an answer need one"));
  EXPECT_THAT(
      error_of("plugins: [p]\ncases: [{name: c, endpoints: {a: {wating: 1}}, expect: {winner: a}}]\n"),
      HasSubstr("wating"));
  EXPECT_THAT(
      error_of("plugins: [p]\ncases: [{name: c, endpoints: {a: {waiting: many}}, expect: {winner: a}}]\n"),
      HasSubstr("expected a number"));
  EXPECT_THAT(error_of("plugins: [p]\ncases: []\n"), HasSubstr("there are none"));
  EXPECT_THAT(error_of("cases: [{name: c, expect: {winner: a}}]\n"), HasSubstr("name the plugin types"));
}

}  // namespace
}  // namespace penstock::assembly::vectors
