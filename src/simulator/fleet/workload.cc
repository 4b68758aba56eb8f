#include "simulator/fleet/workload.h"

#include <cmath>

#include "simulator/tokenizer.h"

namespace penstock::simulator {

namespace {

// Odd, so that different ids begin different texts and every token of a text differs from its neighbours.
constexpr uint32_t kIdStep = 0x9E3779B1U;
constexpr uint32_t kTokenStep = 0x85EBCA6BU;

Duration scaled(Duration d, double factor) {
  return Duration(std::llround(static_cast<double>(d.count()) / factor));
}

}  // namespace

void Workload::tokens_of(const FleetRequest& request, std::vector<uint32_t>& out) const {
  out.clear();
  out.reserve(request.input_tokens);
  for (uint32_t i = 0; i < request.pieces; ++i) {
    const PromptPiece& piece = pieces[request.first_piece + i];
    if (piece.answer) {
      for (uint32_t n = 0; n < piece.tokens; ++n) out.push_back(answer_token(piece.id, n));
      continue;
    }
    uint32_t token = static_cast<uint32_t>(piece.id) * kIdStep;
    for (uint32_t n = 0; n < piece.tokens; ++n, token += kTokenStep) out.push_back(token);
  }
}

uint64_t Workload::input_tokens() const {
  uint64_t sum = 0;
  for (const FleetRequest& request : requests) sum += request.input_tokens;
  return sum;
}

uint64_t Workload::output_tokens() const {
  uint64_t sum = 0;
  for (const FleetRequest& request : requests) sum += request.output_tokens;
  return sum;
}

void Workload::speed_up(double factor) {
  for (FleetRequest& request : requests) {
    request.at = scaled(request.at, factor);
    request.pause = scaled(request.pause, factor);
  }
}

void Workload::keep_first(size_t count) {
  if (count < requests.size()) requests.resize(count);
}

}  // namespace penstock::simulator
