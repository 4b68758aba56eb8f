#include "assembly/http2_metrics.h"

#include <array>

namespace penstock::assembly {

namespace {

constexpr std::array<director::CollectedFamily, 3> kHttp2Families{{
    {"penstock_http2_connections_ended_total", telemetry::MetricType::kCounter, "listener, reason",
     "HTTP/2 connections that were ended because of what the client did, or to spread the load: protocol, "
     "control_flood, continuation_flood, reset_flood, header_timeout, write_timeout, ping_timeout, "
     "rebalance."},
    {"penstock_http2_streams_reset_total", telemetry::MetricType::kCounter, "listener, reason",
     "HTTP/2 streams that ended by a reset: refused (too many at once), early (by the client, before "
     "anything was answered), stalled (the client's window stayed shut), malformed."},
    {"penstock_http2_queued_bytes", telemetry::MetricType::kGauge, "listener",
     "Bytes of responses that HTTP/2 clients have not taken yet and that are kept for them."},
}};

using Stats = io::HttpServer::Stats;
struct CountedReason {
  std::string_view name;
  uint64_t Stats::* count;
};
constexpr std::array<CountedReason, 8> kConnectionEnds{{
    {"protocol", &Stats::http2_protocol_errors},
    {"control_flood", &Stats::http2_control_floods},
    {"continuation_flood", &Stats::http2_continuation_floods},
    {"reset_flood", &Stats::http2_reset_floods},
    {"header_timeout", &Stats::http2_header_timeouts},
    {"write_timeout", &Stats::http2_write_timeouts},
    {"ping_timeout", &Stats::http2_ping_timeouts},
    {"rebalance", &Stats::http2_rebalanced},
}};
constexpr std::array<CountedReason, 4> kStreamResets{{
    {"refused", &Stats::http2_refused_streams},
    {"early", &Stats::http2_early_resets},
    {"stalled", &Stats::http2_stalled_streams},
    {"malformed", &Stats::http2_malformed_streams},
}};

void write_reasons(telemetry::Writer& out, const director::CollectedFamily& family,
                   std::span<const ListenerStats> listeners, std::span<const CountedReason> reasons) {
  out.header(family.name, family.help, family.type);
  for (const auto& [listener, stats] : listeners) {
    for (const CountedReason& reason : reasons)
      out.sample(family.name, {{"listener", listener}, {"reason", reason.name}},
                 static_cast<double>(stats.*reason.count));
  }
}

}  // namespace

std::span<const director::CollectedFamily> http2_families() {
  return kHttp2Families;
}

void collect_http2(std::span<const ListenerStats> listeners, telemetry::Writer& out) {
  write_reasons(out, kHttp2Families[0], listeners, kConnectionEnds);
  write_reasons(out, kHttp2Families[1], listeners, kStreamResets);
  const director::CollectedFamily& queued = kHttp2Families[2];
  out.header(queued.name, queued.help, queued.type);
  for (const auto& [listener, stats] : listeners)
    out.sample(queued.name, {{"listener", listener}}, static_cast<double>(stats.http2_queued_bytes));
}

}  // namespace penstock::assembly
