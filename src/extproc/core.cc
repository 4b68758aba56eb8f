#include "extproc/core.h"

#include <algorithm>

#include "telemetry/metrics.h"

namespace penstock::extproc {

namespace {

constexpr size_t kWarmArenaBytes = 512 << 10;  // kept of one, so that the next long prompt finds its memory
constexpr size_t kWarmShelfBytes = 4 << 20;    // kept in all of one loop
constexpr size_t kColdArenaBytes = 32 << 10;
constexpr size_t kKeptBodyBytes = 32 << 10;
constexpr size_t kFirstBodyBytes = 4096;

}  // namespace

DoorMetrics::DoorMetrics(telemetry::MetricRegistry& registry, bool stream_metrics)
    : ends(registry.counter({"penstock_extproc_streams_ended_total",
                             "Process streams that ended, by how their request ended.",
                             {"reason"}})),
      ends_ok(ends.with({"ok"})),
      ends_left(ends.with({"left_response_phase"})),
      immediate(registry.counter({"penstock_extproc_immediate_responses_total",
                                  "Requests answered by the picker itself, by status and reason.",
                                  {"code", "reason"}})),
      local_replies(registry.counter({"penstock_extproc_local_replies_total",
                                      "Answers that the data plane made itself, by status; they are not "
                                      "counted as an engine's.",
                                      {"code"}})),
      unparsed(registry.counter({"penstock_extproc_unparsed_bodies_total",
                                 "Requests decided without their body: the body mode shows none before the "
                                 "decision (mode), or only "
                                 "a part of it (partial).",
                                 {"why"}})),
      unparsed_mode(unparsed.with({"mode"})),
      unparsed_partial(unparsed.with({"partial"})),
      served_elsewhere(registry
                           .counter({"penstock_extproc_served_elsewhere_total",
                                     "Answers that came from another endpoint than the first one picked.",
                                     {}})
                           .with({})),
      credits_expired(registry
                          .counter({"penstock_extproc_credits_expired_total",
                                    "Credits that ended by age because no fresh scrape came.",
                                    {}})
                          .with({})),
      unassigned(registry.counter({"penstock_extproc_unassigned_streams_total",
                                   "Process streams that could not be given to one of several pools: unknown "
                                   "(the pool named is none of ours), ambiguous (several have that name), "
                                   "unnamed (nothing names one).",
                                   {"reason"}})),
      streams_(registry.counter({"penstock_extproc_streams_total",
                                 "Process streams opened, by the body mode of the request.",
                                 {"mode"}})),
      pieces_(registry.counter({"penstock_extproc_body_pieces_total",
                                "Pieces in which bodies were handed back, by side.",
                                {"side"}})) {
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i] = &streams_.with({body_mode_name(static_cast<BodyMode>(i))});
  }
  pieces = {&pieces_.with({"request"}), &pieces_.with({"response"})};
  if (!stream_metrics) return;
  static constexpr std::array<double, 14> kSeconds{.001, .005, .01, .05, .1,  .5,  1,
                                                   5,    10,   30,  60,  120, 300, 600};
  inflight =
      &registry
           .gauge({"llm_d_epp_extproc_streams_inflight", "[ALPHA] Number of ext_proc streams in flight.", {}})
           .with({});
  duration = &registry
                  .histogram({"llm_d_epp_extproc_stream_duration_seconds",
                              "[ALPHA] Time an ext_proc stream was open.",
                              {},
                              kSeconds})
                  .with({});
  codes = &registry.counter({"llm_d_epp_extproc_streams_total",
                             "[ALPHA] Number of ext_proc streams that ended, by gRPC code.",
                             {"code"}});
}

void BodyBuffer::grow(size_t bytes) {
  const size_t wanted = std::max({bytes, capacity_ * 2, kFirstBodyBytes}) + protocol::kBodyPadding;
  std::unique_ptr<char[]> larger(new char[wanted]);
  if (size_ != 0) std::memcpy(larger.get(), data_.get(), size_);
  data_ = std::move(larger);
  capacity_ = wanted;
}

LoopPart::LoopPart(Core& the_core, io::Loop* the_loop, size_t loop_index)
    : core(the_core),
      loop(the_loop),
      index(loop_index),
      random(the_core.options.seed * 0x9E3779B97F4A7C15ULL + loop_index),
      wall(the_core.clock),
      pools(the_core.pools) {}

PoolPart::PoolPart(LoopPart& loop_part, director::Pool& the_pool, Duration freshness_budget,
                   io::Loop* the_loop, std::unique_ptr<director::PictureSource> pictures)
    : part(loop_part),
      pool(the_pool),
      director(the_pool, std::move(pictures), loop_part.core.clock,
               {loop_part.index, loop_part.random.next_u64()}),
      credits(the_loop, director, loop_part.core.clock, freshness_budget + std::chrono::seconds(1),
              loop_part.core.credits, loop_part.core.metrics.credits_expired) {}

void LoopPart::give_back(std::unique_ptr<Deciding> object) {
  object->arena.reset(warm_bytes < kWarmShelfBytes ? kWarmArenaBytes : kColdArenaBytes);
  object->body.trim(kKeptBodyBytes);
  if (deciding.free.size() == Shelf<Deciding>::kKept) return;
  warm_bytes += warm_of(*object);
  deciding.give_back(std::move(object));
}

void LoopPart::release_idle_memory() {
  deciding.free.clear();
  watching.free.clear();
  answers.free.clear();
  warm_bytes = 0;
}

}  // namespace penstock::extproc
