// What it costs to read one request body (targets on one core: 1 KiB 1 us, 220 KB 30 us plain, 140 us rich in
// escapes) and to watch one chunk of an answer (0.3 us without rewriting).
// build/release/src/protocol/protocol_bench

#include <benchmark/benchmark.h>

#include <string>

#include "protocol/anthropic_parser.h"
#include "protocol/openai_parser.h"
#include "protocol/response_reader.h"
#include "protocol/testing.h"

namespace penstock::protocol {
namespace {

std::string repeated(std::string_view unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

constexpr std::string_view kProse = "the quick brown fox jumps over the lazy dog and runs away from it ";
constexpr std::string_view kCode = R"(  if (x == \"abc\") {\n\treturn foo(bar, 12);\n  }\n)";

std::string chat(std::string_view unit, size_t bytes, size_t messages) {
  std::string out = R"({"model":"meta-llama/Llama-3.1-8B-Instruct","messages":[)";
  for (size_t i = 0; i < messages; ++i) {
    if (i != 0) out += ',';
    out += i % 2 == 0 ? R"({"role":"user","content":")" : R"({"role":"assistant","content":")";
    out += repeated(unit, bytes / messages) + "\"}";
  }
  return out + R"(],"max_tokens":128,"temperature":0.7,"stream":true})";
}

void parse_chat(benchmark::State& state, const std::string& text) {
  const OpenAiParser parser;
  const PaddedCopy body(text);
  Arena arena;
  for (auto _ : state) {
    arena.reset();
    auto parsed = parser.parse("/v1/chat/completions", {}, body.padded(), arena);
    if (!parsed.ok()) state.SkipWithError("refused");
    benchmark::DoNotOptimize(parsed);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void ChatPlain(benchmark::State& state) {
  parse_chat(state, chat(kProse, static_cast<size_t>(state.range(0)), static_cast<size_t>(state.range(1))));
}
BENCHMARK(ChatPlain)->Args({900, 3})->Args({16000, 5})->Args({220000, 1})->Args({220000, 40});

void ChatCode(benchmark::State& state) {
  parse_chat(state, chat(kCode, static_cast<size_t>(state.range(0)), static_cast<size_t>(state.range(1))));
}
BENCHMARK(ChatCode)->Args({900, 3})->Args({16000, 5})->Args({220000, 1})->Args({220000, 40});

void TokenIds(benchmark::State& state) {
  std::string text = R"({"model":"m","prompt":[1)";
  for (int i = 0; i < 32000; ++i) text += "," + std::to_string(i * 4);
  text += "]}";
  const OpenAiParser parser;
  const PaddedCopy body(text);
  Arena arena;
  for (auto _ : state) {
    arena.reset();
    benchmark::DoNotOptimize(parser.parse("/v1/completions", {}, body.padded(), arena));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}
BENCHMARK(TokenIds);

void Rewrite(benchmark::State& state) {
  const std::string text = chat(kProse, 900, 3);
  const OpenAiParser parser;
  const PaddedCopy body(text);
  Arena parse_arena;
  const auto parsed = parser.parse("/v1/chat/completions", {}, body.padded(), parse_arena);
  Arena arena;
  for (auto _ : state) {
    arena.reset();
    benchmark::DoNotOptimize(rewrite_model(body.padded(), parsed.value(), "other-model", arena));
  }
}
BENCHMARK(Rewrite);

constexpr std::string_view kChunk =
    R"(data: {"id":"chatcmpl-9dbf6670e293bf36","object":"chat.completion.chunk","created":1795995856,"model":"tiny",)"
    R"("choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}]})"
    "\n\n";

void read_chunks(benchmark::State& state, const ResponseReader::Options& options, size_t piece_bytes) {
  ResponseReader reader(options);
  reader.begin(200, "text/event-stream; charset=utf-8", "");
  const std::string text = repeated(kChunk, 100 * kChunk.size());
  std::vector<std::string_view> out;
  size_t at = 0;
  for (auto _ : state) {
    out.clear();
    const std::string_view piece = std::string_view(text).substr(at, piece_bytes);
    reader.feed(piece, out);
    benchmark::DoNotOptimize(out.data());
    at = at + piece.size() == text.size() ? 0 : at + piece.size();
  }
}

void ChunkObserved(benchmark::State& state) {
  read_chunks(state, {.api = ApiKind::kChatCompletions}, kChunk.size());
}
BENCHMARK(ChunkObserved);
void ChunkObservedSplit(benchmark::State& state) {
  read_chunks(state, {.api = ApiKind::kChatCompletions}, kChunk.size() - 7);
}
BENCHMARK(ChunkObservedSplit);
void ChunkRestored(benchmark::State& state) {
  read_chunks(state, {.api = ApiKind::kChatCompletions, .served_model = "tiny", .client_model = "alias"},
              kChunk.size());
}
BENCHMARK(ChunkRestored);
void SixteenChunksInOnePiece(benchmark::State& state) {
  read_chunks(state, {.api = ApiKind::kChatCompletions}, 16 * kChunk.size());
}
BENCHMARK(SixteenChunksInOnePiece);

void UnaryAnswer(benchmark::State& state) {
  const std::string text = R"({"id":"x","model":"tiny","choices":[{"message":{"content":")" +
                           repeated(kProse, 4000) +
                           R"("}}],"usage":{"prompt_tokens":12,"total_tokens":18,"completion_tokens":6}})";
  std::vector<std::string_view> out;
  for (auto _ : state) {
    out.clear();
    ResponseReader reader({.api = ApiKind::kChatCompletions});
    reader.begin(200, "application/json", "");
    reader.feed(text, out);
    reader.finish(out);
    benchmark::DoNotOptimize(reader.usage());
  }
}
BENCHMARK(UnaryAnswer);

}  // namespace
}  // namespace penstock::protocol
