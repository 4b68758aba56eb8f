#pragma once

// What tests of the director and of the front doors build pools from.

#include <memory>
#include <string>
#include <vector>

#include "director/director.h"
#include "scheduling/scheduler.h"

namespace penstock::director::testing {

inline std::shared_ptr<Endpoint> make_endpoint(EndpointSlot slot, const std::string& name, uint16_t port) {
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->slot = slot;
  endpoint->ns = "default";
  endpoint->name = name;
  endpoint->id = "default/" + name;
  endpoint->address = "127.0.0.1";
  endpoint->port = port;
  endpoint->host_port = "127.0.0.1:" + std::to_string(port);
  endpoint->metrics_host = endpoint->host_port;
  endpoint->live = std::make_shared<EndpointLive>();
  return endpoint;
}

// A picture that tests change by hand.
class FixedPictures final : public PictureSource {
 public:
  FixedPictures() : pool_(std::make_shared<PoolSnapshot>()) {
    pool_->pool_name = "pool";
    pool_->epoch = 7;
    picture_.pool = pool_;
    picture_.signals = &view;
  }
  void add(std::shared_ptr<const Endpoint> endpoint) {
    pool_->endpoints.push_back(std::move(endpoint));
    view.resize(pool_->endpoints.size());
  }
  void set(Signal signal, Candidate c, double value, TimePoint at) {
    const auto i = static_cast<size_t>(signal);
    view.value[i][c] = value;
    view.observed_at[i][c] = at;
    view.state[i][c] = SignalState::kFresh;
  }
  const Picture& refresh(TimePoint) override { return picture_; }

  SignalView view;

 private:
  std::shared_ptr<PoolSnapshot> pool_;
  Picture picture_;
};

// Shows somebody else's picture: a Director owns its source, a test wants to keep its own.
class BorrowedPictures final : public PictureSource {
 public:
  explicit BorrowedPictures(PictureSource& source) : source_(source) {}
  const Picture& refresh(TimePoint now) override { return source_.refresh(now); }

 private:
  PictureSource& source_;
};

// Takes {"model":"<name>"} with nothing escaped in it, anywhere in the body.
class ModelParser final : public protocol::RequestParser {
 public:
  std::span<const std::string_view> path_suffixes() const override { return {}; }
  bool can_rewrite_model() const override { return rewrites; }
  Result<protocol::ParsedBody> parse(std::string_view, std::span<const HeaderField>,
                                     const protocol::PaddedBody& body, Arena& arena) const override {
    ++parses;
    protocol::ParsedBody parsed;
    parsed.api = api;
    const std::string_view text = body.view();
    if (!text.starts_with('{')) {
      return Error{ErrorCode::kBadRequest, "error unmarshaling request bodyMap: not an object"};
    }
    constexpr std::string_view kKey = "\"model\":\"";
    std::vector<protocol::Splice> found;
    for (size_t at = text.find(kKey); at != std::string_view::npos; at = text.find(kKey, at + 1)) {
      const size_t begin = at + kKey.size() - 1;
      const size_t end = text.find('"', begin + 1) + 1;
      found.push_back({begin, end - begin});
      parsed.model = text.substr(begin + 1, end - begin - 2);
    }
    parsed.streaming = text.find("\"stream\":true") != std::string_view::npos;
    const auto text_of = [&](std::string_view key) {
      const size_t at = text.find(key);
      if (at == std::string_view::npos) return std::string_view();
      const size_t from = at + key.size();
      return text.substr(from, text.find('"', from) - from);
    };
    parsed.previous_response_id = text_of("\"previous_response_id\":\"");
    parsed.conversation_id = text_of("\"conversation\":\"");
    parsed.stores_response = api == ApiKind::kResponses && stores;
    auto splices = arena.make_filled<protocol::Splice>(found.size());
    std::copy(found.begin(), found.end(), splices.begin());
    parsed.model_literals = splices;
    parsed.rewritable = rewritable;
    parsed.model_insert_offset = 1;
    parsed.model_insert_comma = text.find('"') != std::string_view::npos;
    return parsed;
  }
  bool rewrites = true;
  bool rewritable = true;  // of the bodies
  ApiKind api = ApiKind::kCompletions;
  bool stores = true;  // responses, of ApiKind::kResponses
  mutable size_t parses = 0;
};

// 1 - waiting requests / 10.
class WaitingScorer final : public Scorer {
 public:
  void score(SchedulingContext& ctx, std::span<const Candidate> candidates,
             std::span<double> scores) const override {
    for (size_t i = 0; i < candidates.size(); ++i) {
      scores[i] = 1.0 - ctx.signals.at(Signal::kWaitingRequests, candidates[i]).value / 10.0;
    }
  }
  void explain(const SchedulingContext& ctx, Candidate c, std::string& out) const override {
    out += "waiting " + std::to_string(static_cast<int>(ctx.signals.at(Signal::kWaitingRequests, c).value));
  }
};

// The best by total; among equals a random one.
class BestPicker final : public Picker {
 public:
  std::span<const Candidate> pick(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                  std::span<const double> totals) const override {
    std::span<Candidate> best = ctx.arena.make_span<Candidate>(candidates.size());
    size_t count = 0;
    double top = -1;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (totals[i] > top) {
        top = totals[i];
        count = 0;
      }
      if (totals[i] == top) best[count++] = candidates[i];
    }
    best[0] = best[ctx.random.below(static_cast<uint32_t>(count))];
    return best.first(1);
  }
};

class OneProfile final : public ProfileHandler {
 public:
  std::span<const uint32_t> pick(SchedulingContext& ctx, std::span<const std::string>, std::span<bool> done,
                                 std::span<const ProfileResult* const>) const override {
    if (done[0]) return {};
    return ctx.arena.make_filled<uint32_t>(1, 0U);
  }
  Result<SchedulingResult> process(SchedulingContext& ctx, std::span<const std::string>,
                                   std::span<const ProfileResult* const> results) const override {
    if (results[0] == nullptr) return Error{ErrorCode::kInternal, "no result"};
    auto all = ctx.arena.make_filled<const ProfileResult*>(1, results[0]);
    return SchedulingResult{all, results[0]};
  }
};

class FailingProducer final : public DataProducer {
 public:
  Status produce(SchedulingContext&) const override { return Error{ErrorCode::kInternal, "failed"}; }
};

class FixedLoad final : public LoadEstimator {
 public:
  uint64_t reserve_tokens(const SchedulingContext&, Candidate) const override { return 100; }
  bool release_tokens_at_first_byte() const override { return true; }
};

class FixedSaturation final : public SaturationDetector {
 public:
  double saturation(const PoolSnapshot&, const SignalView&, std::span<const Candidate>,
                    TimePoint) const override {
    return value;
  }
  double value = 0;
};

// A policy of the plugins above. The raw pointers stay valid as long as the policy.
struct TestPolicy {
  std::shared_ptr<Policy> policy = std::make_shared<Policy>();
  ModelParser* parser = nullptr;
  FixedSaturation* saturation = nullptr;

  explicit TestPolicy(bool use_test_parser = true) {
    policy->epoch = 3;
    auto* scorer = add<WaitingScorer>("waiting");
    auto* picker = add<BestPicker>("best");
    auto* handler = add<OneProfile>("one");
    saturation = add<FixedSaturation>("saturation");
    policy->load_estimator = add<FixedLoad>("load");
    policy->saturation = saturation;
    std::vector<scheduling::Profile> profiles(1);
    profiles[0].name = "default";
    profiles[0].scorers.push_back({scorer, 2.0});
    profiles[0].picker = picker;
    policy->scheduler = std::make_unique<scheduling::Scheduler>(std::move(profiles), handler);
    if (use_test_parser) {
      parser = add<ModelParser>("model-parser");
      const protocol::RequestParser* table[] = {parser};
      policy->parsers = std::make_unique<protocol::ParserTable>(table);
    }
  }
  template <typename T>
  T* add(const std::string& name) {
    auto plugin = std::make_unique<T>();
    plugin->set_identity(name, name);
    T* raw = plugin.get();
    policy->plugins.push_back(std::move(plugin));
    return raw;
  }
};

}  // namespace penstock::director::testing
