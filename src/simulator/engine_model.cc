#include "simulator/engine_model.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/hash.h"
#include "simulator/tokenizer.h"

namespace penstock::simulator {

// Invariants: a sequence is in exactly one of waiting_, running_ or idle_sequences_; `blocks` covers
// ceil(computed / block_size) at least while running and is empty while waiting; the first `published`
// blocks carry their hash; batch_ holds sequences of running_ only, nulled when they leave it early.
struct EngineModel::Sequence {
  uint64_t tag = 0;
  std::vector<uint32_t> tokens;  // prompt, then what was generated
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t generated = 0;
  uint32_t computed = 0;   // tokens whose KV entries exist
  uint32_t published = 0;  // blocks
  uint32_t cached = 0;     // prompt tokens found cached when first scheduled
  uint32_t preemptions = 0;
  uint32_t n = 1;
  std::optional<uint32_t> max_tokens;
  FinishReason finish_reason = FinishReason::kLength;
  int adapter = -1;
  uint64_t root = 0;
  uint64_t content_seed = 0;
  bool running = false;
  bool deferred = false;
  TimePoint arrived_at;
  TimePoint scheduled_at;
  TimePoint first_token_at;
  TimePoint last_token_at;
  std::vector<uint32_t> blocks;
  std::vector<uint64_t> hashes;  // of full blocks, as far as computed
};

namespace {

EngineModel::Options checked(EngineModel::Options options) {
  options.block_size = std::max(options.block_size, 1U);
  options.num_blocks = std::max(options.num_blocks, 2U);
  options.max_sequences = std::max(options.max_sequences, 1U);
  options.max_batched_tokens = std::max(options.max_batched_tokens, 1U);
  options.max_model_len = options.context();
  options.max_host_adapters = std::max(options.max_host_adapters, options.max_adapters);
  return options;
}

constexpr double kMaxStepMs = 24 * 3600 * 1000.0;

double seconds(TimePoint from, TimePoint to) {
  return to > from ? to_seconds(to - from) : 0.0;
}

}  // namespace

uint32_t EngineModel::Options::context() const {
  const uint64_t held = static_cast<uint64_t>(num_blocks - 1) * block_size;
  return static_cast<uint32_t>(std::min<uint64_t>(max_model_len, held));
}

EngineModel::EngineModel(const Options& options)
    : options_(checked(options)),
      cache_(options_.num_blocks, options_.prefix_caching),
      stats_(options_.max_model_len) {}

EngineModel::~EngineModel() = default;

int EngineModel::add_adapter(std::string name) {
  adapters_.push_back(Adapter{.name = std::move(name)});
  return static_cast<int>(adapters_.size()) - 1;
}

bool EngineModel::adapter_resident(int adapter) const {
  return adapters_[static_cast<size_t>(adapter)].on_gpu;
}

uint64_t EngineModel::hash_root(std::string_view adapter, std::string_view path,
                                std::string_view cache_salt) {
  uint64_t root = 0x70656e73746f636bULL;
  for (const std::string_view part : {adapter, path, cache_salt})
    root = XXH3_64bits_withSeed(part.data(), part.size(), root);
  return root;
}

bool EngineModel::has_room(uint32_t count) const {
  return options_.max_queued_requests == 0 ||
         waiting_.size() + running_.size() + count <= options_.max_queued_requests;
}

EngineModel::Sequence* EngineModel::take_sequence() {
  if (idle_sequences_.empty()) {
    sequences_.push_back(std::make_unique<Sequence>());
    return sequences_.back().get();
  }
  Sequence* sequence = idle_sequences_.back();
  idle_sequences_.pop_back();
  return sequence;
}

EngineModel::Sequence* EngineModel::add(const SequenceSpec& spec, TimePoint now) {
  assert(!spec.prompt.empty() && spec.prompt.size() < options_.max_model_len && spec.output_tokens > 0);
  if (!has_room(1)) {
    count_rejection(1);
    return nullptr;
  }
  Sequence& s = *take_sequence();
  s.tag = spec.tag;
  s.tokens.assign(spec.prompt.begin(), spec.prompt.end());
  s.prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
  s.output_tokens = spec.output_tokens;
  s.generated = s.computed = s.published = s.cached = s.preemptions = 0;
  s.n = spec.n;
  s.max_tokens = spec.max_tokens;
  s.finish_reason = spec.finish_reason;
  s.adapter = spec.adapter;
  s.root = spec.root;
  s.content_seed = spec.content_seed;
  s.running = s.deferred = false;
  s.arrived_at = now;
  s.scheduled_at = s.first_token_at = s.last_token_at = kNever;
  s.blocks.clear();
  s.hashes.clear();
  extend_hashes(s);
  if (s.adapter >= 0) {
    ++adapters_[static_cast<size_t>(s.adapter)].waiting;
    adapters_changed_ = true;
  }
  if (waiting_.empty() && running_.empty()) work_since_ = now;
  waiting_.push_back(&s);
  return &s;
}

void EngineModel::retire(Sequence* sequence) {
  cache_.release(sequence->blocks);
  if (sequence->adapter >= 0) {
    Adapter& adapter = adapters_[static_cast<size_t>(sequence->adapter)];
    --(sequence->running ? adapter.running : adapter.waiting);
    adapters_changed_ = true;
  }
  idle_sequences_.push_back(sequence);
}

void EngineModel::abort(Sequence* sequence, TimePoint now) {
  if (sequence->running) {
    std::erase(running_, sequence);
    for (Scheduled& scheduled : batch_) {
      if (scheduled.sequence == sequence) scheduled.sequence = nullptr;
    }
  } else {
    std::erase(waiting_, sequence);
  }
  finish(*sequence, FinishReason::kAbort, now);
  retire(sequence);
  stats_.running = running();
  stats_.kv_usage_ratio = cache_.usage();
  stats_.waiting_deferred = static_cast<uint32_t>(
      std::count_if(waiting_.begin(), waiting_.end(), [](const Sequence* s) { return s->deferred; }));
  stats_.waiting_capacity = waiting() - stats_.waiting_deferred;
}

bool EngineModel::reset_prefix_cache() {
  if (cache_.free() != cache_.usable()) return false;
  cache_.forget_hashes();
  return true;
}

std::optional<TimePoint> EngineModel::next_event() const {
  if (step_active_) return step_end_;
  if (paused_ || (waiting_.empty() && running_.empty())) return std::nullopt;
  return work_since_;
}

void EngineModel::advance(TimePoint now, WallTime wall_now, std::vector<TokenEvent>& out,
                          uint32_t max_steps) {
  TimePoint start = now;
  for (uint32_t ended = 0;;) {
    if (step_active_) {
      if (step_end_ > now || ended++ == max_steps) break;
      finish_step(step_end_, out);
      update_gauges(wall_now);
      start = step_end_;
    }
    if (paused_ || !start_step(start)) break;
  }
  if (!step_active_) work_since_ = now;
}

bool EngineModel::start_step(TimePoint start) {
  if (running_.empty() && waiting_.empty()) return false;
  ++step_;
  adapters_in_step_ = 0;
  batch_.clear();
  StepWork work;
  uint32_t budget = options_.max_batched_tokens;
  bool preempted = false;
  Duration load{};
  schedule_running(budget, work, preempted);
  if (!preempted) schedule_waiting(start, budget, work, load);
  if (batch_.empty()) return false;

  work.requests = static_cast<uint32_t>(batch_.size());
  const double ms =
      (options_.step_time.milliseconds(work) * slow_factor_ + to_millis(load)) * options_.time_scale;
  step_end_ = start + Duration(static_cast<int64_t>(std::llround(std::fmin(ms, kMaxStepMs) * 1e6)));
  step_active_ = true;
  return true;
}

void EngineModel::schedule_running(uint32_t& budget, StepWork& work, bool& preempted) {
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    uint32_t need = static_cast<uint32_t>(s.tokens.size()) - s.computed;
    if (options_.long_prefill_threshold > 0) need = std::min(need, options_.long_prefill_threshold);
    need = std::min(need, budget);
    bool fits = grow(s, s.computed + need);
    while (!fits) {
      Sequence& victim = *running_.back();
      preempt(victim);
      preempted = true;
      if (&victim == &s) break;
      fits = grow(s, s.computed + need);
    }
    if (!fits) return;
    if (s.adapter >= 0) use_adapter(s.adapter);
    schedule(s, need, work);
    budget -= need;
  }
}

void EngineModel::schedule_waiting(TimePoint start, uint32_t& budget, StepWork& work, Duration& load) {
  size_t at = 0;
  while (budget > 0 && running_.size() < options_.max_sequences && at < waiting_.size()) {
    Sequence& s = *waiting_[at];
    if (s.adapter >= 0 && !adapter_fits(s.adapter)) {
      s.deferred = true;
      ++at;
      continue;
    }
    s.deferred = false;
    const auto total = static_cast<uint32_t>(s.tokens.size());
    const uint32_t hashable = (total - 1) / options_.block_size;  // the last token is always computed
    const uint32_t hits =
        cache_.lookup(std::span(s.hashes).first(std::min<size_t>(hashable, s.hashes.size())));
    const uint32_t cached = hits * options_.block_size;
    uint32_t need = total - cached;
    if (options_.long_prefill_threshold > 0) need = std::min(need, options_.long_prefill_threshold);
    need = std::min(need, budget);
    const uint32_t blocks = (cached + need + options_.block_size - 1) / options_.block_size;
    if (!cache_.acquire(s.hashes, hits, blocks - hits, s.blocks)) return;

    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
    running_.push_back(&s);
    s.running = true;
    s.computed = cached;
    s.published = hits;
    s.scheduled_at = start;
    if (s.preemptions == 0) {
      s.cached = cached;
      stats_.prefix_queries += total;
      stats_.prefix_hits += cached;
    }
    if (s.adapter >= 0) {
      Adapter& adapter = adapters_[static_cast<size_t>(s.adapter)];
      --adapter.waiting;
      ++adapter.running;
      adapters_changed_ = true;
      load += use_adapter(s.adapter);
    }
    schedule(s, need, work);
    budget -= need;
  }
}

bool EngineModel::adapter_fits(int adapter) const {
  return adapters_[static_cast<size_t>(adapter)].step == step_ || adapters_in_step_ < options_.max_adapters;
}

// Counts the adapter into this step and returns what loading it costs.
Duration EngineModel::use_adapter(int index) {
  Adapter& adapter = adapters_[static_cast<size_t>(index)];
  if (adapter.step != step_) {
    adapter.step = step_;
    ++adapters_in_step_;
  }
  adapter.used = step_;
  Duration cost{};
  const auto bring_in = [&](bool Adapter::* held, uint32_t limit) {
    if (adapter.*held) return false;
    adapter.*held = true;
    uint32_t count = 0;
    Adapter* oldest = nullptr;
    for (Adapter& other : adapters_) {
      if (!(other.*held)) continue;
      ++count;
      if (&other != &adapter && other.step != step_ && other.running == 0 &&
          (oldest == nullptr || other.used < oldest->used))
        oldest = &other;
    }
    if (count > limit && oldest != nullptr) oldest->*held = false;
    return true;
  };
  if (bring_in(&Adapter::in_host, options_.max_host_adapters)) cost += options_.adapter_cold_load;
  if (bring_in(&Adapter::on_gpu, options_.max_adapters)) cost += options_.adapter_load;
  return cost;
}

// Blocks for the first `tokens` tokens; false, and nothing taken, when there are not enough.
bool EngineModel::grow(Sequence& s, uint32_t tokens) {
  const uint32_t blocks = (tokens + options_.block_size - 1) / options_.block_size;
  if (blocks <= s.blocks.size()) return true;
  return cache_.acquire({}, 0, blocks - static_cast<uint32_t>(s.blocks.size()), s.blocks);
}

void EngineModel::schedule(Sequence& s, uint32_t tokens, StepWork& work) {
  batch_.push_back({&s, tokens});
  work.tokens += tokens;
  if (s.computed >= s.prompt_tokens && tokens == 1) {
    work.decode_context_tokens += s.computed;
  } else {
    work.prefill_tokens += tokens;
    work.prefill_query_keys += static_cast<double>(tokens) * (s.computed + tokens / 2.0);
  }
  const uint32_t full = (s.computed + tokens) / options_.block_size;
  if (full > s.hashes.size()) extend_hashes(s);
  for (; s.published < full; ++s.published) cache_.publish(s.blocks[s.published], s.hashes[s.published]);
}

void EngineModel::preempt(Sequence& s) {
  assert(running_.back() == &s);
  running_.pop_back();
  cache_.release(s.blocks);
  s.computed = 0;
  s.published = 0;
  s.running = false;
  ++s.preemptions;
  ++stats_.preemptions;
  if (s.adapter >= 0) {
    Adapter& adapter = adapters_[static_cast<size_t>(s.adapter)];
    --adapter.running;
    ++adapter.waiting;
    adapters_changed_ = true;
  }
  waiting_.push_front(&s);
}

void EngineModel::extend_hashes(Sequence& s) {
  if (!options_.prefix_caching) {
    s.hashes.resize(s.tokens.size() / options_.block_size);
    return;
  }
  const std::span<const uint32_t> tokens(s.tokens);
  while ((s.hashes.size() + 1) * options_.block_size <= tokens.size()) {
    const uint64_t parent = s.hashes.empty() ? s.root : s.hashes.back();
    s.hashes.push_back(
        block_hash(parent, tokens.subspan(s.hashes.size() * options_.block_size, options_.block_size)));
  }
}

void EngineModel::finish_step(TimePoint end, std::vector<TokenEvent>& out) {
  step_active_ = false;
  ++stats_.steps;
  uint64_t step_tokens = 0;
  bool any_finished = false;
  for (const Scheduled& scheduled : batch_) {
    if (scheduled.sequence == nullptr) continue;
    Sequence& s = *scheduled.sequence;
    s.computed += scheduled.tokens;
    if (s.computed < s.tokens.size()) continue;

    const uint32_t token = answer_token(s.content_seed, s.generated);
    s.tokens.push_back(token);
    ++stats_.generation_tokens;
    ++step_tokens;
    if (s.generated == 0) {
      s.first_token_at = end;
      stats_.first_token_seconds.observe(seconds(s.arrived_at, end));
      stats_.prompt_tokens += s.prompt_tokens;
      stats_.prompt_tokens_cached += s.cached;
      step_tokens += s.prompt_tokens;
    } else {
      stats_.inter_token_seconds.observe(seconds(s.last_token_at, end));
    }
    s.last_token_at = end;
    const uint32_t index = s.generated++;
    FinishReason reason = FinishReason::kNone;
    if (s.generated >= s.output_tokens)
      reason = s.finish_reason;
    else if (s.tokens.size() >= options_.max_model_len)
      reason = FinishReason::kLength;
    out.push_back({s.tag, token, index, s.cached, reason, end});
    if (reason != FinishReason::kNone) {
      finish(s, reason, end);
      retire(&s);
      s.running = false;
      any_finished = true;
    }
  }
  batch_.clear();
  if (any_finished) std::erase_if(running_, [](const Sequence* s) { return !s->running; });
  stats_.step_tokens.observe(static_cast<double>(step_tokens));
}

void EngineModel::finish(Sequence& s, FinishReason reason, TimePoint at) {
  ++stats_.finished[static_cast<size_t>(reason)];
  stats_.e2e_seconds.observe(seconds(s.arrived_at, at));
  stats_.request_prompt_tokens.observe(s.prompt_tokens);
  stats_.request_generation_tokens.observe(s.generated);
  stats_.request_max_generation_tokens.observe(s.output_tokens);
  stats_.request_n.observe(s.n);
  if (s.max_tokens) stats_.request_max_tokens.observe(*s.max_tokens);
  stats_.request_preemptions.observe(s.preemptions);
  if (s.generated == 0) return;
  stats_.queue_seconds.observe(seconds(s.arrived_at, s.scheduled_at));
  stats_.prefill_seconds.observe(seconds(s.scheduled_at, s.first_token_at));
  stats_.decode_seconds.observe(seconds(s.first_token_at, s.last_token_at));
  stats_.inference_seconds.observe(seconds(s.scheduled_at, s.last_token_at));
  stats_.request_token_seconds.observe(
      s.generated > 1 ? seconds(s.first_token_at, s.last_token_at) / (s.generated - 1) : 0.0);
  stats_.request_computed_tokens.observe(s.prompt_tokens - s.cached);
}

void EngineModel::update_gauges(WallTime wall_now) {
  stats_.running = running();
  stats_.waiting_deferred = static_cast<uint32_t>(
      std::count_if(waiting_.begin(), waiting_.end(), [](const Sequence* s) { return s->deferred; }));
  stats_.waiting_capacity = waiting() - stats_.waiting_deferred;
  stats_.kv_usage_ratio = cache_.usage();
  if (options_.max_adapters == 0) return;

  if (adapters_changed_) {
    EngineStats::AdapterSeries now;
    for (const Adapter& adapter : adapters_) {
      if (adapter.running > 0) now.running += (now.running.empty() ? "" : ",") + adapter.name;
      if (adapter.waiting > 0) now.waiting += (now.waiting.empty() ? "" : ",") + adapter.name;
    }
    auto& series = stats_.adapters;
    const auto known = std::find_if(series.begin(), series.end(), [&](const auto& s) {
      return s.running == now.running && s.waiting == now.waiting;
    });
    if (known == series.end()) {
      if (series.size() >= EngineStats::kMaxAdapterSeries) series.erase(series.begin());
      series.push_back(std::move(now));
      stats_.live_adapters = series.size() - 1;
    } else {
      stats_.live_adapters = static_cast<size_t>(known - series.begin());
    }
    adapters_changed_ = false;
  }
  stats_.adapters[stats_.live_adapters].updated_at = to_seconds(wall_now.time_since_epoch());
}

}  // namespace penstock::simulator
