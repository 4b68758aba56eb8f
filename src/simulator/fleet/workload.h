#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace penstock::simulator {

// A stretch of a prompt: the first `tokens` tokens of the text that `id` names. Equal ids are equal texts.
// Either a text of its own (the low 32 bits of `id` count) or what an engine answered to the request whose
// answer_seed is `id`.
struct PromptPiece {
  uint64_t id = 0;
  uint32_t tokens = 0;
  bool answer = false;
};

// Who asks: an objective with its priority, on behalf of somebody.
struct FleetClass {
  std::string name;  // the objective's, too
  int priority = 0;
  std::string tenant;  // the fairness id
};

// One request to a fleet. It is sent at `at`, and not before `pause` after the answer to request `after`
// ended (a further turn of a conversation).
struct FleetRequest {
  static constexpr uint32_t kNone = UINT32_MAX;

  Duration at{};  // since the run began
  uint32_t first_piece = 0;
  uint32_t pieces = 0;
  uint32_t input_tokens = 0;   // the sum of the pieces'
  uint32_t output_tokens = 1;  // of the answer
  uint32_t session = kNone;    // conversation or user
  uint32_t after = kNone;      // an earlier index
  int32_t adapter = -1;        // of the workload's; -1: the base model
  uint32_t class_index = 0;    // where the workload has classes
  Duration pause{};
  uint64_t answer_seed = 0;  // what the answer says
};

// What a fleet is asked: plain data, made by a generator or read from a trace, the same for every policy.
struct Workload {
  std::string name;
  std::vector<PromptPiece> pieces;
  std::vector<FleetRequest> requests;  // by `at`
  std::vector<std::string> adapters;   // names of LoRA adapters that every engine has
  std::vector<FleetClass> classes;     // none: everybody is the same

  // Appends a piece to the request at the end of the list.
  void add_piece(PromptPiece piece) {
    FleetRequest& request = requests.back();
    if (request.pieces == 0) request.first_piece = static_cast<uint32_t>(pieces.size());
    pieces.push_back(piece);
    ++request.pieces;
    request.input_tokens += piece.tokens;
  }
  // The request's prompt; replaces what is in `out`.
  void tokens_of(const FleetRequest& request, std::vector<uint32_t>& out) const;

  uint64_t input_tokens() const;
  uint64_t output_tokens() const;
  // Makes everything come `factor` times as fast: arrivals and pauses. REQUIRES: factor > 0.
  void speed_up(double factor);
  // Keeps the first `count` requests.
  void keep_first(size_t count);
};

}  // namespace penstock::simulator
