// First byte: settings of the door and how the stream ends. Then messages, each with its length in two bytes,
// little-endian. Whatever comes: every answer is a ProcessingResponse, a side's body ends at most once, and
// nothing is held when the stream is gone.

#include <cstdint>
#include <cstdlib>

#include "extproc/testing.h"
#include "protocol/openai_parser.h"
#include "protocol/passthrough_parser.h"

namespace {

using namespace penstock;
using namespace penstock::extproc;

void require(bool what) {
  if (!what) std::abort();
}

struct Sides {
  size_t request_ends = 0;
  size_t response_ends = 0;
  size_t immediate = 0;
};

void check(Answers& answers, Sides& sides) {
  for (const auto message : answers.messages()) {
    std::string bytes;
    for (const std::string_view piece : message) bytes += piece;
    envoy::service::ext_proc::v3::ProcessingResponse response;
    require(response.ParseFromString(bytes));
    require(response.response_case() != 0);
    require(sides.immediate == 0);
    sides.immediate += response.has_immediate_response() ? 1 : 0;
    if (response.has_request_body()) {
      require(sides.request_ends == 0 ||
              !response.request_body().response().body_mutation().has_streamed_response());
      sides.request_ends +=
          response.request_body().response().body_mutation().streamed_response().end_of_stream() ? 1 : 0;
    }
    if (response.has_response_body()) {
      require(sides.response_ends == 0 ||
              !response.response_body().response().body_mutation().has_streamed_response());
      sides.response_ends +=
          response.response_body().response().body_mutation().streamed_response().end_of_stream() ? 1 : 0;
    }
    for (const auto& option : response.request_headers().response().header_mutation().set_headers()) {
      for (const char c : option.header().raw_value()) require(c >= ' ' && c != '\x7f');
    }
  }
}

// The hand-written reader and protobuf agree on what a message is.
void compare(std::string_view bytes) {
  Incoming in;
  envoy::service::ext_proc::v3::ProcessingRequest request;
  if (!decode(bytes, in) || !request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const int part = in.part == Part::kNothing ? 0 : static_cast<int>(in.part) + 1;
  require(part == static_cast<int>(request.request_case()));
  require(in.observability_mode == request.observability_mode());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::extproc::testing;
  if (size == 0) return 0;
  const uint8_t flags = data[0];
  DoorOptions options;
  options.body_bytes = 4096;
  options.header_bytes = 2048;
  options.buffered_bytes = 4096;
  options.piece_bytes = (flags & 1U) != 0 ? 7 : 62000;
  options.emit_scores = (flags & 2U) != 0;
  options.response_phase = (flags & 4U) != 0 ? penstock::extproc::ResponsePhase::kNever
                                             : penstock::extproc::ResponsePhase::kAlways;
  options.json_errors = (flags & 8U) != 0;
  DoorBench bench(options);
  if ((flags & 16U) != 0) bench.add_endpoints(2);
  if ((flags & 32U) != 0) {
    penstock::director::RewriteObject object;
    object.rules.push_back({{}, true, {{"t\x01\"", {}}}});
    auto rules = std::make_shared<penstock::director::PoolRules>();
    rules->rewrites = penstock::director::RewriteTable({object});
    bench.pool.rules.publish(rules);
  }
  static const penstock::protocol::OpenAiParser openai;
  static const penstock::protocol::PassthroughParser passthrough;
  const penstock::protocol::RequestParser* parsers[] = {&openai, &passthrough};
  bench.policy.policy->parsers = std::make_unique<penstock::protocol::ParserTable>(parsers);
  {
    Processor processor(bench.part());
    Answers answers;
    Sides sides;
    size_t at = 1;
    Processor::Next next = Processor::Next::kRead;
    while (at + 2 <= size && next == Processor::Next::kRead) {
      const size_t length =
          std::min<size_t>(data[at] | static_cast<size_t>(data[at + 1]) << 8U, size - at - 2);
      const std::string message(reinterpret_cast<const char*>(data) + at + 2, length);
      at += 2 + length;
      compare(message);
      answers.clear();
      next = processor.message(message, answers);
      check(answers, sides);
      processor.sent();
    }
    if (next == Processor::Next::kRead && processor.waits_for_request() && (flags & 64U) != 0) {
      answers.clear();
      next = processor.overdue(answers);
      check(answers, sides);
    }
    require((next == Processor::Next::kFail) == !processor.failure().ok());
  }
  bench.part().credits.clear();
  require(bench.all_load() == 0);
  require(bench.core->bodies.held() == 0);
  require(bench.core->active.load() == 0);
  require(bench.core->undecided.load() == 0);
  require(bench.core->credits.load() == 0);
  return 0;
}
