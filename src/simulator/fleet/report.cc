#include "simulator/fleet/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/units.h"

namespace penstock::simulator {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBound = "bound";

// Three places after the point are what the figures are good for; and equal runs print equally.
double rounded(double value) {
  return std::round(value * 1000) / 1000;
}
double rounded_ratio(double value) {
  return std::round(value * 10000) / 10000;
}

Json to_json(const Quantiles& q) {
  return {
      {"mean", rounded(q.mean)}, {"p50", rounded(q.p50)}, {"p90", rounded(q.p90)}, {"p99", rounded(q.p99)}};
}

Json to_json(const FleetClass& who, const FleetClassReport& r) {
  return {{"class", who.name},
          {"priority", who.priority},
          {"requests", r.requests},
          {"finished", r.finished},
          {"rejected", r.rejected},
          {"failed", r.failed},
          {"ttft_ms", to_json(r.ttft_ms)},
          {"e2e_ms", to_json(r.e2e_ms)}};
}

Json to_json(const FleetReport& r, const std::vector<FleetClass>& classes) {
  Json out = {{"policy", r.policy},
              {"requests", r.requests},
              {"finished", r.finished},
              {"in_goal_ratio", rounded_ratio(r.goal_ratio())},
              {"refused_too_long", r.refused},
              {"rejected", r.rejected},
              {"failed", r.failed},
              {"retried", r.retried},
              {"fallback_decisions", r.fallbacks},
              {"ttft_ms", to_json(r.ttft_ms)},
              {"tpot_ms", to_json(r.tpot_ms)},
              {"e2e_ms", to_json(r.e2e_ms)},
              {"hit_ratio", rounded_ratio(r.hit_ratio)},
              {"input_tokens", r.input_tokens},
              {"cached_tokens", r.cached_tokens},
              {"output_tokens", r.output_tokens},
              {"queue_max_over_mean", rounded(r.queue_balance)},
              {"load_max_over_mean", rounded(r.load_balance)},
              {"requests_max_over_mean", rounded(r.request_balance)},
              {"engine_requests", r.engine_requests},
              {"computed_tokens_max_over_mean", rounded(r.work_balance)},
              {"mean_queue", rounded(r.mean_queue)},
              {"peak_queue", r.peak_queue},
              {"preemptions", r.preemptions},
              {"restarts", r.restarts},
              {"simulated_seconds", rounded(r.simulated_seconds)}};
  if (!r.rejection.empty()) out["rejection"] = r.rejection;
  for (size_t i = 0; i < classes.size(); ++i) out["classes"].push_back(to_json(classes[i], r.classes[i]));
  return out;
}

std::string quantile_cells(const Quantiles& q) {
  return fmt::format("{:>8.0f} {:>8.0f} {:>8.0f} {:>8.0f}", q.mean, q.p50, q.p90, q.p99);
}

std::string class_table(const FleetComparison& c, size_t width) {
  size_t name = 5;
  for (const FleetClass& one : c.classes) name = std::max(name, one.name.size());
  std::string out = fmt::format("\n{:<{}} {:<{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12} {:>11} {:>11}\n",
                                "policy", width, "class", name, "priority", "requests", "served", "rejected",
                                "failed", "TTFT mean ms", "TTFT p99 ms", "e2e mean ms");
  for (const FleetReport& r : c.policies) {
    for (size_t i = 0; i < c.classes.size(); ++i) {
      const FleetClassReport& of = r.classes[i];
      out +=
          fmt::format("{:<{}} {:<{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12.0f} {:>11.0f} {:>11.0f}\n", r.policy,
                      width, c.classes[i].name, name, c.classes[i].priority, of.requests, of.finished,
                      of.rejected, of.failed, of.ttft_ms.mean, of.ttft_ms.p99, of.e2e_ms.mean);
    }
  }
  return out;
}

std::string heading(const FleetComparison& c) {
  const FleetOptions& o = c.options;
  std::string out = fmt::format("{}: {} requests, {} prompt tokens, {} answer tokens\n", c.workload,
                                c.requests, c.input_tokens, c.output_tokens);
  out += fmt::format("{} engine{} ({}, {} blocks of {}), {} gateway{}, scrape every {}, seed {}", o.engines,
                     o.engines == 1 ? "" : "s", c.profile, o.engine.num_blocks, o.engine.block_size,
                     o.gateways, o.gateways == 1 ? "" : "s", format_duration(o.scrape_interval), o.seed);
  if (o.stall_every > Duration::zero()) {
    out += fmt::format("; every {} no metrics for {}", format_duration(o.stall_every),
                       format_duration(o.stall_for));
  }
  if (o.restart_every > Duration::zero()) {
    out += fmt::format("; every {} an engine restarts, away for {}", format_duration(o.restart_every),
                       format_duration(o.restart_for));
  }
  if (o.warm_up > Duration::zero())
    out += fmt::format("; not counting the first {}", format_duration(o.warm_up));
  if (o.ttft_goal > Duration::zero()) out += fmt::format("; TTFT goal {}", format_duration(o.ttft_goal));
  if (o.tpot_goal > Duration::zero()) out += fmt::format("; TPOT goal {}", format_duration(o.tpot_goal));
  return out + "\n\n";
}

// A balance, or a dash where there was nothing to balance.
std::string balance_cell(double value) {
  return value > 0 ? fmt::format("{:>7.2f}", value) : fmt::format("{:>7}", "-");
}

std::string policy_table(const FleetComparison& c, size_t width) {
  const bool goals = c.options.ttft_goal > Duration::zero() || c.options.tpot_goal > Duration::zero();
  std::string out = fmt::format("{:<{}} {:^35} {:^26} {:>6} {:^23}{}\n", "", width, "TTFT ms", "TPOT ms",
                                "hits", "max/mean of engines", goals ? "      in" : "");
  out += fmt::format("{:<{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} {:>7} {:>7} {:>7}{}\n", "policy",
                     width, "mean", "p50", "p90", "p99", "mean", "p50", "p99", "ratio", "queue", "load",
                     "work", goals ? "    goal" : "");
  for (const FleetReport& r : c.policies) {
    out += fmt::format("{:<{}} {} {:>8.1f} {:>8.1f} {:>8.1f} {:>6.3f} {} {} {}", r.policy, width,
                       quantile_cells(r.ttft_ms), r.tpot_ms.mean, r.tpot_ms.p50, r.tpot_ms.p99, r.hit_ratio,
                       balance_cell(r.queue_balance), balance_cell(r.load_balance),
                       balance_cell(r.work_balance));
    if (goals) out += fmt::format(" {:>7.3f}", r.goal_ratio());
    out += '\n';
  }
  out += fmt::format("{:<{}} {} {:>8} {:>8} {:>8} {:>6.3f}\n", kBound, width, quantile_cells(c.bound.ttft_ms),
                     "", "", "", c.bound.hit_ratio_unlimited);
  return out;
}

std::string legend(const FleetComparison& c) {
  return fmt::format(
      "\nbound: every request on an idle engine, one cache for all that forgets nothing; of the engines' "
      "size,"
      "\ngiving up what is needed last, it hits {:.3f}. queue, load: requests waiting, and waiting or "
      "running;"
      "\nwork: prompt tokens computed.\n",
      c.bound.hit_ratio_clairvoyant);
}

// What a figure in the table does not say.
std::string notes(const FleetReport& r) {
  std::string out;
  const auto note = [&](std::string_view text) { out += fmt::format("{}: {}\n", r.policy, text); };
  if (r.requests == 0) note("no request arrived after the warm-up");
  if (r.refused > 0) note(fmt::format("{} requests are longer than the engines' context", r.refused));
  if (r.rejected > 0) note(fmt::format("{} requests rejected: {}", r.rejected, r.rejection));
  if (r.restarts > 0) {
    note(fmt::format("{} restarts of engines; {} requests failed, {} found another engine", r.restarts,
                     r.failed, r.retried));
  }
  if (r.fallbacks > 0) note(fmt::format("{} decisions in a fallback state", r.fallbacks));
  if (r.preemptions > 0) note(fmt::format("{} preemptions", r.preemptions));
  return out;
}

}  // namespace

std::string render_text(const FleetComparison& c) {
  size_t width = kBound.size();
  for (const FleetReport& r : c.policies) width = std::max(width, r.policy.size());
  std::string out = heading(c) + policy_table(c, width);
  if (!c.classes.empty()) out += class_table(c, width);
  out += legend(c);
  for (const FleetReport& r : c.policies) out += notes(r);
  return out;
}

std::string render_json(const FleetComparison& c) {
  Json out;
  out["workload"] = {{"name", c.workload},
                     {"requests", c.requests},
                     {"input_tokens", c.input_tokens},
                     {"output_tokens", c.output_tokens}};
  out["fleet"] = {{"engines", c.options.engines},
                  {"gateways", c.options.gateways},
                  {"profile", c.profile},
                  {"block_size", c.options.engine.block_size},
                  {"num_blocks", c.options.engine.num_blocks},
                  {"scrape_interval_ms", to_millis(c.options.scrape_interval)},
                  {"stall_every_s", to_seconds(c.options.stall_every)},
                  {"stall_for_s", to_seconds(c.options.stall_for)},
                  {"restart_every_s", to_seconds(c.options.restart_every)},
                  {"restart_for_s", to_seconds(c.options.restart_for)},
                  {"restart_notice_s", to_seconds(c.options.restart_notice)},
                  {"warm_up_s", to_seconds(c.options.warm_up)},
                  {"ttft_goal_ms", to_millis(c.options.ttft_goal)},
                  {"tpot_goal_ms", to_millis(c.options.tpot_goal)},
                  {"seed", c.options.seed}};
  out["bound"] = {{"ttft_ms", to_json(c.bound.ttft_ms)},
                  {"hit_ratio_unlimited", rounded_ratio(c.bound.hit_ratio_unlimited)},
                  {"hit_ratio_clairvoyant", rounded_ratio(c.bound.hit_ratio_clairvoyant)}};
  out["policies"] = Json::array();
  for (const FleetReport& report : c.policies) out["policies"].push_back(to_json(report, c.classes));
  return out.dump(2) + "\n";
}

}  // namespace penstock::simulator
