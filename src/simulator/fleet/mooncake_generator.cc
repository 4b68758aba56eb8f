#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <tuple>

#include "simulator/fleet/draws.h"
#include "simulator/fleet/generators.h"

namespace penstock::simulator {

namespace {

constexpr uint32_t kBlockTokens = 512;

// What is known of one trace, from its own figures and, where those are lacking, from the conversation's.
struct Shape {
  double rate;  // requests a second
  Knots input;  // tokens, all turns
  Knots output;
  Knots gap;                      // seconds since the turn before
  Knots growth;                   // tokens since the turn before
  std::array<double, 12> depths;  // requests at turn 1, 2, ...
  double deeper;                  // share that goes on beyond the twelfth
  size_t max_depth;
  double input_factor;  // on the length of first turns: later ones are longer
  double output_factor;
  double chain_from;                 // first turns with followers lie above this quantile of length,
  double single_to;                  // those without below this one
  bool long_gaps_for_long;           // long prompts come back later
  std::span<const double> clusters;  // shares of the texts that prompts begin with; empty: none
  uint32_t cluster_blocks;
};

constexpr std::array<double, 1> kOneCluster = {1.0};
constexpr std::array<double, 3> kToolClusters = {0.46, 0.39, 0.15};

const Shape& shape_of(MooncakeTrace trace) {
  static const Shape kConversation{
      .rate = 3.40,
      .input = {891, 894, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 121301, 126195},
      .output = {1, 3, 10, 24, 156, 350, 472, 597, 698, 1119, 2000, 2000},
      .gap = {0, 12, 27, 42, 66, 123, 270, 480, 612, 1470, 2667, 3030},
      .growth = {-416, 0, 20, 64, 263, 473, 864, 4699, 7583, 17030, 38860, 91918},
      .depths = {8028, 2048, 805, 398, 219, 133, 87, 64, 48, 42, 29, 24},
      .deeper = 0.8,
      .max_depth = 43,
      .input_factor = 0.87,
      .output_factor = 1,
      .chain_from = 0,
      .single_to = 1,
      .long_gaps_for_long = false,
      .clusters = kOneCluster,
      .cluster_blocks = 1};
  static const Shape kSynthetic{
      .rate = 3.91,
      .input = {13, 16, 22, 30, 277, 11587, 23175, 38611, 48905, 66456, 191373, 191378},
      .output = {1, 2, 2, 4, 11, 69, 250, 389, 519, 768, 813, 893},
      .gap = {0, 0, 2, 4, 14, 53, 147, 296, 420, 609, 790, 822},
      .growth = {-460, -209, -57, -12, -3, 1, 9, 146, 458, 980, 1840, 1919},
      .depths = {2549, 368, 244, 198, 165, 127, 84, 61, 41, 30, 25, 22},
      .deeper = 0.85,
      .max_depth = 24,
      .input_factor = 1.05,
      .output_factor = 1,
      .chain_from = 0.45,
      .single_to = 0.6,
      .long_gaps_for_long = true,
      .clusters = {},
      .cluster_blocks = 0};
  // Known are the averages (8,596 / 182 tokens), the cache ratio and the three clusters.
  static const Shape kToolAgent = [] {
    Shape shape = kConversation;
    shape.rate = 6.67;
    shape.input_factor = 0.53;
    shape.output_factor = 0.54;
    shape.clusters = kToolClusters;
    shape.cluster_blocks = 6;
    return shape;
  }();
  switch (trace) {
    case MooncakeTrace::kConversation:
      return kConversation;
    case MooncakeTrace::kSynthetic:
      return kSynthetic;
    case MooncakeTrace::kToolAgent:
      break;
  }
  return kToolAgent;
}

struct Turn {
  double at = 0;  // seconds
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 1;
  uint32_t conversation = 0;
  uint32_t number = 0;  // in its conversation
  std::vector<uint32_t> blocks;
};

class Generator {
 public:
  Generator(const Shape& shape, size_t requests, uint64_t seed)
      : shape_(shape),
        requests_(requests),
        random_(seed),
        seconds_(static_cast<double>(requests) / shape.rate) {}

  std::vector<Turn> run() {
    plan_chains();
    next_block_ = static_cast<uint32_t>(shape_.clusters.size() * shape_.cluster_blocks);
    for (uint32_t chain = 0; chain < depths_.size(); ++chain) converse(chain);
    // The plan comes within some requests of the number: the rest are single questions.
    while (turns_.size() < requests_) {
      depths_.push_back(1);
      lengths_.push_back(random_.uniform() * shape_.single_to);
      converse(static_cast<uint32_t>(depths_.size() - 1));
    }
    std::sort(turns_.begin(), turns_.end(), [](const Turn& a, const Turn& b) {
      return std::tie(a.at, a.conversation, a.number) < std::tie(b.at, b.conversation, b.number);
    });
    turns_.resize(std::min(turns_.size(), requests_));
    return std::move(turns_);
  }

 private:
  // Depths and first lengths are laid out evenly over their distributions and shuffled, so that a seed
  // changes which conversation is long, and hardly how many are.
  void plan_chains() {
    double sum = shape_.depths.back() * shape_.deeper / (1 - shape_.deeper);
    for (const double count : shape_.depths) sum += count;
    const auto chains = static_cast<size_t>(
        std::max(1.0, std::round(static_cast<double>(requests_) * shape_.depths[0] / sum)));
    for (size_t i = 0; i < chains; ++i)
      depths_.push_back(depth_at((static_cast<double>(i) + 0.5) / static_cast<double>(chains)));
    shuffle(depths_, random_);
    lengths_.resize(chains);
    lay_out(true, shape_.chain_from, 1);
    lay_out(false, 0, shape_.single_to);
  }

  size_t depth_at(double share) const {
    size_t depth = 1;
    double reach = 1;
    while (depth < shape_.max_depth) {
      reach = depth < shape_.depths.size() ? shape_.depths[depth] / shape_.depths[0] : reach * shape_.deeper;
      if (share >= reach) break;
      ++depth;
    }
    return depth;
  }

  void lay_out(bool with_followers, double from, double to) {
    std::vector<size_t> chains;
    for (size_t i = 0; i < depths_.size(); ++i) {
      if ((depths_[i] > 1) == with_followers) chains.push_back(i);
    }
    shuffle(chains, random_);
    for (size_t i = 0; i < chains.size(); ++i) {
      const double place = (static_cast<double>(i) + random_.uniform()) / static_cast<double>(chains.size());
      lengths_[chains[i]] = from + (to - from) * place;
    }
  }

  double draw_gap(double length) {
    if (!shape_.long_gaps_for_long) return draw(shape_.gap, random_);
    const double a = random_.uniform();
    const double b = random_.uniform();
    const bool is_long = length > (1 + shape_.chain_from) / 2;
    return quantile(shape_.gap, is_long ? std::max(a, b) : std::min(a, b));
  }

  void converse(uint32_t chain) {
    std::vector<double> gaps(depths_[chain] - 1);
    double span = 0;
    for (double& gap : gaps) span += gap = draw_gap(lengths_[chain]);
    // A conversation that the window cut short is not in the histogram.
    const double fit = std::min(1.0, 0.95 * seconds_ / std::max(span, 1e-9));
    double at = random_.uniform() * std::max(0.0, seconds_ - span * fit);
    double length = quantile(shape_.input, lengths_[chain]) * shape_.input_factor;
    std::vector<uint32_t> kept = opening();
    const auto shortest =
        std::max<double>(shape_.input.front(), static_cast<double>(kept.size()) * kBlockTokens);
    for (size_t turn = 0; turn < depths_[chain]; ++turn) {
      if (turn > 0) {
        at += gaps[turn - 1] * fit;
        length += draw(shape_.growth, random_);
      }
      length = std::clamp(length, shortest, shape_.input.back());
      Turn made;
      made.at = at;
      made.conversation = chain;
      made.number = static_cast<uint32_t>(turn);
      made.input_tokens = static_cast<uint32_t>(length);
      made.output_tokens = static_cast<uint32_t>(
          std::max(1.0, std::round(draw(shape_.output, random_) * shape_.output_factor)));
      const size_t full = made.input_tokens / kBlockTokens;
      if (kept.size() > full) kept.resize(full);
      made.blocks = kept;
      while (made.blocks.size() * kBlockTokens < made.input_tokens) made.blocks.push_back(next_block_++);
      kept.assign(made.blocks.begin(), made.blocks.begin() + static_cast<std::ptrdiff_t>(full));
      turns_.push_back(std::move(made));
    }
  }

  std::vector<uint32_t> opening() {
    std::vector<uint32_t> blocks;
    if (shape_.clusters.empty()) return blocks;
    double share = random_.uniform();
    uint32_t cluster = 0;
    while (cluster + 1 < shape_.clusters.size() && share >= shape_.clusters[cluster])
      share -= shape_.clusters[cluster++];
    for (uint32_t i = 0; i < shape_.cluster_blocks; ++i)
      blocks.push_back(cluster * shape_.cluster_blocks + i);
    return blocks;
  }

  const Shape& shape_;
  const size_t requests_;
  Random random_;
  const double seconds_;
  std::vector<size_t> depths_;   // turns, by conversation
  std::vector<double> lengths_;  // quantile of the first turn's length, by conversation
  uint32_t next_block_ = 0;
  std::vector<Turn> turns_;
};

}  // namespace

Workload generate_mooncake(MooncakeTrace trace, size_t requests, uint64_t seed) {
  Workload out;
  for (const Turn& turn : Generator(shape_of(trace), requests, seed).run()) {
    FleetRequest request;
    request.at = Duration(static_cast<int64_t>(turn.at * 1e9));
    request.output_tokens = turn.output_tokens;
    request.session = turn.conversation;
    out.requests.push_back(request);
    uint32_t left = turn.input_tokens;
    for (const uint32_t block : turn.blocks) {
      out.add_piece({block, std::min(left, kBlockTokens)});
      left -= std::min(left, kBlockTokens);
    }
  }
  return out;
}

}  // namespace penstock::simulator
