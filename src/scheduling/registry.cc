#include "scheduling/factory.h"
#include "scheduling/filters/by_label.h"
#include "scheduling/filters/decode_filter.h"
#include "scheduling/filters/encode_filter.h"
#include "scheduling/filters/label_selector_filter.h"
#include "scheduling/filters/prefill_filter.h"
#include "scheduling/handlers/single_profile_handler.h"
#include "scheduling/pickers/max_score_picker.h"
#include "scheduling/pickers/random_picker.h"
#include "scheduling/pickers/round_robin_picker.h"
#include "scheduling/pickers/weighted_random_picker.h"
#include "scheduling/producers/approx_prefix_cache_producer.h"
#include "scheduling/producers/inflight_load_producer.h"
#include "scheduling/producers/token_producer.h"
#include "scheduling/scheduler.h"
#include "scheduling/scorers/active_request_scorer.h"
#include "scheduling/scorers/context_length_aware.h"
#include "scheduling/scorers/kv_cache_utilization_scorer.h"
#include "scheduling/scorers/load_aware_scorer.h"
#include "scheduling/scorers/lora_affinity_scorer.h"
#include "scheduling/scorers/no_hit_lru_scorer.h"
#include "scheduling/scorers/prefix_cache_scorer.h"
#include "scheduling/scorers/queue_scorer.h"
#include "scheduling/scorers/running_requests_size_scorer.h"
#include "scheduling/scorers/token_load_scorer.h"

namespace penstock::scheduling {

std::span<const PluginDescriptor> scheduling_plugins() {
  constexpr std::string_view kLabelSelector = "label-selector-filter";
  static const PluginDescriptor kPlugins[] = {
      line<LabelSelectorFilter>(kLabelSelector, "Keeps endpoints whose labels match a Kubernetes selector."),
      line<LabelSelectorFilter>("by-label-selector", "Older name of label-selector-filter.", Stability::kBeta,
                                kLabelSelector),
      line<ByLabel>("by-label", "Keeps endpoints by the value of one label.", Stability::kBeta,
                    kLabelSelector),
      line<DecodeFilter>("decode-filter", "Keeps endpoints that decode."),
      line<EncodeFilter>("encode-filter", "Keeps endpoints that encode."),
      line<PrefillFilter>("prefill-filter", "Keeps endpoints that prefill."),
      line<MaxScorePicker>("max-score-picker", "Picks the highest total; ties at random."),
      line<RandomPicker>("random-picker", "Picks at random, whatever the totals."),
      line<RoundRobinPicker>("round-robin-picker", "Picks the candidates in turn, whatever the totals."),
      line<WeightedRandomPicker>("weighted-random-picker", "Picks at random in proportion to the totals."),
      line<ActiveRequestScorer>("active-request-scorer",
                                "Prefers endpoints with few requests of ours in flight."),
      line<ContextLengthAware>("context-length-aware",
                               "Prefers endpoints whose context range fits the prompt; can drop the others."),
      line<KvCacheUtilizationScorer>("kv-cache-utilization-scorer", "Prefers endpoints with free KV cache."),
      line<LoadAwareScorer>("load-aware-scorer", "Prefers short waiting queues, against a fixed threshold."),
      line<LoraAffinityScorer>("lora-affinity-scorer",
                               "Prefers endpoints that run the request's adapter or have room for it."),
      line<NoHitLruScorer>("no-hit-lru-scorer", "Spreads prompts that nobody has cached over the endpoints."),
      line<PrefixCacheScorer>("prefix-cache-scorer",
                              "Prefers endpoints that hold the beginning of the prompt."),
      line<QueueScorer>("queue-scorer", "Prefers short waiting queues, relative to the other candidates."),
      line<RunningRequestsSizeScorer>("running-requests-size-scorer",
                                      "Prefers few running requests, relative to the other candidates."),
      line<TokenLoadScorer>("token-load-scorer", "Prefers endpoints with few tokens of ours in flight."),
      line<SingleProfileHandler>("single-profile-handler", "Runs the only profile."),
      line<ApproxPrefixCacheProducer>(
          ApproxPrefixCacheProducer::kType,
          "How much of the prompt each endpoint holds, from the requests sent there."),
      line<InflightLoadProducer>("inflight-load-producer",
                                 "Requests and tokens in flight on each endpoint, and what a request adds."),
      line<TokenProducer>("token-producer", "The prompt as tokens, estimated from its text."),
      line<TokenProducer>("tokenizer", "Older name of token-producer.", Stability::kBeta, "token-producer"),
  };
  return kPlugins;
}

}  // namespace penstock::scheduling
