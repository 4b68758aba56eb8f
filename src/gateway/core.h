#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "director/body_budget.h"
#include "director/director.h"
#include "director/observer.h"
#include "director/pictures.h"
#include "discovery/registry.h"
#include "gateway/event_hold.h"
#include "gateway/gateway.h"
#include "gateway/models.h"
#include "gateway/route_table.h"
#include "io/cancel.h"
#include "io/http.h"
#include "io/http_client.h"
#include "protocol/parser.h"
#include "signals/signal_table.h"

namespace penstock::gateway {

// --- shared by all loops ---

struct PoolState {
  explicit PoolState(GatewayPool from) : config(std::move(from)), upstream(config.upstream) {}
  GatewayPool config;
  director::Published<UpstreamSettings> upstream;
};

struct ServiceState {
  explicit ServiceState(GatewayService from) : config(std::move(from)) {}
  GatewayService config;
  std::atomic<uint32_t> next{0};
};

struct ListenerState {
  explicit ListenerState(GatewayListener from) : config(std::move(from)) {
    if (config.api_keys != nullptr) api_keys.publish(config.api_keys);
  }
  GatewayListener config;
  director::Published<config::ApiKeys> api_keys;  // never published: everybody may come
  uint16_t route_port = 0;
  std::atomic<int64_t> streams{0};
  std::array<telemetry::Counter*, 6> responses{};  // by first digit of the status; 0: none was sent
};

struct Core {
  Core(io::LoopGroup& loop_group, const Clock& the_clock, director::AccessLog* log, GatewayOptions opts)
      : loops(loop_group), clock(the_clock), access_log(log), options(opts), bodies(opts.buffered_bytes) {}

  io::LoopGroup& loops;
  const Clock& clock;
  director::AccessLog* access_log;
  GatewayOptions options;
  std::vector<std::unique_ptr<PoolState>> pools;
  std::vector<std::unique_ptr<ServiceState>> services;
  director::Published<RouteTable> routes;
  // For listeners whose routes look at the model name: reads it before the pool is known.
  std::vector<std::unique_ptr<Plugin>> parser_plugins;
  std::unique_ptr<protocol::ParserTable> parsers;

  std::atomic<int64_t> active_requests{0};
  director::BodyBudget bodies;
  std::atomic<uint64_t> requests{0};
  std::atomic<bool> stopping{false};
  telemetry::Counter* client_disconnects = nullptr;
};

// --- one loop's ---

struct PoolPart {
  PoolPart(PoolState& state, Core& core, io::Loop& loop, uint64_t seed);

  // Where requests for this endpoint go; valid until the next call.
  const io::HttpDestination& destination(const Endpoint& endpoint,
                                         const std::shared_ptr<const UpstreamSettings>& settings);

  PoolState& shared;
  io::HttpClient client;
  director::Director director;
  director::PublishedReader<UpstreamSettings> upstream;
  ModelsCache models;

 private:
  struct Known {
    std::string host_port;
    std::string tls_name;
    std::shared_ptr<const UpstreamSettings> settings;
    io::HttpDestination destination;
  };
  std::vector<Known> known_;  // by slot
};

// Everything one exchange needs, reused by the next, so that a warm gateway serves from memory it has.
struct ExchangeState {
  explicit ExchangeState(io::Loop& loop) : total_timer(loop) {}

  director::Request request;
  director::Observer observer;
  EventHold hold;
  std::vector<io::HeaderField> fields;
  std::vector<std::string_view> pieces;
  std::vector<HeaderField> decision_fields;
  std::string scratch;
  std::string peer_ip;  // of the client, for as long as the exchange
  std::array<char, 36> made_id{};
  io::Timer total_timer;
  io::CancelSource cancel;
  bool total_expired = false;
};

struct LoopPart {
  LoopPart(Core& the_core, io::Loop& the_loop);

  std::unique_ptr<ExchangeState> take();
  void give_back(std::unique_ptr<ExchangeState> state);
  // Valid until another connection takes its place: copy it before waiting.
  const std::string& peer_ip(const io::ConnectionInfo& connection);

  Core& core;
  io::Loop& loop;
  Random random;
  director::PublishedReader<RouteTable> routes;
  std::vector<std::unique_ptr<PoolPart>> pools;
  io::HttpClient service_client;

 private:
  static constexpr size_t kKeptStates = 64;
  struct Peer {
    uint64_t connection = 0;
    std::string ip;
  };
  std::vector<std::unique_ptr<ExchangeState>> free_;
  std::array<Peer, 256> peers_;
};

}  // namespace penstock::gateway
