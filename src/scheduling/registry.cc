#include "scheduling/factory.h"
#include "scheduling/handlers/single_profile_handler.h"
#include "scheduling/pickers/max_score_picker.h"
#include "scheduling/pickers/random_picker.h"
#include "scheduling/pickers/round_robin_picker.h"
#include "scheduling/pickers/weighted_random_picker.h"
#include "scheduling/scheduler.h"
#include "scheduling/scorers/active_request_scorer.h"
#include "scheduling/scorers/kv_cache_utilization_scorer.h"
#include "scheduling/scorers/load_aware_scorer.h"
#include "scheduling/scorers/lora_affinity_scorer.h"
#include "scheduling/scorers/prefix_cache_scorer.h"
#include "scheduling/scorers/queue_scorer.h"
#include "scheduling/scorers/running_requests_size_scorer.h"
#include "scheduling/scorers/token_load_scorer.h"

namespace penstock::scheduling {

std::span<const PluginDescriptor> scheduling_plugins() {
  static const PluginDescriptor kPlugins[] = {
      line<MaxScorePicker>("max-score-picker", "Picks the highest total; ties at random."),
      line<RandomPicker>("random-picker", "Picks at random, whatever the totals."),
      line<RoundRobinPicker>("round-robin-picker", "Picks the candidates in turn, whatever the totals."),
      line<WeightedRandomPicker>("weighted-random-picker", "Picks at random in proportion to the totals."),
      line<ActiveRequestScorer>("active-request-scorer",
                                "Prefers endpoints with few requests of ours in flight."),
      line<KvCacheUtilizationScorer>("kv-cache-utilization-scorer", "Prefers endpoints with free KV cache."),
      line<LoadAwareScorer>("load-aware-scorer", "Prefers short waiting queues, against a fixed threshold."),
      line<LoraAffinityScorer>("lora-affinity-scorer",
                               "Prefers endpoints that run the request's adapter or have room for it."),
      line<PrefixCacheScorer>("prefix-cache-scorer",
                              "Prefers endpoints that hold the beginning of the prompt."),
      line<QueueScorer>("queue-scorer", "Prefers short waiting queues, relative to the other candidates."),
      line<RunningRequestsSizeScorer>("running-requests-size-scorer",
                                      "Prefers few running requests, relative to the other candidates."),
      line<TokenLoadScorer>("token-load-scorer", "Prefers endpoints with few tokens of ours in flight."),
      line<SingleProfileHandler>("single-profile-handler", "Runs the only profile."),
  };
  return kPlugins;
}

}  // namespace penstock::scheduling
