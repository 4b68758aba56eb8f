#include "sharing/metrics.h"

namespace penstock::sharing {

Metrics::Metrics(telemetry::MetricRegistry& registry)
    : connected(registry.gauge({.name = "penstock_shared_state_connected",
                                .help = "Whether the store of state shared between replicas answers.",
                                .labels = {}})),
      bound(registry.gauge(
          {.name = "penstock_shared_state_staleness_bound_seconds",
           .help = "Age from which what another replica told of its load is unknown and counts as nothing.",
           .labels = {}})),
      staleness(registry.gauge(
          {.name = "penstock_shared_state_staleness_seconds",
           .help = "Most that the last record of another replica's load can be old, by replica.",
           .labels = {"pool", "replica"},
           .max_series = 1000})),
      replicas(registry.gauge(
          {.name = "penstock_shared_state_replicas",
           .help =
               "Other replicas of the pool: fresh; stale (beyond the bound, does not count); "
               "other_version and unreadable (record not understood); other_hashing (prefixes not shared).",
           .labels = {"pool", "state"}})),
      prefixes(registry.counter(
          {.name = "penstock_shared_state_prefixes_total",
           .help = "Prompts told to other replicas (told, dropped) and by them (applied, unknown_endpoint, "
                   "other_block_size); batches of theirs (other_hashing, other_version, unreadable, missed).",
           .labels = {"pool", "event"}})),
      bytes(registry.counter({.name = "penstock_shared_state_bytes_total",
                              .help = "Bytes to and from the store of shared state.",
                              .labels = {"direction"}})),
      failures(registry.counter(
          {.name = "penstock_shared_state_failures_total",
           .help = "Failures of the store of shared state, by reason: connect, timeout, unauthorized, "
                   "unavailable, full, protocol.",
           .labels = {"reason"}})),
      exchange_seconds(registry.histogram({.name = "penstock_shared_state_exchange_seconds",
                                           .help = "Time of one round trip to the store of shared state.",
                                           .labels = {},
                                           .bounds = telemetry::buckets::micro_seconds()})) {}

}  // namespace penstock::sharing
