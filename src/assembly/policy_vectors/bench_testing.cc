#include "assembly/policy_vectors/bench_testing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "assembly/assembly.h"
#include "assembly/policy_vectors/given_data_testing.h"
#include "base/hash.h"
#include "director/director.h"
#include "director/observer.h"
#include "protocol/errors.h"
#include "scheduling/fake_outside.h"
#include "signals/page_reader.h"
#include "signals/page_sink.h"
#include "signals/plugins.h"
#include "telemetry/metrics.h"

namespace penstock::assembly::vectors {

namespace {

using testing::HasSubstr;

// One case at work: the pool as its steps leave it, the policy and a director.
class Bench final : public director::PictureSource {
 public:
  explicit Bench(const Case& vector) : case_(vector), data_(vector) {}

  void run() {
    SCOPED_TRACE(fmt::format("{}.yaml, case '{}', line {}", case_.file, case_.name, case_.line));
    if (!load()) return;
    std::vector<std::unique_ptr<Held>> together;
    for (const Step& step : case_.steps) {
      for (int i = 0; case_.together && i < step.repeat; ++i) {
        together.push_back(prepare(step));
        director_->ask(together.back()->request, together.back()->input);
        EXPECT_FALSE(together.back()->request.questions.empty()) << "nothing asks";
      }
    }
    if (case_.predictor) predict();
    outside_.pass(std::chrono::seconds(10));
    size_t next = 0;
    for (const Step& step : case_.steps) {
      SCOPED_TRACE(fmt::format("{}.yaml, line {}", case_.file, step.line));
      for (int i = 0; i < step.repeat; ++i)
        decide(step, case_.together ? std::move(together[next++]) : prepare(step));
    }
  }

  const director::Picture& refresh(TimePoint) override { return picture_; }

 private:
  bool load();
  void predict();
  void check_refusal(const std::string& message) const;
  struct Held {
    director::Request request;
    director::Observer observer;
    std::vector<HeaderField> headers;
    std::string body;
    std::vector<director::SubsetEntry> subset;
    director::RequestInput input;
  };
  std::unique_ptr<Held> prepare(const Step& step);
  void decide(const Step& step, std::unique_ptr<Held> work);
  void set_pool(const std::vector<NamedEndpoint>& endpoints);
  std::shared_ptr<Endpoint> make_endpoint(const NamedEndpoint& input);
  void set_signals(const std::vector<NamedEndpoint>& endpoints);
  void read_page(size_t index, std::string_view source, std::string_view page);
  std::string read_signals(const signals::CoreMetricsExtractor& extractor, size_t index,
                           std::string_view page);
  void answer(const Step& step, director::Request& request, director::Observer& observer);
  void check(const Step& step, const Status& status, const director::Request& request);
  void check_profiles(const Expectation& expect, const director::Request& request);
  void check_load(const std::map<std::string, Numbers>& expected, std::string_view when);
  void check_draws(const Step& step, const director::RequestInput& input);
  std::string name_of_id(std::string_view id) const {
    for (const auto& endpoint : picture_.pool->endpoints) {
      if (endpoint->id == id) return endpoint->name;
    }
    return std::string(id);
  }

  const Case& case_;
  DataBook data_;
  ManualClock clock_;
  scheduling::FakeOutside outside_;
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
  std::vector<std::unique_ptr<Held>> held_;
};

DataBook* current_book = nullptr;  // of the case that is being loaded

Result<std::unique_ptr<Plugin>> make_given(const PluginFactoryContext&) {
  return make_given_data(*current_book);
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
  if (case_.together) options.outside = &outside_;

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
    if (data_.is_needed()) {
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
    current_book = &data_;
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

void Bench::predict() {
  outside_.pass(std::chrono::milliseconds(1));
  ASSERT_EQ(outside_.posts.size(), 1U);
  const scheduling::FakeOutside::Post& asked = outside_.posts[0];
  const PredictorInput& predictor = *case_.predictor;
  if (predictor.url) {
    EXPECT_EQ(asked.url, *predictor.url);
  }
  if (predictor.request) {
    EXPECT_EQ(nlohmann::json::parse(asked.body), nlohmann::json::parse(predictor.request->to_json()));
  }
  if (predictor.answer) outside_.answer(0, predictor.status, *predictor.answer);
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
  data_.pool = pool;
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
  for (size_t i = 0; i < endpoints.size(); ++i) {
    for (const auto& [source, page] : endpoints[i].input.pages) read_page(i, source, page);
  }
}

// A page goes to the extractors of its source, as a scrape's does.
void Bench::read_page(size_t index, std::string_view source, std::string_view page) {
  const auto found =
      std::find_if(policy_->sources.begin(), policy_->sources.end(),
                   [&](const director::Policy::MetricsSource& one) { return one.source->name() == source; });
  if (found == policy_->sources.end()) {
    ADD_FAILURE() << "the configuration has no data source " << source;
    return;
  }
  const Endpoint& endpoint = *picture_.pool->endpoints[index];
  std::string engine;
  for (const Plugin* extractor : found->extractors) {
    const auto* core = dynamic_cast<const signals::CoreMetricsExtractor*>(extractor);
    if (core != nullptr) engine = read_signals(*core, index, page);
  }
  for (const Plugin* extractor : found->extractors) {
    const auto* whole = dynamic_cast<const signals::PageExtractor*>(extractor);
    if (whole == nullptr) continue;
    whole->sink()->attached(endpoint);
    whole->sink()->page(endpoint, engine, page, clock_.now());
  }
}

// All signals of the endpoint are the page's. The engine that it was read as.
std::string Bench::read_signals(const signals::CoreMetricsExtractor& extractor, size_t index,
                                std::string_view page) {
  const signals::SeriesMode mode =
      policy_->strict ? signals::SeriesMode::kStrict : signals::SeriesMode::kCompatible;
  const signals::CompiledEngines engines(extractor.engines(mode));
  signals::PageReader reader(engines);
  const Endpoint& endpoint = *picture_.pool->endpoints[index];
  reader.begin(engines.table().may_detect(endpoint) ? nullptr : &engines.table().for_endpoint(endpoint));
  EXPECT_TRUE(reader.feed(page));
  const signals::Reading& reading = reader.finish();
  signals::SignalRow row;
  signals::apply_reading(reading, row, clock_.now());
  for (size_t signal = 0; signal < kSignalCount; ++signal) {
    signals_.value[signal][index] = row.signals[signal].value;
    signals_.state[signal][index] = row.signals[signal].state;
    signals_.observed_at[signal][index] = row.signals[signal].observed_at;
  }
  signals_.lora_rows[index] = row.lora;
  return reading.engine->name;
}

std::unique_ptr<Bench::Held> Bench::prepare(const Step& step) {
  clock_.advance(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(step.after_ms)));
  set_pool(step.endpoints);

  auto work = std::make_unique<Held>();
  for (const auto& [name, value] : step.request.headers) work->headers.push_back({name, value});
  if (step.request.priority != 0) {
    auto rules = std::make_shared<director::PoolRules>();
    rules->objective_priorities = {{"vector", step.request.priority}};
    pool_.rules.publish(rules);
    work->headers.push_back({"x-llm-d-inference-objective", "vector"});
  }
  std::string& body = work->body;
  body = step.request.body.value_or("{\"model\":\"" + step.request.model + "\",\"prompt\":\"p\"}");
  const size_t size = body.size();
  body.append(protocol::kBodyPadding, '\0');
  director::RequestInput& input = work->input;
  input.request_id = step.request.id;
  input.method = "POST";
  input.path = step.request.path;
  input.headers = work->headers;
  input.body = {body.data(), size};
  input.received_at = clock_.now();
  if (step.request.subset) {
    for (const std::string& name : *step.request.subset) {
      const Endpoint& endpoint = *picture_.pool->endpoints[data_.candidate(name)];
      work->subset.push_back({endpoint.address, endpoint.port});
    }
    input.subset = work->subset;
  }
  if (case_.draws > 0) return work;
  input.seed = ++seed_;
  work->observer.start(pool_, work->request, nullptr, 0);
  return work;
}

void Bench::decide(const Step& step, std::unique_ptr<Held> work) {
  const director::RequestInput& input = work->input;
  if (case_.draws > 0) return check_draws(step, input);

  director::Request& request = work->request;
  director::Observer& observer = work->observer;
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
  data_.check(expect.data);
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

void Bench::check_load(const std::map<std::string, Numbers>& expected, std::string_view when) {
  for (const auto& [name, wanted] : expected) {
    const uint64_t word = picture_.pool->endpoints[data_.candidate(name)]->live->load;
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

}  // namespace

void run_case(const Case& vector) {
  Bench(vector).run();
}

}  // namespace penstock::assembly::vectors
