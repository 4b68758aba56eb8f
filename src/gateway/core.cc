#include "gateway/core.h"

#include <cstring>

namespace penstock::gateway {

namespace {

// Eight hexadecimal digits, a nibble a byte at once.
void hex_of(uint32_t value, char* out) {
  uint64_t x = value;
  x = (x | x << 16U) & 0x0000FFFF0000FFFFULL;
  x = (x | x << 8U) & 0x00FF00FF00FF00FFULL;
  x = (x | x << 4U) & 0x0F0F0F0F0F0F0F0FULL;
  const uint64_t above_nine = ((x + 0x0606060606060606ULL) >> 4U) & 0x0101010101010101ULL;
  x += 0x3030303030303030ULL + above_nine * ('a' - '0' - 10);
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(x >> (56U - 8U * i));
}

}  // namespace

PoolPart::PoolPart(PoolState& state, Core& core, io::Loop& loop, uint64_t seed)
    : shared(state),
      client(loop, state.config.client),
      director(*state.config.pool,
               std::make_unique<TablePictures>(*state.config.members, *state.config.signals,
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

void LoopPart::make_request_id(std::array<char, 36>& out) {
  uint64_t bits[2] = {random.next_u64(), random.next_u64()};
  bits[0] = (bits[0] & ~0xF000ULL) | 0x4000ULL;          // version 4
  bits[1] = (bits[1] & ~(3ULL << 62U)) | (2ULL << 62U);  // RFC 9562 variant
  std::array<char, 32> hex;
  for (size_t i = 0; i < 4; ++i) {
    hex_of(static_cast<uint32_t>(bits[i / 2] >> (i % 2 == 0 ? 32U : 0U)), hex.data() + 8 * i);
  }
  std::memcpy(out.data(), hex.data(), 8);
  std::memcpy(out.data() + 9, hex.data() + 8, 4);
  std::memcpy(out.data() + 14, hex.data() + 12, 4);
  std::memcpy(out.data() + 19, hex.data() + 16, 4);
  std::memcpy(out.data() + 24, hex.data() + 20, 12);
  out[8] = out[13] = out[18] = out[23] = '-';
}

}  // namespace penstock::gateway
