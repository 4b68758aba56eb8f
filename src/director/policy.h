#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/params.h"
#include "inference/plugin.h"
#include "inference/session_holder.h"
#include "protocol/parser.h"
#include "scheduling/scheduler.h"

namespace penstock::director {

// A configuration document turned into running plugins: everything a decision uses, validated whole.
// Built by assembly/, immutable, shared by pointer; a request keeps the epoch it began with.
struct Policy {
  uint64_t epoch = 0;
  std::string effective_config;                  // in the reference's grammar
  std::vector<std::string> warnings;             // what loading wants the operator to know
  std::vector<std::unique_ptr<Plugin>> plugins;  // owners of everything below, in instantiation order

  std::unique_ptr<scheduling::Scheduler> scheduler;
  std::unique_ptr<protocol::ParserTable> parsers;
  std::vector<const DataProducer*> producers;  // all, in dependency order
  std::vector<const AskingProducer*> asking;   // of the producers, those that ask
  std::vector<const PreRequest*> pre_request;  // configuration order
  std::vector<const RequestHook*> request_hooks;
  std::vector<const Screener*> screeners;
  std::vector<const Admitter*> admitters;
  std::vector<const ResponseHook*> response_hooks;
  std::vector<const SessionHolder*> session_holders;
  std::vector<const EndpointObserver*> endpoint_observers;
  const LoadEstimator* load_estimator = nullptr;  // the first inflight-load-producer, if any
  const SaturationDetector* saturation = nullptr;
  AttributeSlot prefix_match_slot = kNoSlot;  // of data_keys::kPrefixMatch, for records and metrics
  size_t attribute_slots = 0;
  bool flow_control = false;           // the feature gate
  bool strict = false;                 // penstock.mode
  std::optional<Freshness> freshness;  // strict mode's treatment of age

  // dataLayer.sources as the scraper needs them.
  struct MetricsSource {
    const Plugin* source = nullptr;
    std::vector<const Plugin*> extractors;
  };
  std::vector<MetricsSource> sources;
  const Plugin* discovery = nullptr;  // dataLayer.discovery, e.g. a discovery::FileDiscoveryPlugin
};

}  // namespace penstock::director
