#include "scheduling/admitters/latency_slo_admitter.h"
#include "scheduling/admitters/probabilistic_admitter.h"
#include "scheduling/factory.h"
#include "scheduling/filters/by_label.h"
#include "scheduling/filters/decode_filter.h"
#include "scheduling/filters/encode_filter.h"
#include "scheduling/filters/endpoint_attribute_filter.h"
#include "scheduling/filters/header_based_testing_filter.h"
#include "scheduling/filters/label_selector_filter.h"
#include "scheduling/filters/prefill_filter.h"
#include "scheduling/filters/prefix_cache_affinity_filter.h"
#include "scheduling/filters/session_affinity_filter.h"
#include "scheduling/filters/slo_headroom_tier_filter.h"
#include "scheduling/filters/topology_affinity_filter.h"
#include "scheduling/filters/utilization_filter.h"
#include "scheduling/handlers/data_parallel_profile_handler.h"
#include "scheduling/handlers/disagg_deciders.h"
#include "scheduling/handlers/disagg_profile_handler.h"
#include "scheduling/handlers/header_profile_handler.h"
#include "scheduling/handlers/single_profile_handler.h"
#include "scheduling/hooks/agent_identity.h"
#include "scheduling/hooks/destination_endpoint_served_verifier.h"
#include "scheduling/hooks/request_attribute_reporter.h"
#include "scheduling/pickers/max_score_picker.h"
#include "scheduling/pickers/near_tie_picker.h"
#include "scheduling/pickers/random_picker.h"
#include "scheduling/pickers/round_robin_picker.h"
#include "scheduling/pickers/weighted_random_picker.h"
#include "scheduling/producers/approx_prefix_cache_producer.h"
#include "scheduling/producers/burst_prefix_cache_producer.h"
#include "scheduling/producers/inflight_load_producer.h"
#include "scheduling/producers/mm_embeddings_cache_producer.h"
#include "scheduling/producers/p2p_source_producer.h"
#include "scheduling/producers/predicted_latency_producer.h"
#include "scheduling/producers/session_id_producer.h"
#include "scheduling/producers/token_producer.h"
#include "scheduling/producers/topology_extractor.h"
#include "scheduling/scheduler.h"
#include "scheduling/scorers/active_request_scorer.h"
#include "scheduling/scorers/context_length_aware.h"
#include "scheduling/scorers/endpoint_attribute_scorer.h"
#include "scheduling/scorers/expected_ttft_scorer.h"
#include "scheduling/scorers/header_label_affinity_scorer.h"
#include "scheduling/scorers/kv_cache_utilization_scorer.h"
#include "scheduling/scorers/latency_scorer.h"
#include "scheduling/scorers/load_aware_scorer.h"
#include "scheduling/scorers/lora_affinity_scorer.h"
#include "scheduling/scorers/mm_embeddings_cache_scorer.h"
#include "scheduling/scorers/multicluster_scorers.h"
#include "scheduling/scorers/no_hit_lru_scorer.h"
#include "scheduling/scorers/prefix_cache_scorer.h"
#include "scheduling/scorers/queue_scorer.h"
#include "scheduling/scorers/running_requests_size_scorer.h"
#include "scheduling/scorers/session_affinity_scorer.h"
#include "scheduling/scorers/token_load_scorer.h"
#include "scheduling/scorers/topology_affinity_scorer.h"
#include "scheduling/screeners/disaggregatedset_rollout_screener.h"

namespace penstock::scheduling {

namespace {

// A line whose parameters name other instances.
PluginDescriptor with_references(PluginDescriptor descriptor,
                                 std::vector<std::string> (*references)(const config::Node*)) {
  descriptor.references = references;
  return descriptor;
}

}  // namespace

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
      line<EndpointAttributeFilter>("endpoint-attribute-filter",
                                    "Keeps endpoints by a threshold on a scraped number.", Stability::kAlpha),
      line<PrefixCacheAffinityFilter>(
          "prefix-cache-affinity-filter",
          "Keeps endpoints that hold most of the prompt, unless they are too busy."),
      line<SessionAffinityFilter>("session-affinity-filter",
                                  "Keeps the endpoint that a request's session belongs to.",
                                  Stability::kAlpha),
      line<SessionAffinityFilter>("multicluster-session-affinity-filter",
                                  "session-affinity-filter over clusters.", Stability::kAlpha),
      line<SloHeadroomTierFilter>("slo-headroom-tier-filter",
                                  "Keeps endpoints that are expected to meet the latency objectives."),
      line<TopologyAffinityFilter>("topology-affinity-filter",
                                   "Keeps endpoints near the other half of a disaggregated request.",
                                   Stability::kAlpha),
      line<UtilizationFilter>("utilization-filter", "Keeps endpoints whose load is within limits.",
                              Stability::kAlpha),
      line<HeaderBasedTestingFilter>(
          "header-based-testing-filter",
          "Keeps the endpoints that a request header lists; for conformance tests."),
      line<MaxScorePicker>("max-score-picker", "Picks the highest total; ties at random."),
      line<NearTiePicker>("near-tie-picker",
                          "Of totals that hardly differ takes the less loaded of two drawn endpoints."),
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
      line<PrefixCacheScorer>("multicluster-prefix-cache-scorer", "prefix-cache-scorer over clusters.",
                              Stability::kAlpha),
      line<MulticlusterQueueScorer>("multicluster-queue-scorer",
                                    "Prefers clusters whose pools report short queues.", Stability::kAlpha),
      line<MulticlusterKvCacheUtilizationScorer>("multicluster-kv-cache-utilization-scorer",
                                                 "Prefers clusters whose pools report free KV cache.",
                                                 Stability::kAlpha),
      line<SessionAffinityScorer>("session-affinity-scorer",
                                  "Prefers the endpoint that a request's session belongs to.",
                                  Stability::kAlpha),
      line<HeaderLabelAffinityScorer>("header-label-affinity-scorer",
                                      "Prefers endpoints whose label equals a request header.",
                                      Stability::kAlpha),
      line<EndpointAttributeScorer>("endpoint-attribute-scorer", "Scores a scraped number linearly.",
                                    Stability::kAlpha),
      line<TopologyAffinityScorer>("topology-affinity-scorer",
                                   "Prefers endpoints near the other half of a disaggregated request.",
                                   Stability::kAlpha),
      line<MmEmbeddingsCacheScorer>("mm-embeddings-cache-scorer",
                                    "Prefers endpoints whose encoder cache holds the request's media."),
      line<LatencyScorer>("latency-scorer",
                          "Prefers endpoints by how their predicted latency meets the objectives."),
      line<ExpectedTtftScorer>("expected-ttft-scorer",
                               "Weighs saved prefill time against the expected wait, in milliseconds."),
      line<HeaderProfileHandler>("header-profile-handler", "Runs the profile that a request header names.",
                                 Stability::kAlpha),
      line<DataParallelProfileHandler>("data-parallel-profile-handler",
                                       "Names the chosen rank in a header and sends to one port."),
      with_references(line<DisaggProfileHandler>("disagg-profile-handler",
                                                 "Splits requests into encode, prefill and decode stages."),
                      &DisaggProfileHandler::references),
      with_references(line<PdProfileHandler>("pd-profile-handler",
                                             "Older handler that splits requests into prefill and decode.",
                                             Stability::kBeta, "disagg-profile-handler"),
                      &PdProfileHandler::references),
      line<DisaggHeadersHandler>("disagg-headers-handler",
                                 "Sets the headers that name prefill and encode endpoints.", Stability::kBeta,
                                 "disagg-profile-handler"),
      line<DisaggHeadersHandler>("prefill-header-handler", "Older name of disagg-headers-handler.",
                                 Stability::kBeta, "disagg-profile-handler"),
      line<AlwaysDisaggPdDecider>("always-disagg-pd-decider", "Splits off every prefill."),
      line<PrefixBasedPdDecider>("prefix-based-pd-decider",
                                 "Splits off a prefill when enough of the prompt is not cached."),
      line<AlwaysDisaggMultimodalDecider>("always-disagg-multimodal-decider",
                                          "Splits off the encoding of every request with media."),
      line<SingleProfileHandler>("single-profile-handler", "Runs the only profile."),
      line<ApproxPrefixCacheProducer>(
          ApproxPrefixCacheProducer::kType,
          "How much of the prompt each endpoint holds, from the requests sent there."),
      line<ApproxPrefixCacheProducer>("multicluster-approx-prefix-cache-producer",
                                      "approx-prefix-cache-producer over clusters.", Stability::kAlpha),
      line<BurstPrefixCacheProducer>(
          BurstPrefixCacheProducer::kType,
          "Sends requests of one moment that have the same prompt to the same endpoint.", Stability::kAlpha),
      line<MmEmbeddingsCacheProducer>(
          "mm-embeddings-cache-producer",
          "Which of the request's media items each endpoint has encoded, from the requests sent there."),
      line<SessionIdProducer>("session-id-producer", "The request's session id, from a header or a cookie."),
      line<PredictedLatencyProducer>("predicted-latency-producer",
                                     "Expected latency on each endpoint against the request's objectives."),
      line<P2pSourceProducer>("p2p-source-producer",
                              "Names an endpoint that cached prefix can be pulled from.", Stability::kAlpha),
      line<TopologyExtractor>("topology-extractor", "Where each endpoint runs, from its labels.",
                              Stability::kAlpha),
      line<LatencySloAdmitter>("latency-slo-admitter",
                               "Refuses sheddable requests whose latency objectives nobody can meet."),
      line<ProbabilisticAdmitter>("probabilistic-admitter",
                                  "Refuses sheddable requests ever more likely as the pool fills."),
      line<DisaggregatedSetRolloutScreener>("disaggregatedset-rollout-screener",
                                            "Keeps a request within one revision of a rollout.",
                                            Stability::kAlpha),
      line<AgentIdentity>("agent-identity", "Recognises a client's agent session by its headers.",
                          Stability::kAlpha),
      line<RequestAttributeReporter>("request-attribute-reporter",
                                     "Reports a number about an answer's tokens to the data plane."),
      line<DestinationEndpointServedVerifier>(
          "destination-endpoint-served-verifier",
          "Tells the client which endpoint the data plane used; for conformance tests."),
      line<InflightLoadProducer>("inflight-load-producer",
                                 "Requests and tokens in flight on each endpoint, and what a request adds."),
      line<TokenProducer>("token-producer", "The prompt as tokens, estimated from its text."),
      line<TokenProducer>("tokenizer", "Older name of token-producer.", Stability::kBeta, "token-producer"),
  };
  return kPlugins;
}

}  // namespace penstock::scheduling
