#include "scheduling/producers/latency_models.h"

#include <algorithm>

namespace penstock::scheduling {

namespace {

constexpr double kTokenUnit = 1000.0;
constexpr size_t kUncachedTokens = 1;  // its place among the features of TTFT

std::array<double, 6> ttft_features(const LatencyInputs& in) {
  return {1.0,
          in.uncached_tokens / kTokenUnit,
          in.tokens_in_flight / kTokenUnit,
          in.waiting_requests,
          in.running_requests,
          in.kv_usage};
}
std::array<double, 4> tpot_features(const LatencyInputs& in) {
  return {1.0, in.running_requests, in.tokens_in_flight / kTokenUnit, in.kv_usage};
}

}  // namespace

LatencyModels::Prediction LatencyModels::Reader::predict(const LatencyInputs& in) const {
  Prediction out;
  if (ttft_ready()) {
    const auto features = ttft_features(in);
    out.ttft_ms = std::max(0.0, ttft_.value_at(features));
    out.ttft_error_ms = ttft_.error_at(features);
  }
  if (tpot_ready()) {
    const auto features = tpot_features(in);
    out.tpot_ms = std::max(0.0, tpot_.value_at(features));
    out.tpot_error_ms = tpot_.error_at(features);
  }
  return out;
}

double LatencyModels::Reader::prefill_ms_per_token() const {
  const double cost = ttft_.weight(kUncachedTokens);
  return ttft_ready() && cost > 2 * ttft_.weight_error(kUncachedTokens) ? cost / kTokenUnit : 0.0;
}

LatencyModels::Reader LatencyModels::reader(std::string_view endpoint_class) const {
  const std::lock_guard lock(mutex_);
  auto found = classes_.find(endpoint_class);
  if (found == classes_.end() && classes_.size() >= kMaxClasses) found = std::prev(classes_.end());
  return found == classes_.end() ? Reader() : found->second;
}

LatencyModels::Reader& LatencyModels::find(std::string_view endpoint_class) {
  const auto found = classes_.find(endpoint_class);
  if (found != classes_.end()) return found->second;
  if (classes_.size() >= kMaxClasses) return std::prev(classes_.end())->second;
  return classes_[std::string(endpoint_class)];
}

void LatencyModels::learn_ttft(std::string_view endpoint_class, const LatencyInputs& in, double ttft_ms) {
  const std::lock_guard lock(mutex_);
  find(endpoint_class).ttft_.learn(ttft_features(in), ttft_ms);
}

void LatencyModels::learn_tpot(std::string_view endpoint_class, const LatencyInputs& in, double tpot_ms) {
  const std::lock_guard lock(mutex_);
  find(endpoint_class).tpot_.learn(tpot_features(in), tpot_ms);
}

LatencyModels::Errors LatencyModels::errors() const {
  Errors out;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, model] : classes_) {
    out.ttft_ms = std::max(out.ttft_ms, model.ttft_.mean_absolute_error());
    out.tpot_ms = std::max(out.tpot_ms, model.tpot_.mean_absolute_error());
    out.ttft_standard_ms = std::max(out.ttft_standard_ms, model.ttft_.standard_error());
    out.tpot_standard_ms = std::max(out.tpot_standard_ms, model.tpot_.standard_error());
  }
  return out;
}

std::vector<LatencyModels::Learnt> LatencyModels::learnt() const {
  std::vector<Learnt> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, model] : classes_) {
    out.push_back({name,
                   model.ttft_.samples(),
                   model.tpot_.samples(),
                   model.ready(),
                   {model.ttft_.mean_absolute_error(), model.tpot_.mean_absolute_error(),
                    model.ttft_.standard_error(), model.tpot_.standard_error()}});
  }
  return out;
}

// --- RequestTracker -----------------------------------------------------------------------------------

void RequestTracker::leave(const TrackedRequest& request) {
  if (request.slot >= endpoints_.size()) return;
  OnEndpoint& on = endpoints_[request.slot];
  if (request.tpot_objective_ms > 0) {
    const auto objective = on.tpot_objectives.find(request.tpot_objective_ms);
    if (objective != on.tpot_objectives.end()) on.tpot_objectives.erase(objective);
  }
  if (on.requests > 0) --on.requests;
}

void RequestTracker::drop_oldest() {
  leave(entries_.front().request);
  index_.erase(entries_.front().number);
  entries_.pop_front();
}

bool RequestTracker::begin(uint64_t number, TrackedRequest request, TimePoint now) {
  const std::lock_guard lock(mutex_);
  while (!entries_.empty() && now - entries_.front().begun_at > ttl_) drop_oldest();
  if (index_.contains(number)) return false;
  if (entries_.size() >= kMaxRequests) drop_oldest();
  if (endpoints_.size() <= request.slot) endpoints_.resize(request.slot + size_t{1});
  OnEndpoint& on = endpoints_[request.slot];
  ++on.requests;
  if (request.tpot_objective_ms > 0) on.tpot_objectives.insert(request.tpot_objective_ms);
  entries_.push_back({number, now, std::move(request)});
  index_.emplace(number, std::prev(entries_.end()));
  return true;
}

void RequestTracker::chunk(uint64_t number, TimePoint now) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(number);
  if (found == index_.end()) return;
  TrackedRequest& request = found->second->request;
  if (request.chunks++ == 0) request.first_token_at = now;
}

std::optional<TrackedRequest> RequestTracker::end(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(number);
  if (found == index_.end()) return std::nullopt;
  TrackedRequest request = std::move(found->second->request);
  leave(request);
  entries_.erase(found->second);
  index_.erase(found);
  return request;
}

void RequestTracker::running(std::span<const EndpointSlot> slots, std::span<Running> out) const {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < slots.size(); ++i)
    out[i] = slots[i] < endpoints_.size() ? endpoints_[slots[i]].running() : Running{};
}

void RequestTracker::forget(EndpointSlot slot) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->request.slot != slot) {
      ++entry;
      continue;
    }
    index_.erase(entry->number);
    entry = entries_.erase(entry);
  }
  if (slot < endpoints_.size()) endpoints_[slot] = {};
}

std::map<EndpointSlot, RequestTracker::Running> RequestTracker::endpoints() const {
  std::map<EndpointSlot, Running> out;
  const std::lock_guard lock(mutex_);
  for (size_t slot = 0; slot < endpoints_.size(); ++slot) {
    if (endpoints_[slot].requests > 0) out[static_cast<EndpointSlot>(slot)] = endpoints_[slot].running();
  }
  return out;
}

size_t RequestTracker::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace penstock::scheduling
