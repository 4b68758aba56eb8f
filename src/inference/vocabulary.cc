#include <algorithm>

#include "inference/decision.h"
#include "inference/freshness.h"
#include "inference/request.h"
#include "inference/signals.h"

namespace penstock {

std::string_view api_kind_name(ApiKind kind) {
  switch (kind) {
    case ApiKind::kNone:
      return "none";
    case ApiKind::kCompletions:
      return "completions";
    case ApiKind::kChatCompletions:
      return "chat_completions";
    case ApiKind::kResponses:
      return "responses";
    case ApiKind::kConversations:
      return "conversations";
    case ApiKind::kEmbeddings:
      return "embeddings";
    case ApiKind::kImagesGenerations:
      return "images_generations";
    case ApiKind::kMessages:
      return "messages";
    case ApiKind::kCountTokens:
      return "count_tokens";
    case ApiKind::kVllmGenerate:
      return "vllm_generate";
    case ApiKind::kSglangGenerate:
      return "sglang_generate";
    case ApiKind::kVllmGrpcGenerate:
      return "vllm_grpc_generate";
    case ApiKind::kVllmGrpcEmbed:
      return "vllm_grpc_embed";
    case ApiKind::kVertexChatCompletions:
      return "vertex_chat_completions";
    case ApiKind::kVertexRawPredict:
      return "vertex_raw_predict";
  }
  return "none";
}

std::string_view signal_state_name(SignalState state) {
  switch (state) {
    case SignalState::kNeverSeen:
      return "never_seen";
    case SignalState::kFresh:
      return "fresh";
    case SignalState::kStale:
      return "stale";
    case SignalState::kNameMissing:
      return "name_missing";
    case SignalState::kEndpointDown:
      return "endpoint_down";
  }
  return "never_seen";
}

std::string_view signal_name(Signal signal) {
  switch (signal) {
    case Signal::kWaitingRequests:
      return "waiting_requests";
    case Signal::kRunningRequests:
      return "running_requests";
    case Signal::kKvUsage:
      return "kv_usage_ratio";
    case Signal::kCacheBlockSize:
      return "cache_block_size";
    case Signal::kCacheNumBlocks:
      return "cache_num_blocks";
  }
  return "";
}

std::string_view signal_unit(Signal signal) {
  switch (signal) {
    case Signal::kWaitingRequests:
    case Signal::kRunningRequests:
      return "requests";
    case Signal::kKvUsage:
      return "ratio";
    case Signal::kCacheBlockSize:
      return "tokens";
    case Signal::kCacheNumBlocks:
      return "blocks";
  }
  return "";
}

std::string_view fallback_state_name(FallbackState state) {
  switch (state) {
    case FallbackState::kNone:
      return "none";
    case FallbackState::kNoFreshSignals:
      return "no_fresh_signals";
    case FallbackState::kTooFewFreshSignals:
      return "too_few_fresh_signals";
    case FallbackState::kProducerFailed:
      return "producer_failed";
    case FallbackState::kNoEndpoint:
      return "no_endpoint";
    case FallbackState::kAllEjected:
      return "all_ejected";
    case FallbackState::kAllAsleep:
      return "all_asleep";
    case FallbackState::kOverTime:
      return "over_time";
  }
  return "none";
}

std::string_view simple_choice_name(SimpleChoice choice) {
  switch (choice) {
    case SimpleChoice::kNone:
      return "none";
    case SimpleChoice::kLeastInFlight:
      return "least-in-flight";
    case SimpleChoice::kRoundRobin:
      return "round-robin";
  }
  return "none";
}

double Freshness::influence(const SignalView& signals, SignalSet set, Candidate candidate,
                            TimePoint now) const {
  double least = 1.0;
  for (size_t i = 0; i < kSignalCount; ++i) {
    if ((set >> i & 1U) != 0) {
      least = std::min(least, influence(signals, static_cast<Signal>(i), candidate, now));
    }
  }
  if ((set & kAdapterBit) != 0) {
    const LoraSignal& lora = *signals.lora[candidate];
    least = std::min(
        least, is_known(lora.state, lora.observed_at) ? adapters().influence(now - lora.observed_at) : 0.0);
  }
  return least;
}

std::string_view picked_as_name(PickedAs as) {
  switch (as) {
    case PickedAs::kHealthy:
      return "healthy";
    case PickedAs::kTrial:
      return "trial";
    case PickedAs::kLastResort:
      return "last_resort";
    case PickedAs::kHolder:
      return "holder";
    case PickedAs::kSession:
      return "session";
  }
  return "healthy";
}

bool LoraSignal::is_running(uint64_t name_hash) const {
  return std::binary_search(running.begin(), running.begin() + running_count, name_hash);
}

bool LoraSignal::is_waiting(uint64_t name_hash) const {
  return std::binary_search(waiting.begin(), waiting.begin() + waiting_count, name_hash);
}

void SignalView::resize(size_t endpoints) {
  for (auto& column : value) column.assign(endpoints, 0);
  for (auto& column : observed_at) column.assign(endpoints, kNever);
  for (auto& column : state) column.assign(endpoints, SignalState::kNeverSeen);
  lora_rows.assign(endpoints, LoraSignal{});
  lora.resize(endpoints);
  for (size_t i = 0; i < endpoints; ++i) lora[i] = &lora_rows[i];
  oldest.fill(kNever);
  shown_round.assign(endpoints, 0);
}

}  // namespace penstock
