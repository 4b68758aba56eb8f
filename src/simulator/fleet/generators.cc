#include "simulator/fleet/generators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "simulator/fleet/draws.h"

namespace penstock::simulator {

namespace {

Duration seconds(double value) {
  return Duration(static_cast<int64_t>(value * 1e9));
}

void add_request(Workload& out, double at, uint32_t output_tokens) {
  FleetRequest request;
  request.at = seconds(at);
  request.output_tokens = output_tokens;
  out.requests.push_back(request);
}

// Prompts of `groups` system prompts with `questions` fixed questions each, drawn at random, Poisson.
struct SharedPrefix {
  uint32_t groups, questions;
  uint32_t system_tokens, question_tokens, output_tokens;
  double rate;  // requests a second
};
Workload shared_prefix(const SharedPrefix& shape, size_t requests, uint64_t seed) {
  Random random(seed);
  Workload out;
  double at = 0;
  for (size_t i = 0; i < requests; ++i) {
    at += draw_exponential(random) / shape.rate;
    const uint32_t group = random.below(shape.groups);
    const uint32_t question = random.below(shape.questions);
    add_request(out, at, shape.output_tokens);
    out.add_piece({group, shape.system_tokens});
    out.add_piece({shape.groups + group * shape.questions + question, shape.question_tokens});
  }
  return out;
}

Workload precise_ladder(size_t requests, uint64_t seed) {
  return shared_prefix({150, 5, 6000, 1200, 1000, 20}, requests, seed);
}

Workload router_10k(size_t requests, uint64_t seed) {
  return shared_prefix({150, 5, 9500, 500, 1000, 10}, requests, seed);
}

Workload one_prefix(size_t requests, uint64_t seed) {
  return shared_prefix({1, 1U << 20U, 2048, 128, 128, 40}, requests, seed);
}

// The benchmark multi-round-qa: users with a history of their own ask round after round; a user's requests
// are users / rate apart, and a round does not begin before the answer to the one before has come.
Workload multi_round(size_t requests, uint64_t seed) {
  constexpr uint32_t kUsers = 320;
  constexpr uint32_t kRounds = 10;
  constexpr double kRate = 4;
  constexpr double kGap = kUsers / kRate;
  constexpr double kSpacing = kGap * (kRounds - 1) / kUsers;
  struct Ask {
    double at;
    uint32_t user, round;
  };
  std::vector<Ask> asks;
  const size_t users = (requests + kRounds - 1) / kRounds;
  for (uint32_t user = 0; user < users; ++user) {
    for (uint32_t round = 0; round < kRounds && asks.size() < requests; ++round)
      asks.push_back({user * kSpacing + round * kGap, user, round});
  }
  std::sort(asks.begin(), asks.end(), [](const Ask& a, const Ask& b) {
    return std::tie(a.at, a.user, a.round) < std::tie(b.at, b.user, b.round);
  });
  Workload out;
  std::vector<uint32_t> last(users, FleetRequest::kNone);
  const auto text = [](uint32_t user, uint32_t piece) { return uint64_t{1} + user * (kRounds + 1) + piece; };
  const auto answer = [seed](uint32_t user, uint32_t round) {
    return (seed << 32U) + user * kRounds + round;
  };
  for (const Ask& ask : asks) {
    constexpr uint32_t kAnswerTokens = 100;
    add_request(out, ask.at, kAnswerTokens);
    FleetRequest& request = out.requests.back();
    request.session = ask.user;
    request.after = last[ask.user];
    request.answer_seed = answer(ask.user, ask.round);
    last[ask.user] = static_cast<uint32_t>(out.requests.size() - 1);
    out.add_piece({0, 1000});
    out.add_piece({text(ask.user, 0), 20000});
    for (uint32_t round = 0; round <= ask.round; ++round) {
      out.add_piece({text(ask.user, round + 1), 50});
      // The engine has no KV entry for the last token of an answer.
      if (round < ask.round) out.add_piece({answer(ask.user, round), kAnswerTokens, true});
    }
  }
  return out;
}

// After inference-perf's catalog: a system prompt for all, a context for each conversation, then turns that
// repeat everything said before; people or tools take their time in between.
struct Spread {
  double mean, deviation, low, high;  // lognormal, clipped
};
struct Dialogue {
  double starts_a_second;
  uint32_t system_tokens;
  Spread context;  // tokens
  double mean_turns;
  uint32_t most_turns;
  Spread input;                        // tokens a turn
  Spread output;                       // tokens a turn
  double pause_mean, pause_deviation;  // seconds
};

Workload dialogues(const Dialogue& shape, size_t requests, uint64_t seed) {
  Random random(seed);
  const auto tokens = [&](const Spread& s) {
    return static_cast<uint32_t>(std::clamp(draw_lognormal(s.mean, s.deviation, random), s.low, s.high));
  };
  // A conversation's texts: its context, then a turn each.
  const uint64_t ids = shape.most_turns + 1;
  Workload out;
  double at = 0;
  for (uint32_t number = 0; out.requests.size() < requests; ++number) {
    at += draw_exponential(random) / shape.starts_a_second;
    const double drawn = 1 + std::floor(draw_exponential(random) * (shape.mean_turns - 0.5));
    const auto turns = static_cast<uint32_t>(std::min<double>(drawn, shape.most_turns));
    const uint64_t first_id = 1 + number * ids;
    std::vector<PromptPiece> said = {{0, shape.system_tokens}, {first_id, tokens(shape.context)}};
    for (uint32_t turn = 0; turn < turns && out.requests.size() < requests; ++turn) {
      add_request(out, at, tokens(shape.output));
      FleetRequest& request = out.requests.back();
      request.session = number;
      request.answer_seed = (seed << 32U) + first_id + turn;
      if (turn > 0) {
        request.after = static_cast<uint32_t>(out.requests.size() - 2);
        request.pause = seconds(draw_lognormal(shape.pause_mean, shape.pause_deviation, random));
      }
      said.push_back({first_id + 1 + turn, tokens(shape.input)});
      for (const PromptPiece& piece : said) out.add_piece(piece);
      said.push_back({request.answer_seed, request.output_tokens, true});
    }
  }
  return out;
}

Workload chat(size_t requests, uint64_t seed) {
  return dialogues({.starts_a_second = 1,
                    .system_tokens = 1000,
                    .context = {4000, 2500, 500, 15000},
                    .mean_turns = 4,
                    .most_turns = 15,
                    .input = {50, 40, 1, 1000},
                    .output = {300, 150, 1, 2000},
                    .pause_mean = 45,
                    .pause_deviation = 40},
                   requests, seed);
}

// The catalog's 540 turns are cut to forty.
Workload code_generation(size_t requests, uint64_t seed) {
  return dialogues({.starts_a_second = 0.02,
                    .system_tokens = 3000,
                    .context = {160000, 233600, 10000, 990000},
                    .mean_turns = 20,
                    .most_turns = 40,
                    .input = {1500, 1200, 1, 20000},
                    .output = {425, 825, 1, 8000},
                    .pause_mean = 15,
                    .pause_deviation = 55},
                   requests, seed);
}

Workload deep_research(size_t requests, uint64_t seed) {
  return dialogues({.starts_a_second = 0.1,
                    .system_tokens = 2000,
                    .context = {45000, 35000, 1000, 250000},
                    .mean_turns = 15,
                    .most_turns = 60,
                    .input = {3000, 2500, 1, 30000},
                    .output = {300, 850, 1, 8000},
                    .pause_mean = 25,
                    .pause_deviation = 12},
                   requests, seed);
}

// Azure's LLM inference trace of 2023, code: very uneven gaps, no known prefixes.
Workload azure_code(size_t requests, uint64_t seed) {
  constexpr Knots kInput = {3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437, 7437};
  constexpr Knots kOutput = {6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 825, 1899};
  constexpr double kRate = 2.57;
  constexpr double kVariation = 13.2;  // of the gaps: standard deviation over mean
  Random random(seed);
  std::vector<double> gaps(requests);
  double sum = 0;
  for (double& gap : gaps) sum += gap = draw_gamma(1 / (kVariation * kVariation), random);
  const double scale = sum > 0 ? static_cast<double>(requests) / kRate / sum : 0;
  Workload out;
  double at = 0;
  for (size_t i = 0; i < requests; ++i) {
    at += gaps[i] * scale;
    add_request(out, at, static_cast<uint32_t>(draw(kOutput, random)));
    out.add_piece({i + 1, static_cast<uint32_t>(draw(kInput, random))});
  }
  return out;
}

// Every ten seconds 160 strangers within a tenth of a second.
Workload bursts(size_t requests, uint64_t seed) {
  constexpr size_t kBurst = 160;
  Random random(seed);
  Workload out;
  for (size_t i = 0; i < requests; ++i) {
    const auto burst = static_cast<double>(i / kBurst);
    const double within = static_cast<double>(i % kBurst) / kBurst * 0.1;
    add_request(out, 1 + burst * 10 + within, 60 + random.below(80));
    out.add_piece({i + 1, 700 + random.below(600)});
  }
  return out;
}

// inference-perf's priority mix of three classes, and a tenant that sends as much as all of them together, in
// bursts.
Workload priority_mix(size_t requests, uint64_t seed) {
  constexpr double kRate = 6;
  constexpr double kBurstEvery = 10;
  constexpr uint32_t kOutput = 512;
  Random random(seed);
  Workload out;
  out.classes = {{"critical", 100, "everybody"},
                 {"normal", 0, "everybody"},
                 {"batch", -10, "everybody"},
                 {"greedy", 0, "greedy"}};
  struct Ask {
    double at;
    uint32_t of;
  };
  std::vector<Ask> asks;
  double at = 0;
  for (size_t i = 0; i < (requests + 1) / 2; ++i) {
    at += draw_exponential(random) / kRate;
    const double share = random.uniform();
    asks.push_back({at, share < 0.2 ? 0U : share < 0.8 ? 1U : 2U});
  }
  constexpr auto kBurst = static_cast<size_t>(kRate * kBurstEvery);
  for (size_t i = 0; i < requests / 2; ++i) {
    const auto burst = static_cast<double>(i / kBurst);
    asks.push_back({1 + burst * kBurstEvery + static_cast<double>(i % kBurst) / kBurst, 3});
  }
  std::sort(asks.begin(), asks.end(),
            [](const Ask& a, const Ask& b) { return std::tie(a.at, a.of) < std::tie(b.at, b.of); });
  for (const Ask& ask : asks) {
    add_request(out, ask.at, kOutput);
    out.requests.back().class_index = ask.of;
    out.add_piece({ask.of, 1000});
    out.add_piece({4 + out.requests.size(), 200 + random.below(1600)});
  }
  return out;
}

// Many adapters of one base model, the first ones asked for most, each with a system prompt of its own.
Workload adapters(size_t requests, uint64_t seed) {
  constexpr uint32_t kAdapters = 24;
  constexpr double kRate = 40;
  Random random(seed);
  Workload out;
  std::vector<double> reach;  // cumulative shares, 1 / rank
  for (uint32_t i = 0; i < kAdapters; ++i) {
    out.adapters.push_back(fmt::format("adapter-{}", i));
    reach.push_back((reach.empty() ? 0 : reach.back()) + 1.0 / (i + 1));
  }
  double at = 0;
  for (size_t i = 0; i < requests; ++i) {
    at += draw_exponential(random) / kRate;
    const double drawn = random.uniform() * reach.back();
    const auto adapter =
        static_cast<int32_t>(std::upper_bound(reach.begin(), reach.end() - 1, drawn) - reach.begin());
    add_request(out, at, 128);
    out.requests.back().adapter = adapter;
    out.add_piece({static_cast<uint64_t>(adapter), 512});
    out.add_piece({kAdapters + i, 100 + random.below(400)});
  }
  return out;
}

Workload conversation(size_t requests, uint64_t seed) {
  return generate_mooncake(MooncakeTrace::kConversation, requests, seed);
}
Workload synthetic(size_t requests, uint64_t seed) {
  return generate_mooncake(MooncakeTrace::kSynthetic, requests, seed);
}
Workload tool_agent(size_t requests, uint64_t seed) {
  return generate_mooncake(MooncakeTrace::kToolAgent, requests, seed);
}

struct Generator {
  WorkloadKind kind;
  Workload (*generate)(size_t requests, uint64_t seed);
};

constexpr std::array<Generator, 14> kGenerators{{
    {{"conversation", 12031, "like Mooncake's conversation trace: one hour, 3.4 requests/s, long tail"},
     conversation},
    {{"synthetic", 3993, "like Mooncake's synthetic trace: 17 minutes, 3.9 requests/s, long shared prompts"},
     synthetic},
    {{"toolagent", 23608, "like Mooncake's tool and agent trace: three hot system prompts, 6.7 requests/s"},
     tool_agent},
    {{"shared-prefix", 3000, "150 system prompts of 6,000 tokens x 5 questions of 1,200, 20 requests/s"},
     precise_ladder},
    {{"router-10k", 3000, "150 system prompts of 9,500 tokens x 5 questions of 500, 10 requests/s"},
     router_10k},
    {{"multi-round", 3200, "320 users x 10 rounds on a history of 20,000 tokens, 4 requests/s"}, multi_round},
    {{"chat", 4000,
      "people in conversations of 4 turns on average, thinking 45 s before each, one starts a second"},
     chat},
    {{"code-generation", 2000, "agents on contexts of 10,000 to 990,000 tokens, 20 turns, tools take 15 s"},
     code_generation},
    {{"deep-research", 2000, "agents on contexts of 45,000 tokens, 15 turns, tools take 25 s"},
     deep_research},
    {{"azure-code", 8819, "Azure's code completion lengths in bursts: gaps vary by 13 times their mean"},
     azure_code},
    {{"one-prefix", 4000, "one system prompt of 2,048 tokens for all, short questions, 40 requests/s"},
     one_prefix},
    {{"burst", 1600, "160 unrelated requests within 100 ms, every 10 s"}, bursts},
    {{"priority-mix", 1080,
      "three classes of priorities 100, 0 and -10, 6 requests/s, and a tenant that sends as much again in "
      "bursts"},
     priority_mix},
    {{"adapters", 4000, "24 LoRA adapters, asked for by 1/rank, system prompts of 512 tokens, 40 requests/s"},
     adapters},
}};

}  // namespace

std::vector<WorkloadKind> workload_kinds() {
  std::vector<WorkloadKind> out;
  for (const Generator& generator : kGenerators) out.push_back(generator.kind);
  return out;
}

Result<Workload> generate_workload(std::string_view kind, size_t requests, uint64_t seed) {
  std::string known;
  for (const Generator& generator : kGenerators) {
    if (generator.kind.name != kind) {
      known += (known.empty() ? "" : ", ") + std::string(generator.kind.name);
      continue;
    }
    if (requests == 0) requests = generator.kind.requests;
    if (requests > kMaxGeneratedRequests)
      return invalid_config(fmt::format("{} requests are more than {}", requests, kMaxGeneratedRequests));
    Workload out = generator.generate(requests, seed);
    out.name = kind;
    return out;
  }
  return invalid_config(fmt::format("workload \"{}\" is not known; there are: {}", kind, known));
}

}  // namespace penstock::simulator
