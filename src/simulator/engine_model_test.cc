#include "simulator/engine_model.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "simulator/tokenizer.h"

namespace penstock::simulator {
namespace {

using namespace std::chrono_literals;

std::vector<uint32_t> prompt_of(uint32_t tokens, uint32_t salt = 0) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < tokens; ++i) out.push_back(1000 * (salt + 1) + i);
  return out;
}

// Drives a model on a manual clock to its next events.
struct Bench {
  explicit Bench(const EngineModel::Options& options) : model(options) {}

  EngineModel::Sequence* add(std::span<const uint32_t> prompt, uint32_t outputs, uint64_t tag,
                             int adapter = -1) {
    model.advance(clock.now(), clock.wall_now(), events);
    SequenceSpec spec;
    spec.tag = tag;
    spec.prompt = prompt;
    spec.output_tokens = outputs;
    spec.adapter = adapter;
    spec.root = static_cast<uint64_t>(adapter + 1);
    spec.content_seed = tag;
    return model.add(spec, clock.now());
  }
  // Ends the current step (or begins one).
  bool step() {
    const auto next = model.next_event();
    if (!next) return false;
    if (*next > clock.now()) clock.set(*next);
    model.advance(clock.now(), clock.wall_now(), events);
    return true;
  }
  void run() {
    while (step()) {
    }
  }
  double first_token_ms(uint64_t tag) const {
    for (const TokenEvent& e : events)
      if (e.tag == tag) return to_millis(e.at - start);
    return -1;
  }
  uint32_t tokens(uint64_t tag) const {
    uint32_t count = 0;
    for (const TokenEvent& e : events) count += e.tag == tag ? 1 : 0;
    return count;
  }
  uint32_t cached(uint64_t tag) const {
    for (const TokenEvent& e : events)
      if (e.tag == tag) return e.cached_tokens;
    return 0;
  }

  ManualClock clock;
  TimePoint start = clock.now();
  EngineModel model;
  std::vector<TokenEvent> events;
};

EngineModel::Options small() {
  EngineModel::Options options;
  options.block_size = 16;
  options.num_blocks = 1001;
  options.max_sequences = 4;
  options.max_batched_tokens = 512;
  options.max_model_len = 8192;
  options.step_time = StepTime(10.0, 1000.0);  // 10 ms a step and 1 ms a prompt token
  return options;
}

TEST(EngineModel, FirstTokenComesAfterOneStepPerChunkAndThePrefillOfTheWholePrompt) {
  Bench bench(small());
  bench.add(prompt_of(100), 1, 1);
  bench.run();
  EXPECT_DOUBLE_EQ(bench.first_token_ms(1), 110);

  Bench chunked(small());
  chunked.add(prompt_of(1000), 1, 1);  // 512 + 488
  chunked.run();
  EXPECT_DOUBLE_EQ(chunked.first_token_ms(1), 1020);
}

TEST(EngineModel, EveryFurtherTokenTakesOneStep) {
  Bench bench(small());
  bench.add(prompt_of(10), 5, 1);
  bench.run();
  ASSERT_EQ(bench.events.size(), 5U);
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(bench.events[i].at - bench.events[i - 1].at, 10ms);
  EXPECT_EQ(bench.events.back().finish, FinishReason::kLength);
  EXPECT_EQ(bench.model.stats().generation_tokens, 5U);
  EXPECT_EQ(bench.model.stats().prompt_tokens, 10U);
}

TEST(EngineModel, ARepeatedPromptOnlyComputesItsLastBlock) {
  Bench bench(small());
  const auto prompt = prompt_of(64);
  bench.add(prompt, 1, 1);
  bench.run();
  bench.start = bench.clock.now();
  bench.add(prompt, 1, 2);
  bench.run();
  EXPECT_EQ(bench.cached(2), 48U);  // 3 whole blocks: the last token is always computed
  EXPECT_DOUBLE_EQ(bench.first_token_ms(2), 26);
  EXPECT_EQ(bench.model.stats().prefix_queries, 128U);
  EXPECT_EQ(bench.model.stats().prefix_hits, 48U);
}

TEST(EngineModel, AnswersReturnAsCachedPromptOfTheNextTurn) {
  Bench bench(small());
  auto prompt = prompt_of(40);
  bench.add(prompt, 40, 1);
  bench.run();
  for (const TokenEvent& e : bench.events) prompt.push_back(e.token);
  prompt.push_back(7);
  bench.add(prompt, 1, 2);
  bench.run();
  EXPECT_EQ(bench.cached(2), 64U);  // 79 of 80 tokens have KV entries: 4 whole blocks
}

TEST(EngineModel, TheSamePromptUnderAnotherRootSharesNothing) {
  Bench bench(small());
  const auto prompt = prompt_of(64);
  const int adapter = bench.model.add_adapter("sql");
  bench.add(prompt, 1, 1);
  bench.run();
  bench.add(prompt, 1, 2, adapter);
  bench.run();
  EXPECT_EQ(bench.cached(2), 0U);
}

TEST(EngineModel, TheOldestTailBlocksAreEvictedFirst) {
  auto options = small();
  options.block_size = 4;
  options.num_blocks = 7;  // 6 usable
  Bench bench(options);
  const auto r1 = prompt_of(10);
  bench.add(r1, 3, 1);
  bench.run();
  EXPECT_EQ(bench.model.cache().cached(), 3U);  // two of the prompt, one filled by decoding
  bench.add(r1, 3, 2);
  bench.run();
  EXPECT_EQ(bench.cached(2), 8U);
  const auto foreign = prompt_of(13, 5);
  bench.add(foreign, 1, 3);
  bench.run();
  EXPECT_EQ(bench.model.cache().evictions(), 2U);
  bench.add(r1, 1, 4);
  bench.run();
  EXPECT_EQ(bench.cached(4), 8U);  // the head of the prompt survived
}

TEST(EngineModel, AQueueFormsAboveMaxSequencesAndIsServedInOrder) {
  Bench bench(small());
  for (uint64_t tag = 1; tag <= 6; ++tag) bench.add(prompt_of(10, static_cast<uint32_t>(tag)), 3, tag);
  bench.step();
  bench.step();
  EXPECT_EQ(bench.model.stats().running, 4U);
  EXPECT_EQ(bench.model.stats().waiting_capacity, 2U);
  bench.run();
  EXPECT_EQ(bench.model.stats().running, 0U);
  EXPECT_EQ(bench.model.stats().waiting_capacity, 0U);
  EXPECT_GT(bench.first_token_ms(5), bench.first_token_ms(4));
  EXPECT_EQ(bench.model.stats().finished[static_cast<size_t>(FinishReason::kLength)], 6U);
}

TEST(EngineModel, ASequenceWhoseAdapterDoesNotFitIsDeferredWithoutBlockingOthers) {
  auto options = small();
  options.max_adapters = 1;
  Bench bench(options);
  const int sql = bench.model.add_adapter("sql");
  const int chat = bench.model.add_adapter("chat");
  bench.add(prompt_of(10, 1), 4, 1, sql);
  bench.add(prompt_of(10, 2), 4, 2, chat);
  bench.add(prompt_of(10, 3), 4, 3);
  bench.step();
  bench.step();
  EXPECT_EQ(bench.model.stats().waiting_deferred, 1U);
  EXPECT_EQ(bench.model.stats().running, 2U);
  const auto& series = bench.model.stats().adapters;
  EXPECT_EQ(series[bench.model.stats().live_adapters].running, "sql");
  EXPECT_EQ(series[bench.model.stats().live_adapters].waiting, "chat");
  bench.run();
  EXPECT_EQ(bench.tokens(2), 4U);
  EXPECT_EQ(series[bench.model.stats().live_adapters].running, "");
  EXPECT_GE(series.size(), 3U);  // older combinations stay
}

TEST(EngineModel, LoadingAnAdapterLengthensTheStepOnce) {
  auto options = small();
  options.max_adapters = 1;
  options.adapter_load = 50ms;
  Bench bench(options);
  const int sql = bench.model.add_adapter("sql");
  bench.add(prompt_of(10, 1), 1, 1, sql);
  bench.run();
  EXPECT_DOUBLE_EQ(bench.first_token_ms(1), 70);
  EXPECT_TRUE(bench.model.adapter_resident(sql));
  bench.start = bench.clock.now();
  bench.add(prompt_of(10, 2), 1, 2, sql);
  bench.run();
  EXPECT_DOUBLE_EQ(bench.first_token_ms(2), 20);
}

TEST(EngineModel, WhenBlocksRunOutTheLastSequenceIsPreemptedAndStillEnds) {
  auto options = small();
  options.block_size = 4;
  options.num_blocks = 9;  // 32 tokens
  Bench bench(options);
  bench.add(prompt_of(8, 1), 16, 1);
  bench.add(prompt_of(8, 2), 16, 2);
  bench.run();
  EXPECT_GT(bench.model.stats().preemptions, 0U);
  EXPECT_EQ(bench.tokens(1), 16U);
  EXPECT_EQ(bench.tokens(2), 16U);
  EXPECT_EQ(bench.model.cache().free(), bench.model.cache().usable());
}

TEST(EngineModel, AnAbortedSequenceFreesSlotAndBlocksAtOnce) {
  Bench bench(small());
  auto* sequence = bench.add(prompt_of(100), 1000, 1);
  bench.step();
  bench.step();
  EXPECT_GT(bench.model.stats().kv_usage_ratio, 0);
  bench.model.abort(sequence, bench.clock.now());
  EXPECT_EQ(bench.model.running(), 0U);
  EXPECT_EQ(bench.model.stats().kv_usage_ratio, 0);
  const size_t before = bench.events.size();
  bench.run();
  EXPECT_EQ(bench.events.size(), before);
  EXPECT_EQ(bench.model.stats().finished[static_cast<size_t>(FinishReason::kAbort)], 1U);
}

TEST(EngineModel, AFullQueueRejectsAndCounts) {
  auto options = small();
  options.max_queued_requests = 2;
  Bench bench(options);
  EXPECT_NE(bench.add(prompt_of(4, 1), 1, 1), nullptr);
  EXPECT_NE(bench.add(prompt_of(4, 2), 1, 2), nullptr);
  EXPECT_EQ(bench.add(prompt_of(4, 3), 1, 3), nullptr);
  EXPECT_EQ(bench.model.stats().rejected_requests, 1U);
}

TEST(EngineModel, APausedEngineStartsNoStepUntilResumed) {
  Bench bench(small());
  bench.model.set_paused(true);
  bench.add(prompt_of(4), 1, 1);
  EXPECT_FALSE(bench.step());
  bench.model.set_paused(false);
  bench.run();
  EXPECT_EQ(bench.tokens(1), 1U);
}

TEST(EngineModel, WithoutTimesOneCallGeneratesEverything) {
  auto options = small();
  options.step_time = StepTime(0, 0);
  Bench bench(options);
  bench.add(prompt_of(700), 20, 1);
  bench.model.advance(bench.clock.now(), bench.clock.wall_now(), bench.events);
  EXPECT_EQ(bench.tokens(1), 20U);
  EXPECT_FALSE(bench.model.next_event().has_value());
}

TEST(EngineModel, EqualCallsGiveEqualEvents) {
  const auto run = [] {
    Bench bench(small());
    for (uint64_t tag = 1; tag <= 9; ++tag)
      bench.add(prompt_of(50 * static_cast<uint32_t>(tag % 4 + 1), static_cast<uint32_t>(tag % 3)), 7, tag);
    bench.run();
    std::vector<std::tuple<uint64_t, uint32_t, int64_t>> out;
    for (const auto& e : bench.events) out.emplace_back(e.tag, e.token, e.at.time_since_epoch().count());
    return out;
  };
  EXPECT_EQ(run(), run());
}

TEST(StepTime, MatchesThePublishedWorkedValues) {
  const StepTime h100 = *StepTime::profile("llama3-8b-h100");
  StepWork decode{.requests = 1, .tokens = 1, .decode_context_tokens = 1024};
  EXPECT_NEAR(h100.milliseconds(decode), 7.585, 0.001);
  StepWork decodes{.requests = 64, .tokens = 64, .decode_context_tokens = 64 * 1024};
  EXPECT_NEAR(h100.milliseconds(decodes), 11.335, 0.001);
  StepWork prefill{
      .requests = 1, .tokens = 2048, .prefill_tokens = 2048, .prefill_query_keys = 2048.0 * 1024};
  EXPECT_NEAR(h100.milliseconds(prefill), 47.378, 0.001);
  StepWork second{.requests = 1, .tokens = 2048, .prefill_tokens = 2048, .prefill_query_keys = 2048.0 * 3072};
  EXPECT_NEAR(h100.milliseconds(second), 51.824, 0.001);
  const StepTime a100 = *StepTime::profile("llama3-8b-a100");
  EXPECT_NEAR(a100.milliseconds(prefill), 150.541, 0.001);
  StepWork large{.requests = 1, .tokens = 8192, .prefill_tokens = 8192, .prefill_query_keys = 8192.0 * 4096};
  EXPECT_NEAR(a100.milliseconds(large), 657.058, 0.01);
  EXPECT_FALSE(StepTime::profile("abacus").ok());
}

TEST(EngineModel, APromptOfOneChunkTakesThePublishedPrefillTime) {
  EngineModel::Options options;
  options.max_sequences = 256;
  options.max_batched_tokens = 2048;
  options.step_time = *StepTime::profile("llama3-8b-h100");
  Bench bench(options);
  bench.add(prompt_of(2048), 1, 1);
  bench.run();
  EXPECT_NEAR(bench.first_token_ms(1), 47.378, 0.001);
}

TEST(EngineModel, AStepTakesADayAtMost) {
  EngineModel::Options options;
  options.step_time = StepTime(1e300, 1e-300);
  Bench bench(options);
  bench.add(prompt_of(20), 1, 1);
  bench.run();
  EXPECT_EQ(bench.first_token_ms(1), 24 * 3600 * 1000.0);
}

TEST(EngineModel, DecodesComeFirstAndAPrefillGetsTheRestOfEachStep) {
  auto options = small();
  options.max_sequences = 64;
  options.max_batched_tokens = 2048;
  Bench bench(options);
  for (uint64_t tag = 1; tag <= 48; ++tag) bench.add(prompt_of(16, static_cast<uint32_t>(tag)), 100, tag);
  bench.step();
  bench.step();  // all 48 have their first token, the next step is under way
  bench.add(prompt_of(5000, 99), 1, 99);
  bench.step();
  const size_t before = bench.events.size();
  std::vector<double> step_ms;
  while (bench.tokens(99) == 0) {
    const TimePoint began = bench.clock.now();
    bench.step();
    step_ms.push_back(to_millis(bench.clock.now() - began));
  }
  EXPECT_EQ(step_ms, (std::vector<double>{2010, 2010, 1010}));  // chunks of 2000, 2000 and 1000
  EXPECT_EQ(bench.events.size() - before, 3U * 48 + 1);
}

TEST(Tokenizer, EveryTextComesBackFromItsTokens) {
  for (const std::string text :
       {"hello world", "  two  blanks\n\ttabs", "морю σα 水 🚰", "a", "", "x=1;y=\"z\""}) {
    std::vector<uint32_t> tokens;
    tokenize(text, tokens);
    std::string back;
    for (const uint32_t token : tokens) {
      EXPECT_LT(token, kVocabularySize);
      detokenize(token, back);
    }
    EXPECT_EQ(back, text);
  }
}

TEST(Tokenizer, AnswersTokeniseToTheTokensThatMadeThem) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<uint32_t> made;
    std::string text;
    for (uint32_t i = 0; i < 40; ++i) {
      made.push_back(answer_token(seed, i));
      detokenize(made.back(), text);
    }
    std::vector<uint32_t> again;
    tokenize(text, again);
    EXPECT_EQ(again, made) << text;
  }
}

TEST(Tokenizer, StrayBytesAreTokensOfTheirOwnAndPrintAsReplacements) {
  std::vector<uint32_t> tokens;
  tokenize("a\xff\xc3(", tokens);
  ASSERT_EQ(tokens.size(), 4U);
  std::string text;
  for (const uint32_t token : tokens) detokenize(token, text);
  EXPECT_EQ(text, "a\xef\xbf\xbd\xef\xbf\xbd(");
}

}  // namespace
}  // namespace penstock::simulator
