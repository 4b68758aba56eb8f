#include "simulator/fleet/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <utility>

#include "base/hash.h"
#include "simulator/fleet/fleet_gateway.h"

namespace penstock::simulator {

namespace {

uint64_t mixed(uint64_t seed, uint64_t number) {
  return XXH3_64bits_withSeed(&number, sizeof number, seed);
}

// A goal of zero is none.
bool within(Duration time, Duration goal, uint32_t tokens) {
  return goal <= Duration::zero() || to_millis(time) <= to_millis(goal) * tokens;
}

// The largest and the mean value of one look at the engines, summed over the looks.
struct Balance {
  double largest = 0;
  double mean = 0;
  void add(double look_largest, double look_mean) {
    largest += look_largest;
    mean += look_mean;
  }
  double ratio() const { return mean > 0 ? largest / mean : 0; }
};

double balance_of(const std::vector<uint64_t>& shares) {
  uint64_t sum = 0;
  for (const uint64_t share : shares) sum += share;
  if (sum == 0) return 0;
  return static_cast<double>(*std::max_element(shares.begin(), shares.end())) *
         static_cast<double>(shares.size()) / static_cast<double>(sum);
}

FleetGateway::Options gateway_options(const FleetOptions& fleet, uint32_t number,
                                      std::span<const FleetClass> classes, Outside* outside = nullptr) {
  return {.seed = mixed(fleet.seed, number),
          .engines = fleet.engines,
          .block_size = fleet.engine.block_size,
          .num_blocks = fleet.engine.num_blocks,
          .max_adapters = fleet.engine.max_adapters,
          .scrape_interval = fleet.scrape_interval,
          .staleness = fleet.staleness,
          .classes = classes,
          .outside = outside};
}

// One run: a heap of what happens next, and what happens then. At one instant engines end their steps before
// engines go and come, before pages are scraped, before anybody looks at the balance, before waits of plugins
// end, before requests arrive; equals in the order in which they were planned. To plugins it is the world
// outside, in which time passes and nobody answers.
class Run final : private Outside {
 public:
  Run(const FleetOptions& options, const Workload& workload, const FleetPolicy& policy)
      : options_(options), workload_(workload), policy_(policy), start_(clock_.now()) {
    report_.policy = policy.name;
    report_.classes.resize(workload.classes.size());
    class_times_.resize(std::max<size_t>(workload.classes.size(), 1));
  }

  Result<FleetReport> run() {
    for (uint32_t i = 0; i < options_.engines; ++i) {
      engines_.push_back(fresh_engine());
      report_.engine_requests.push_back(0);
      work_at_.push_back(0);
      is_up_.push_back(true);
      planned_step_.push_back(0);
    }
    for (uint32_t i = 0; i < options_.gateways; ++i) {
      auto made =
          FleetGateway::create(policy_, gateway_options(options_, i, workload_.classes, this), clock_);
      if (!made.ok()) return std::move(made).error();
      gateways_.push_back(std::move(made).value());
    }
    wait_for_predecessors();
    if (!workload_.requests.empty()) {
      plan_scrapes();
      plan(start_ + options_.warm_up, Kind::kSample, 0);
      if (options_.restart_every > Duration::zero()) plan(start_ + options_.restart_every, Kind::kRestart, 0);
    }
    plan_next_arrival();
    while (open_ > 0 && !heap_.empty()) {
      const Planned next = heap_.top();
      heap_.pop();
      clock_.set(next.at);
      handle(next);
    }
    return finish_report();
  }

 private:
  enum class Kind : uint8_t { kStep, kRestart, kNotice, kBack, kScrape, kSample, kTimer, kArrival };
  struct Planned {
    TimePoint at;
    Kind kind;
    // Of kScrape: gateway * engines + engine; of kTimer: place in timers_; of kArrival: request; else engine.
    uint32_t index;
    uint64_t sequence;  // of planning
    bool operator>(const Planned& other) const {
      if (at != other.at) return at > other.at;
      if (kind != other.kind) return kind > other.kind;
      return sequence > other.sequence;
    }
  };
  // A request that is not decided yet.
  struct Waiting {
    uint32_t request = FleetRequest::kNone;
    uint32_t gateway = 0;
    FleetGateway::Handle handle = 0;
    TimePoint arrived_at;
    bool counted = false;
  };
  // A request on an engine.
  struct Flight {
    uint32_t request = FleetRequest::kNone;  // none: it has ended
    uint32_t gateway = 0;
    uint32_t engine = 0;
    FleetGateway::Handle handle = 0;
    TimePoint arrived_at;
    TimePoint first_token_at;
    uint32_t tokens = 0;
    bool counted = false;
  };

  std::unique_ptr<EngineModel> fresh_engine() const {
    auto engine = std::make_unique<EngineModel>(options_.engine);
    for (const std::string& adapter : workload_.adapters) engine->add_adapter(adapter);
    return engine;
  }

  void plan(TimePoint at, Kind kind, uint32_t index) { heap_.push({at, kind, index, sequence_++}); }

  void handle(const Planned& planned) {
    switch (planned.kind) {
      case Kind::kStep:
        if (planned_step_[planned.index] == planned.sequence) run_engine(planned.index);
        break;
      case Kind::kRestart:
        restart(planned.index);
        break;
      case Kind::kNotice:
        for (const auto& gateway : gateways_) gateway->set_member(planned.index, false);
        break;
      case Kind::kBack:
        is_up_[planned.index] = true;
        for (const auto& gateway : gateways_) gateway->set_member(planned.index, true);
        break;
      case Kind::kScrape:
        scrape(planned.index);
        break;
      case Kind::kSample:
        sample();
        break;
      case Kind::kTimer:
        end_timer(planned.index);
        break;
      case Kind::kArrival:
        if (workload_.requests[planned.index].after == FleetRequest::kNone) plan_next_arrival();
        arrive(planned.index);
        break;
    }
  }

  // Lists of who waits for whose answer, as one linked list for each request.
  void wait_for_predecessors() {
    const std::vector<FleetRequest>& requests = workload_.requests;
    open_ = requests.size();
    first_follower_.assign(requests.size(), FleetRequest::kNone);
    next_follower_.assign(requests.size(), FleetRequest::kNone);
    for (size_t i = requests.size(); i-- > 0;) {
      const uint32_t after = requests[i].after;
      if (after == FleetRequest::kNone) continue;
      assert(after < i);
      next_follower_[i] = first_follower_[after];
      first_follower_[after] = static_cast<uint32_t>(i);
    }
  }

  void plan_next_arrival() {
    while (next_arrival_ < workload_.requests.size() &&
           workload_.requests[next_arrival_].after != FleetRequest::kNone)
      ++next_arrival_;
    if (next_arrival_ == workload_.requests.size()) return;
    plan(start_ + workload_.requests[next_arrival_].at, Kind::kArrival, static_cast<uint32_t>(next_arrival_));
    ++next_arrival_;
  }

  // Whoever waited for this answer may come now.
  void release_followers(uint32_t request) {
    --open_;
    const TimePoint now = clock_.now();
    for (uint32_t i = first_follower_[request]; i != FleetRequest::kNone; i = next_follower_[i]) {
      const FleetRequest& follower = workload_.requests[i];
      plan(std::max(start_ + follower.at, now + follower.pause), Kind::kArrival, i);
    }
  }

  // Every gateway looks at every engine once before the first request, then at moments of their own.
  void plan_scrapes() {
    for (uint32_t g = 0; g < options_.gateways; ++g) {
      const Duration interval = gateways_[g]->scrape_interval();
      if (interval <= Duration::zero()) continue;
      for (uint32_t e = 0; e < options_.engines; ++e) {
        gateways_[g]->scraped(e, engines_[e]->stats());
        const uint32_t index = g * options_.engines + e;
        const auto offset = static_cast<int64_t>(mixed(options_.seed ^ 0x5C4A9EULL, index) %
                                                 static_cast<uint64_t>(interval.count()));
        plan(start_ + Duration(1 + offset), Kind::kScrape, index);
      }
    }
  }

  void scrape(uint32_t index) {
    FleetGateway& gateway = *gateways_[index / options_.engines];
    const uint32_t engine = index % options_.engines;
    if (is_up_[engine] && !stalled()) gateway.scraped(engine, engines_[engine]->stats());
    plan(clock_.now() + gateway.scrape_interval(), Kind::kScrape, index);
  }

  // One that is still down is passed over.
  void restart(uint32_t index) {
    plan(clock_.now() + options_.restart_every, Kind::kRestart, (index + 1) % options_.engines);
    if (!is_up_[index]) return;
    ++report_.restarts;
    is_up_[index] = false;
    planned_step_[index] = 0;
    report_.preemptions += engines_[index]->stats().preemptions;
    engines_[index] = fresh_engine();
    for (uint32_t number = 0; number < flights_.size(); ++number) {
      const Flight& flight = flights_[number];
      if (flight.request == FleetRequest::kNone || flight.engine != index) continue;
      gateways_[flight.gateway]->fail(flight.handle);
      if (flight.counted) count_failure(flight.request);
      end_flight(number);
    }
    plan(clock_.now() + options_.restart_notice, Kind::kNotice, index);
    plan(clock_.now() + options_.restart_for, Kind::kBack, index);
  }

  void end_flight(uint32_t number) {
    const uint32_t request = std::exchange(flights_[number].request, FleetRequest::kNone);
    idle_flights_.push_back(number);
    release_followers(request);
  }

  bool stalled() const {
    if (options_.stall_every <= Duration::zero()) return false;
    const Duration since_start = clock_.now() - start_;
    return since_start >= options_.stall_every && since_start % options_.stall_every < options_.stall_for;
  }

  void sample() {
    double most_waiting = 0;
    double most_load = 0;
    double waiting = 0;
    double load = 0;
    for (const auto& engine : engines_) {
      const double w = engine->waiting();
      const double l = w + engine->running();
      most_waiting = std::max(most_waiting, w);
      most_load = std::max(most_load, l);
      waiting += w;
      load += l;
    }
    const double count = options_.engines;
    queue_.add(most_waiting, waiting / count);
    load_.add(most_load, load / count);
    ++looks_;
    report_.peak_queue = std::max(report_.peak_queue, most_waiting);
    plan(clock_.now() + options_.sample_interval, Kind::kSample, 0);
  }

  void arrive(uint32_t index) {
    const FleetRequest& request = workload_.requests[index];
    const TimePoint now = clock_.now();
    const bool counted = now - start_ >= options_.warm_up;
    if (counted) {
      ++report_.requests;
      ++class_of(request).requests;
    }
    if (!takes_prompt(options_.engine, request.input_tokens)) {
      if (counted) ++report_.refused;
      release_followers(index);
      return;
    }
    const auto gateway =
        static_cast<uint32_t>(mixed(options_.seed ^ 0x6A7E3A75ULL, index) % options_.gateways);
    const FleetGateway::Prompt prompt = prompt_of(index);
    const Waiting asked{index, gateway, gateways_[gateway]->ask(prompt), now, counted};
    if (gateways_[gateway]->is_waiting(asked.handle)) {
      waiting_.push_back(asked);
    } else {
      decide(asked, prompt);
    }
  }

  // Valid until the next one.
  FleetGateway::Prompt prompt_of(uint32_t index) {
    const FleetRequest& request = workload_.requests[index];
    workload_.tokens_of(request, tokens_);
    FleetGateway::Prompt prompt;
    id_.clear();
    fmt::format_to(std::back_inserter(id_), "r{}", index);
    prompt.request_id = id_;
    prompt.tokens = tokens_;
    session_.clear();
    if (request.session != FleetRequest::kNone) {
      fmt::format_to(std::back_inserter(session_), "s{}", request.session);
      prompt.session = session_;
      if (request.session < session_tokens_.size()) prompt.session_token = session_tokens_[request.session];
    }
    if (request.adapter >= 0) prompt.adapter = workload_.adapters[static_cast<size_t>(request.adapter)];
    if (!workload_.classes.empty()) prompt.of_class = &workload_.classes[request.class_index];
    if (policy_.sticky) prompt.only = static_cast<int32_t>(sticky_engine(request));
    return prompt;
  }

  void decide(const Waiting& asked, const FleetGateway::Prompt& prompt) {
    const uint32_t index = asked.request;
    const FleetRequest& request = workload_.requests[index];
    Result<FleetGateway::Choice> choice = gateways_[asked.gateway]->decide(asked.handle, prompt, reachable_);
    if (!choice.ok()) {
      if (asked.counted) {
        ++report_.rejected;
        ++class_of(request).rejected;
        if (report_.rejection.empty()) report_.rejection = choice.error().message;
      }
      release_followers(index);
      return;
    }
    if (asked.counted && choice->fallback) ++report_.fallbacks;
    if (!choice->connected) {
      if (asked.counted) count_failure(index);
      release_followers(index);
      return;
    }
    if (asked.counted && choice->attempts > 1) ++report_.retried;
    submit(asked, *choice);
  }

  // Plugins' way out: their waits end, and a call is answered by nobody.
  Status prepare(const std::string&) override {
    return Error{ErrorCode::kNotImplemented, "nobody is called in a simulation"};
  }
  void post(std::string, std::string, Duration, size_t, Done done) override {
    after(Duration::zero(), [done = std::move(done)] {
      Answer answer;
      answer.error = "nobody is called in a simulation";
      done(std::move(answer));
    });
  }
  void after(Duration pause, std::function<void()> then) override {
    uint32_t place = 0;
    if (idle_timers_.empty()) {
      place = static_cast<uint32_t>(timers_.size());
      timers_.emplace_back();
    } else {
      place = idle_timers_.back();
      idle_timers_.pop_back();
    }
    timers_[place] = std::move(then);
    plan(clock_.now() + std::max(pause, Duration::zero()), Kind::kTimer, place);
  }
  size_t loop() const override { return 0; }

  // Whoever had waited for it is decided.
  void end_timer(uint32_t place) {
    const std::function<void()> then = std::exchange(timers_[place], nullptr);
    idle_timers_.push_back(place);
    then();
    for (size_t i = 0; i < waiting_.size();) {
      if (gateways_[waiting_[i].gateway]->is_waiting(waiting_[i].handle)) {
        ++i;
        continue;
      }
      const Waiting asked = waiting_[i];
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      decide(asked, prompt_of(asked.request));
    }
  }

  // Of a workload without classes nobody looks at it.
  FleetClassReport& class_of(const FleetRequest& request) {
    return report_.classes.empty() ? no_class_ : report_.classes[request.class_index];
  }
  void count_failure(uint32_t index) {
    ++report_.failed;
    ++class_of(workload_.requests[index]).failed;
  }

  uint32_t sticky_engine(const FleetRequest& request) const {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < std::min(request.pieces, 2U); ++i)
      hash = mixed(hash, workload_.pieces[request.first_piece + i].id);
    return static_cast<uint32_t>(hash % options_.engines);
  }

  void submit(const Waiting& asked, const FleetGateway::Choice& choice) {
    const FleetRequest& request = workload_.requests[asked.request];
    const TimePoint now = clock_.now();
    uint32_t number = 0;
    if (idle_flights_.empty()) {
      number = static_cast<uint32_t>(flights_.size());
      flights_.emplace_back();
    } else {
      number = idle_flights_.back();
      idle_flights_.pop_back();
    }
    flights_[number] =
        Flight{asked.request, asked.gateway, choice.engine, choice.handle, asked.arrived_at, kNever, 0,
               asked.counted};
    if (asked.counted) ++report_.engine_requests[choice.engine];

    EngineModel& engine = *engines_[choice.engine];
    const bool busy = engine.next_event().has_value();
    SequenceSpec spec;
    spec.tag = number;
    spec.prompt = tokens_;
    spec.output_tokens = std::max(request.output_tokens, 1U);
    if (request.adapter >= 0) {
      spec.adapter = request.adapter;
      spec.root = EngineModel::hash_root(workload_.adapters[static_cast<size_t>(request.adapter)], {}, {});
    }
    spec.content_seed = request.answer_seed;
    EngineModel::Sequence* sequence = engine.add(spec, now);
    assert(sequence != nullptr);  // engines have no limit on their queues
    (void)sequence;
    if (!busy) run_engine(choice.engine);
  }

  // Ends what the engine has done by now and goes on as long as nothing else happens before its next step
  // ends.
  void run_engine(uint32_t index) {
    EngineModel& engine = *engines_[index];
    while (true) {
      events_.clear();
      engine.advance(clock_.now(), clock_.wall_now(), events_);
      // Handlers add no events to this list: requests arrive through the heap.
      for (const TokenEvent& event : events_) take_token(event);
      const std::optional<TimePoint> next = engine.next_event();
      if (!next) return;
      if (open_ > 0 && !heap_.empty() && heap_.top().at <= *next) {
        planned_step_[index] = sequence_;
        plan(*next, Kind::kStep, index);
        return;
      }
      clock_.set(*next);
    }
  }

  void take_token(const TokenEvent& event) {
    const auto number = static_cast<uint32_t>(event.tag);
    Flight& flight = flights_[number];
    FleetGateway& gateway = *gateways_[flight.gateway];
    const FleetRequest& request = workload_.requests[flight.request];
    ++flight.tokens;
    if (event.index == 0) {
      flight.first_token_at = event.at;
      first_token(flight, request, event.cached_tokens);
    } else if (gateway.wants_tokens()) {
      gateway.token(flight.handle);
    }
    if (event.finish == FinishReason::kNone) return;
    gateway.finish(flight.handle, request.input_tokens, flight.tokens, event.cached_tokens);
    if (flight.counted) {
      ++report_.finished;
      ++class_of(request).finished;
      report_.output_tokens += flight.tokens;
      e2e_ms_.push_back(to_millis(event.at - flight.arrived_at));
      class_times_[request.class_index].e2e_ms.push_back(e2e_ms_.back());
      const uint32_t gaps = flight.tokens - 1;
      if (gaps > 0) tpot_ms_.push_back(to_millis(event.at - flight.first_token_at) / gaps);
      if (within(flight.first_token_at - flight.arrived_at, options_.ttft_goal, 1) &&
          within(event.at - flight.first_token_at, options_.tpot_goal, gaps)) {
        ++report_.met_goals;
      }
    }
    end_flight(number);
  }

  void first_token(const Flight& flight, const FleetRequest& request, uint32_t cached) {
    session_.clear();
    gateways_[flight.gateway]->first_token(flight.handle, session_);
    if (!session_.empty() && request.session != FleetRequest::kNone) {
      if (request.session >= session_tokens_.size()) session_tokens_.resize(request.session + 1);
      session_tokens_[request.session] = session_;
    }
    if (!flight.counted) return;
    report_.input_tokens += request.input_tokens;
    report_.cached_tokens += cached;
    work_at_[flight.engine] += request.input_tokens - cached;
    ttft_ms_.push_back(to_millis(flight.first_token_at - flight.arrived_at));
    class_times_[request.class_index].ttft_ms.push_back(ttft_ms_.back());
  }

  FleetReport finish_report() {
    for ([[maybe_unused]] const auto& gateway : gateways_) assert(gateway->in_flight() == 0);
    report_.ttft_ms = quantiles_of(ttft_ms_);
    report_.tpot_ms = quantiles_of(tpot_ms_);
    report_.e2e_ms = quantiles_of(e2e_ms_);
    for (size_t i = 0; i < report_.classes.size(); ++i) {
      report_.classes[i].ttft_ms = quantiles_of(class_times_[i].ttft_ms);
      report_.classes[i].e2e_ms = quantiles_of(class_times_[i].e2e_ms);
    }
    if (report_.input_tokens > 0)
      report_.hit_ratio =
          static_cast<double>(report_.cached_tokens) / static_cast<double>(report_.input_tokens);
    report_.queue_balance = queue_.ratio();
    report_.load_balance = load_.ratio();
    if (looks_ > 0) report_.mean_queue = queue_.mean / static_cast<double>(looks_);
    report_.request_balance = balance_of(report_.engine_requests);
    report_.work_balance = balance_of(work_at_);
    for (const auto& engine : engines_) report_.preemptions += engine->stats().preemptions;
    report_.simulated_seconds = to_seconds(clock_.now() - start_);
    return std::move(report_);
  }

  const FleetOptions& options_;
  const Workload& workload_;
  const FleetPolicy& policy_;
  ManualClock clock_;
  const TimePoint start_;
  std::vector<std::unique_ptr<EngineModel>> engines_;
  std::vector<bool> is_up_;  // by engine
  const std::function<bool(uint32_t)> reachable_ = [this](uint32_t engine) { return is_up_[engine]; };
  std::vector<uint64_t> planned_step_;  // by engine: sequence of the step's end; another one is of the past
  std::vector<std::function<void()>> timers_;
  std::vector<uint32_t> idle_timers_;
  std::vector<std::unique_ptr<FleetGateway>> gateways_;
  std::vector<Waiting> waiting_;  // as they came

  std::priority_queue<Planned, std::vector<Planned>, std::greater<>> heap_;
  uint64_t sequence_ = 1;
  size_t next_arrival_ = 0;
  size_t open_ = 0;  // requests that have not ended
  std::vector<uint32_t> first_follower_;
  std::vector<uint32_t> next_follower_;
  std::vector<Flight> flights_;
  std::vector<uint32_t> idle_flights_;
  std::vector<std::string> session_tokens_;  // by session

  FleetReport report_;
  std::vector<double> ttft_ms_;
  std::vector<double> tpot_ms_;
  std::vector<double> e2e_ms_;
  struct Times {
    std::vector<double> ttft_ms;
    std::vector<double> e2e_ms;
  };
  std::vector<Times> class_times_;
  FleetClassReport no_class_;
  Balance queue_;
  Balance load_;
  uint64_t looks_ = 0;
  std::vector<uint64_t> work_at_;

  std::vector<uint32_t> tokens_;    // scratch
  std::vector<TokenEvent> events_;  // scratch
  std::string id_;                  // scratch
  std::string session_;             // scratch
};

}  // namespace

Quantiles quantiles_of(std::vector<double>& values) {
  Quantiles out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  out.mean = sum / static_cast<double>(values.size());
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
  };
  out.p50 = at(0.5);
  out.p90 = at(0.9);
  out.p99 = at(0.99);
  return out;
}

Result<FleetReport> run_fleet(const FleetOptions& options, const Workload& workload,
                              const FleetPolicy& policy) {
  assert(options.engines > 0 && options.gateways > 0 && options.sample_interval > Duration::zero());
  return Run(options, workload, policy).run();
}

Status check_policy(const FleetOptions& options, const FleetPolicy& policy) {
  const ManualClock clock;
  const auto made = FleetGateway::create(policy, gateway_options(options, 0, {}), clock);
  return made.ok() ? Status() : made.error();
}

bool takes_prompt(const EngineModel::Options& engine, uint32_t tokens) {
  return tokens > 0 && tokens < engine.context();
}

double prefill_tokens_per_second(const EngineModel::Options& engine) {
  StepWork work;
  work.requests = 1;
  work.tokens = engine.max_batched_tokens;
  work.prefill_tokens = work.tokens;
  work.prefill_query_keys = static_cast<double>(work.tokens) * work.tokens / 2.0;
  const double ms = engine.step_time.milliseconds(work) * engine.time_scale;
  return ms > 0 ? work.tokens / ms * 1000.0 : 0;
}

}  // namespace penstock::simulator
