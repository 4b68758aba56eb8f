#include "assembly/assembly_testing.h"

namespace penstock::assembly {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DataGraphTest : public AssemblyTest {};

TEST_F(DataGraphTest, MissingProducersAreCreatedTransitively) {
  const Assembly tiered = assembled(R"(
plugins:
- {name: gpu, type: prefix-cache-scorer}
- {name: cpu, type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: cpu-prefix-cache-producer}}
- {name: cpu-prefix-cache-producer, type: approx-prefix-cache-producer}
)");
  EXPECT_THAT(created(tiered), ElementsAre("approx-prefix-cache-producer/approx-prefix-cache-producer",
                                           "token-producer/token-producer"));
  EXPECT_THAT(producers(tiered),
              ElementsAre("token-producer", "cpu-prefix-cache-producer", "approx-prefix-cache-producer"));
  const Assembly lru = assembled(
      "plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer}, "
      "{type: "
      "no-hit-lru-scorer}]\n");
  EXPECT_THAT(producers(lru), ElementsAre("token-producer", "approx-prefix-cache-producer"));
  // The reference can't load this one: UncachedRequestTokensDataKey has no default producer there.
  const Assembly tokens = assembled("plugins: [{type: token-load-scorer}]");
  EXPECT_THAT(created(tokens),
              ElementsAre("inflight-load-producer/inflight-load-producer", "token-producer/token-producer"));
  EXPECT_NE(tokens.policy->load_estimator, nullptr);
}

TEST_F(DataGraphTest, DataFlowsFromProducersToConsumers) {
  const Assembly a = assembled(R"(
plugins:
- {name: C, type: test-producer, parameters: {produces: [c], requires: [b]}}
- {name: B, type: test-producer, parameters: {produces: [b], requires: [a]}}
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: S, type: test-data-scorer, parameters: {requires: [c, a]}}
)");
  EXPECT_THAT(producers(a), ElementsAre("A", "B", "C"));
  EXPECT_THAT(a.data_keys, ElementsAre("c/test", "b/test", "a/test"));
  EXPECT_EQ(a.policy->attribute_slots, 3U);
  const auto* scorer =
      dynamic_cast<const TestDataScorer*>(a.policy->scheduler->profiles()[0].scorers[0].scorer);
  EXPECT_THAT(scorer->slots(), ElementsAre(0, 2));

  const Assembly optional = assembled(R"(
plugins:
- {name: first, type: test-producer, parameters: {produces: [x], optional: [y, nobody]}}
- {name: second, type: test-producer, parameters: {produces: [y]}}
)");
  EXPECT_THAT(producers(optional), ElementsAre("second", "first"));
  EXPECT_THAT(optional.notices, ElementsAre(HasSubstr("plugin=first/test-producer dataKey=nobody/test")));
  const Assembly circle = assembled(R"(
plugins:
- {name: first, type: test-producer, parameters: {produces: [x], optional: [y]}}
- {name: second, type: test-producer, parameters: {produces: [y], requires: [x]}}
)");
  EXPECT_THAT(producers(circle), ElementsAre("first", "second"));
}

TEST_F(DataGraphTest, DataThatCannotFlowIsRefused) {
  EXPECT_THAT(error_of(R"(
plugins:
- {name: X, type: test-producer, parameters: {produces: [x], requires: [y]}}
- {name: Y, type: test-producer, parameters: {produces: [y], requires: [x]}}
)"),
              HasSubstr("failed to load the configuration - cycle detected: graph is not a DAG: each of "
                        "X/test-producer, Y/test-producer needs another's data first"));
  EXPECT_THAT(error_of(R"(
plugins:
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: S, type: test-data-scorer, parameters: {requires: [a], asText: true}}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: a/test"));
  EXPECT_THAT(error_of(R"(
plugins:
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: S, type: test-data-scorer, parameters: {optional: [a], asText: true}}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: a/test"));
  EXPECT_THAT(
      error_of(R"(
plugins:
- {name: A, type: test-producer, parameters: {produces: [a]}}
- {name: F, type: test-fairness, parameters: {requires: [a]}}
)"),
      HasSubstr("invalid plugin layer execution order: producer A/test-producer needs to be executed before "
                "consumer F/test-fairness"));
  EXPECT_THAT(error_of("plugins: [{name: S, type: test-data-scorer, parameters: {requires: [a]}}]"),
              HasSubstr("no default producer found for missing data key a/test, consumed by S"));
  EXPECT_THAT(error_of("plugins: [{type: test-trespasser}]"),
              HasSubstr("plugin 'test-trespasser' uses data key secret/test without declaring it"));
}

TEST_F(DataGraphTest, DataOfAnotherKindIsRefusedForOptionalUsesToo) {
  EXPECT_THAT(error_of(R"(
plugins:
- {type: inflight-load-producer}
- type: endpoint-attribute-scorer
  parameters:
    attributeKey: InFlightLoadDataKey
    producer: inflight-load-producer
    algorithm: {type: linear_lower_is_better}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: "
                        "InFlightLoadDataKey/inflight-load-producer"));
  EXPECT_THAT(error_of(R"(
plugins:
- {type: p2p-source-producer}
- type: session-affinity-scorer
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{attribute: best-match, producer: p2p-source-producer}]}
)"),
              HasSubstr("data type mismatch between produced and consumed data for key: "
                        "best-match/p2p-source-producer"));
}

}  // namespace
}  // namespace penstock::assembly
