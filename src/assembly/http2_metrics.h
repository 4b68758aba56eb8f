#pragma once

#include <span>
#include <string>

#include "director/collected.h"
#include "io/http_server.h"
#include "telemetry/metrics.h"

namespace penstock::assembly {

// How HTTP/2 connections and streams of a door's listeners ended, by reason, and what is queued on them.
std::span<const director::CollectedFamily> http2_families();
struct ListenerStats {
  std::string listener;
  io::HttpServer::Stats stats;
};
// Thread-safe.
void collect_http2(std::span<const ListenerStats> listeners, telemetry::Writer& out);

}  // namespace penstock::assembly
