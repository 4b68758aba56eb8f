#include "scheduling/producers/inflight_load_producer.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "scheduling/number_text.h"

namespace penstock::scheduling {

void InflightLoadProducer::bind(config::Binder& b, Params& p) {
  b.field("addEstimatedOutputTokens", p.add_output, "",
          "Count an estimate of the answer's tokens too, and hold all tokens until the answer ends.");
  b.field("outputRatio", p.output_ratio, "ratio",
          "Estimated output tokens for each input token, at least 0.");
  b.field("maxEstimatedOutputTokens", p.max_output, "tokens", "Upper bound of that estimate; unset: none.");
  b.field("prefixMatchInfoProducerName", p.prefix_producer, "",
          "Name of the prefix cache producer whose matches lower the prefill tokens; empty: "
          "approx-prefix-cache-producer.");
  b.field("syncCrossReplicaState", p.sync_replicas, "",
          "Count what other replicas have in flight too, where state is shared.");
  if (b.describing()) return;
  if (!(p.output_ratio >= 0)) {
    std::string message = "outputRatio must be non-negative, got ";
    append_number(message, p.output_ratio);
    b.fail("outputRatio", message);
  }
  if (p.max_output.has_value() && *p.max_output < 0) {
    b.fail("maxEstimatedOutputTokens",
           "maxEstimatedOutputTokens must be non-negative, got " + std::to_string(*p.max_output));
  }
}

InflightLoadProducer::InflightLoadProducer(Params params)
    : params_(std::move(params)),
      prefix_key_(data_keys::kPrefixMatch.with_producer(params_.prefix_producer)) {}

void InflightLoadProducer::declare_data(DataDeclaration& declaration) const {
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
  declaration.optional<PrefixMatch>(prefix_key_);
  declaration.produce<InFlightLoad>(load_key());
  declaration.produce<UncachedTokens>(uncached_key());
}

void InflightLoadProducer::bind_slots(const SlotResolver& slots) {
  load_slot_ = slots.slot(load_key());
  uncached_slot_ = slots.slot(uncached_key());
  prefix_slot_ = slots.slot(prefix_key_);
}

int64_t InflightLoadProducer::output_tokens(int64_t input, std::optional<int64_t> client_max) const {
  if (input <= 0) return 0;
  constexpr double kLimit = 1e15;
  auto output =
      static_cast<int64_t>(std::round(std::min(static_cast<double>(input) * params_.output_ratio, kLimit)));
  if (client_max.has_value() && *client_max >= 0) output = std::min(output, *client_max);
  if (params_.max_output.has_value()) output = std::min(output, *params_.max_output);
  return output;
}

int64_t InflightLoadProducer::uncached_tokens(int64_t input, const PrefixMatch* match) {
  if (match == nullptr || match->block_size_tokens == 0) return input;
  const int64_t block = match->block_size_tokens;
  const int64_t total = match->total_blocks;
  const int64_t missing = std::max<int64_t>(0, (total - int64_t{match->match_blocks}) * block);
  return missing + std::max<int64_t>(0, input - total * block);
}

Status InflightLoadProducer::produce(SchedulingContext& ctx) const {
  if (load_slot_ != kNoSlot) {
    const std::span<InFlightLoad> load = ctx.attributes.create<InFlightLoad>(load_slot_);
    for (const Candidate c : ctx.candidates) {
      const EndpointLive& live = *ctx.pool.endpoints[c]->live;
      const EndpointLive::InFlight now = params_.sync_replicas ? live.in_flight() : live.own_in_flight();
      load[c] = {static_cast<int64_t>(now.requests), static_cast<int64_t>(now.tokens)};
    }
  }
  if (uncached_slot_ == kNoSlot) return {};
  const auto input = static_cast<int64_t>(ctx.request.prompt_tokens());
  const std::span<const PrefixMatch> matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  const std::span<UncachedTokens> uncached = ctx.attributes.create<UncachedTokens>(uncached_slot_);
  for (const Candidate c : ctx.candidates) {
    uncached[c].tokens = uncached_tokens(input, matches.empty() ? nullptr : &matches[c]);
  }
  return {};
}

uint64_t InflightLoadProducer::reserve_tokens(const SchedulingContext& ctx, Candidate candidate) const {
  seen_.see(ctx.pool.endpoints[candidate]);
  const auto input = static_cast<int64_t>(ctx.request.prompt_tokens());
  const std::span<const PrefixMatch> matches = ctx.attributes.column<PrefixMatch>(prefix_slot_);
  int64_t tokens = uncached_tokens(input, matches.empty() ? nullptr : &matches[candidate]);
  if (params_.add_output) tokens += output_tokens(input, ctx.request.max_output_tokens);
  return static_cast<uint64_t>(tokens);
}

std::optional<std::string> InflightLoadProducer::dump_state() const {
  constexpr size_t kMaxDumped = 100;
  struct Row {
    std::string endpoint;
    uint64_t requests;
    uint64_t tokens;
  };
  std::vector<Row> rows;
  for (const auto& endpoint : seen_.list()) {
    const uint64_t word = endpoint->live->load.load(std::memory_order_relaxed);
    rows.push_back({endpoint->id, EndpointLive::requests_of(word), EndpointLive::tokens_of(word)});
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    const uint64_t load_a = a.requests + a.tokens;
    const uint64_t load_b = b.requests + b.tokens;
    return load_a != load_b ? load_a > load_b : a.endpoint < b.endpoint;
  });
  std::string out = "{\"endpoints\":[";
  for (size_t i = 0; i < std::min(rows.size(), kMaxDumped); ++i) {
    if (i > 0) out += ',';
    out += "{\"endpoint\":";
    append_json_quoted(out, rows[i].endpoint);
    out += ",\"requests\":" + std::to_string(rows[i].requests) +
           ",\"tokens\":" + std::to_string(rows[i].tokens) + "}";
  }
  out += "],\"totalEndpoints\":" + std::to_string(rows.size()) +
         ",\"maxEndpoints\":" + std::to_string(kMaxDumped) + ",\"truncated\":";
  return out + (rows.size() > kMaxDumped ? "true}" : "false}");
}

}  // namespace penstock::scheduling
