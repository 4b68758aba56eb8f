#include "kubernetes/metrics.h"

#include <array>

namespace penstock::kubernetes {
namespace {

constexpr std::array<double, 9> kApplySeconds{0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.05, 0.1, 1};

}  // namespace

Metrics::Metrics(telemetry::MetricRegistry& registry)
    : synced(registry.gauge({.name = "penstock_kubernetes_synced",
                             .help =
                                 "1 while the picture of a resource follows the API server, 0 while the last "
                                 "good one serves on (or there is none yet).",
                             .labels = {"resource"}})),
      objects(registry.gauge({.name = "penstock_kubernetes_objects",
                              .help = "Objects of a resource in the picture.",
                              .labels = {"resource"}})),
      heard_at(registry.gauge({.name = "penstock_kubernetes_heard_timestamp_seconds",
                               .help = "When the API server last said anything about a resource: how old the "
                                       "picture may be. Bookmarks come about once a minute.",
                               .labels = {"resource"}})),
      watches(registry.counter({.name = "penstock_kubernetes_watches_total",
                                .help = "Watches that were begun.",
                                .labels = {"resource"}})),
      events(registry.counter({.name = "penstock_kubernetes_watch_events_total",
                               .help = "Events of watches, by type.",
                               .labels = {"resource", "type"}})),
      relists(registry.counter({.name = "penstock_kubernetes_relists_total",
                                .help = "Times that all objects of a resource were read again, by reason.",
                                .labels = {"resource", "reason"}})),
      unreadable(
          registry.counter({.name = "penstock_kubernetes_unreadable_objects_total",
                            .help = "Versions of objects that could not be read; the last good version "
                                    "of each stays.",
                            .labels = {"resource"}})),
      inconsistencies(registry.counter(
          {.name = "penstock_kubernetes_inconsistencies_total",
           .help = "Objects that the periodic check found changed without an event of the watch.",
           .labels = {"resource"}})),
      apply_seconds(registry
                        .histogram({.name = "penstock_kubernetes_apply_seconds",
                                    .help = "Time from the first event of a change of pods to the pool that "
                                            "requests see: gathering, and making endpoints. Of objects that "
                                            "plugins are told of: until they were.",
                                    .labels = {},
                                    .bounds = kApplySeconds})
                        .with({})) {}

}  // namespace penstock::kubernetes
