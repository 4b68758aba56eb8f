#include "gateway/core.h"

namespace penstock::gateway {

PoolPart::PoolPart(PoolState& state, Core& core, io::Loop& loop, uint64_t seed)
    : shared(state),
      client(loop, state.config.client),
      director(*state.config.pool,
               std::make_unique<director::TablePictures>(*state.config.members, *state.config.signals,
                                                         state.config.freshness_budget),
               core.clock, {loop.index(), seed}),
      upstream(state.upstream),
      models(client) {}

const io::HttpDestination& PoolPart::destination(const Endpoint& endpoint,
                                                 const std::shared_ptr<const UpstreamSettings>& settings) {
  if (endpoint.slot >= known_.size()) known_.resize(endpoint.slot + size_t{1});
  Known& known = known_[endpoint.slot];
  if (known.settings != settings || known.host_port != endpoint.host_port ||
      (known.destination.tls != nullptr) != endpoint.tls || known.tls_name != endpoint.tls_name) {
    known.host_port = endpoint.host_port;
    known.settings = settings;
    known.destination.host = endpoint.address;
    known.destination.port = endpoint.port;
    known.destination.tls = endpoint.tls ? settings->tls : nullptr;
    known.destination.http2 = settings->http2;
    known.tls_name = endpoint.tls_name;
    known.destination.server_name = endpoint.tls_name.empty() ? settings->server_name : endpoint.tls_name;
  }
  return known.destination;
}

LoopPart::LoopPart(Core& the_core, io::Loop& the_loop)
    : core(the_core),
      loop(the_loop),
      random(the_core.options.seed * 0x9E3779B97F4A7C15ULL + the_loop.index()),
      routes(the_core.routes),
      service_client(the_loop) {
  for (const auto& pool : core.pools) {
    pools.push_back(std::make_unique<PoolPart>(*pool, core, loop, random.next_u64()));
  }
}

std::unique_ptr<ExchangeState> LoopPart::take() {
  if (free_.empty()) return std::make_unique<ExchangeState>(loop);
  std::unique_ptr<ExchangeState> state = std::move(free_.back());
  free_.pop_back();
  return state;
}

void LoopPart::give_back(std::unique_ptr<ExchangeState> state) {
  state->total_timer.disarm();
  state->request.reset();
  if (free_.size() < kKeptStates) free_.push_back(std::move(state));
}

const std::string& LoopPart::peer_ip(const io::ConnectionInfo& connection) {
  Peer& peer = peers_[connection.id % peers_.size()];
  if (peer.connection != connection.id || peer.ip.empty()) {
    peer.connection = connection.id;
    peer.ip = connection.peer.ip();
  }
  return peer.ip;
}

}  // namespace penstock::gateway
