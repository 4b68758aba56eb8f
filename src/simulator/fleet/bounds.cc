#include "simulator/fleet/bounds.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/hash.h"

namespace penstock::simulator {

namespace {

uint64_t edge_of(uint32_t parent, const PromptPiece& piece) {
  const uint64_t words[] = {parent, piece.id, piece.answer ? 1U : 0U};
  return XXH3_64bits(words, sizeof words);
}

double share_of(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

// Milliseconds to compute tokens [computed, total) of a prompt alone, in chunks of a step.
double prefill_ms(const EngineModel::Options& engine, uint32_t computed, uint32_t total) {
  double ms = 0;
  while (computed < total) {
    StepWork work;
    work.requests = 1;
    work.tokens = std::min(total - computed, engine.max_batched_tokens);
    work.prefill_tokens = work.tokens;
    work.prefill_query_keys = static_cast<double>(work.tokens) * (computed + work.tokens / 2.0);
    ms += engine.step_time.milliseconds(work) * engine.time_scale;
    computed += work.tokens;
  }
  return ms;
}

// When requests would arrive if answers took no time.
std::vector<Duration> earliest_arrivals(const Workload& workload) {
  std::vector<Duration> out;
  for (const FleetRequest& request : workload.requests) {
    const bool waits = request.after != FleetRequest::kNone;
    out.push_back(waits ? std::max(request.at, out[request.after] + request.pause) : request.at);
  }
  return out;
}

// The last token of a prompt is always computed, and blocks are hit as a whole.
uint32_t hit_tokens(uint32_t seen, uint32_t input, uint32_t block) {
  return std::min(seen, input - 1) / block * block;
}

}  // namespace

PromptTree::PromptTree(const Workload& workload, const FleetOptions& fleet) : workload_(workload) {
  // Answers that some prompt repeats.
  std::unordered_set<uint64_t> asked_again;
  for (const PromptPiece& piece : workload.pieces) {
    if (piece.answer) asked_again.insert(piece.id);
  }
  const std::vector<Duration> arrivals = earliest_arrivals(workload);
  tokens_.push_back(0);
  piece_nodes_.resize(workload.pieces.size());
  for (size_t index = 0; index < workload.requests.size(); ++index) {
    const FleetRequest& request = workload.requests[index];
    taken_.push_back(takes_prompt(fleet.engine, request.input_tokens));
    counts_.push_back(taken_.back() && arrivals[index] >= fleet.warm_up);
    seen_.push_back(0);
    answers_.push_back(kRoot);
    if (!taken_.back()) continue;
    if (counts_.back()) counted_tokens_ += request.input_tokens;
    uint32_t node = kRoot;
    bool all_seen = true;
    for (uint32_t i = request.first_piece; i < request.first_piece + request.pieces; ++i) {
      const PromptPiece& piece = workload.pieces[i];
      node = child(node, piece);
      piece_nodes_[i] = node;
      if (all_seen) seen_.back() += std::min(tokens_[node], piece.tokens);
      all_seen = all_seen && tokens_[node] >= piece.tokens;
      tokens_[node] = std::max(tokens_[node], piece.tokens);
    }
    if (request.output_tokens > 1 && asked_again.contains(request.answer_seed)) {
      const uint32_t answer = child(node, {request.answer_seed, 0, true});
      tokens_[answer] = std::max(tokens_[answer], request.output_tokens - 1);
      answers_.back() = answer;
    }
  }
}

uint32_t PromptTree::child(uint32_t parent, const PromptPiece& piece) {
  const auto [place, fresh] = children_.try_emplace(edge_of(parent, piece), node_count());
  if (fresh) tokens_.push_back(0);
  return place->second;
}

std::vector<uint32_t> PromptTree::path(size_t index) const {
  if (!taken_[index]) return {};
  const FleetRequest& request = workload_.requests[index];
  const auto begin = piece_nodes_.begin() + request.first_piece;
  return {begin, begin + request.pieces};
}

double clairvoyant_hit_ratio(const Workload& workload, const PromptTree& tree, uint64_t capacity_tokens) {
  constexpr uint32_t kNeverAgain = UINT32_MAX;
  const size_t count = workload.requests.size();
  // When each node that a request touches is touched again: request by request, its path and then its answer.
  std::vector<std::vector<uint32_t>> touched(count);
  std::vector<std::vector<uint32_t>> again(count);
  std::vector<uint32_t> next(tree.node_count(), kNeverAgain);
  for (size_t i = count; i-- > 0;) {
    touched[i] = tree.path(i);
    if (tree.answer_node(i) != PromptTree::kRoot) touched[i].push_back(tree.answer_node(i));
    again[i].resize(touched[i].size());
    for (size_t k = 0; k < touched[i].size(); ++k) again[i][k] = next[touched[i][k]];
    for (const uint32_t node : touched[i]) next[node] = static_cast<uint32_t>(i);
  }

  std::set<std::pair<uint32_t, uint32_t>> held;            // (needed again, node); the last one goes first
  std::vector<uint32_t> held_until(tree.node_count(), 0);  // 0: not held, else needed again + 1
  uint64_t used = 0;
  uint64_t hits = 0;
  for (size_t i = 0; i < count; ++i) {
    const FleetRequest& request = workload.requests[i];
    bool hitting = true;
    for (size_t k = 0; k < touched[i].size(); ++k) {
      const uint32_t node = touched[i][k];
      const bool is_held = held_until[node] != 0;
      hitting = hitting && is_held && k < request.pieces;
      if (hitting && tree.counts(i))
        hits += std::min(tree.tokens(node), workload.pieces[request.first_piece + k].tokens);
      if (is_held) {
        held.erase({held_until[node] - 1, node});
        used -= tree.tokens(node);
        held_until[node] = 0;
      }
      if (again[i][k] == kNeverAgain) continue;
      held.insert({again[i][k], node});
      held_until[node] = again[i][k] + 1;
      used += tree.tokens(node);
    }
    while (used > capacity_tokens && !held.empty()) {
      const auto last = std::prev(held.end());
      used -= tree.tokens(last->second);
      held_until[last->second] = 0;
      held.erase(last);
    }
  }
  return share_of(hits, tree.counted_tokens());
}

FleetBound bound_of(const Workload& workload, const FleetOptions& fleet) {
  const EngineModel::Options& engine = fleet.engine;
  FleetBound out;
  const PromptTree tree(workload, fleet);
  std::vector<double> ttft;
  uint64_t hits = 0;
  for (size_t i = 0; i < workload.requests.size(); ++i) {
    if (!tree.counts(i)) continue;
    const uint32_t input = workload.requests[i].input_tokens;
    const uint32_t hit =
        engine.prefix_caching ? hit_tokens(tree.seen_tokens(i), input, engine.block_size) : 0;
    hits += hit;
    ttft.push_back(prefill_ms(engine, hit, input));
  }
  out.hit_ratio_unlimited = share_of(hits, tree.counted_tokens());
  const uint64_t capacity = static_cast<uint64_t>(engine.num_blocks - 1) * engine.block_size * fleet.engines;
  if (engine.prefix_caching) {
    out.hit_ratio_clairvoyant =
        std::min(out.hit_ratio_unlimited, clairvoyant_hit_ratio(workload, tree, capacity));
  }
  out.ttft_ms = quantiles_of(ttft);
  return out;
}

}  // namespace penstock::simulator
