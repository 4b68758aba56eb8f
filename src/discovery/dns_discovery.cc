#include "discovery/dns_discovery.h"

#include <fmt/format.h>

#include <algorithm>

#include "telemetry/log.h"

namespace penstock::discovery {

namespace {
constexpr Duration kStopWithin = std::chrono::seconds(10);
}

std::vector<DiscoveredEndpoint> endpoints_of(const DnsDiscoveryOptions& options,
                                             const std::vector<io::SocketAddress>& addresses) {
  std::vector<std::string> ips;
  ips.reserve(addresses.size());
  for (const io::SocketAddress& address : addresses) ips.push_back(address.ip());
  std::sort(ips.begin(), ips.end());
  ips.erase(std::unique(ips.begin(), ips.end()), ips.end());
  if (ips.size() > options.max_addresses) {
    telemetry::log_warn(
        "name has more addresses than the limit",
        {{"name", options.name}, {"addresses", ips.size()}, {"limit", options.max_addresses}});
    ips.resize(options.max_addresses);
  }
  std::vector<DiscoveredEndpoint> out;
  for (std::string& ip : ips) {
    DiscoveredEndpoint endpoint;
    endpoint.ns = options.ns;
    endpoint.name = fmt::format("{}-{}", ip, options.port);
    std::replace(endpoint.name.begin(), endpoint.name.end(), ':', '-');
    endpoint.address = std::move(ip);
    endpoint.port = options.port;
    endpoint.tls = options.tls;
    if (options.tls) endpoint.tls_name = options.tls_name.empty() ? options.name : options.tls_name;
    endpoint.labels = options.labels;
    out.push_back(std::move(endpoint));
  }
  return out;
}

// Everything that changes belongs to the loop, but `running`.
struct DnsDiscovery::State {
  State(DnsDiscoveryOptions o, io::Loop& l, EndpointSink& s, Resolve r)
      : options(std::move(o)),
        source("dns " + options.name),
        loop(l),
        sink(s),
        resolve(std::move(r)),
        wake(l) {}

  void finished() {
    const std::lock_guard lock(mutex);
    running = false;
    ended.notify_all();
  }

  const DnsDiscoveryOptions options;
  const std::string source;
  io::Loop& loop;
  EndpointSink& sink;
  Resolve resolve;
  io::Event wake;
  io::CancelSource* cancel = nullptr;  // while the task runs
  bool stopping = false;
  std::string last_error;

  std::mutex mutex;
  std::condition_variable ended;
  bool running = false;
};

DnsDiscovery::DnsDiscovery(DnsDiscoveryOptions options, io::Loop& loop, EndpointSink& sink, Resolve resolve)
    : state_(std::make_shared<State>(std::move(options), loop, sink, std::move(resolve))) {}

DnsDiscovery::~DnsDiscovery() {
  stop();
}

void DnsDiscovery::start() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->running = true;
  }
  // Whatever becomes of the posted function, stop() must not wait for a task that never began.
  struct Ended {
    explicit Ended(std::shared_ptr<State> s) : state(std::move(s)) {}
    Ended(Ended&&) = default;
    ~Ended() {
      if (state) state->finished();
    }
    std::shared_ptr<State> state;
  };
  state_->loop.post([ended = Ended(state_)]() mutable {
    const std::shared_ptr<State> state = std::move(ended.state);
    io::spawn(state->loop, run(state));
  });
}

io::Task<void> DnsDiscovery::run(std::shared_ptr<State> state) {
  struct Ended {
    State& state;
    ~Ended() {
      state.cancel = nullptr;
      state.finished();
    }
  };
  io::CancelSource cancel;
  const Ended ended{*state};
  const DnsDiscoveryOptions& options = state->options;
  cancel.follow(state->loop.shutdown_token());
  if (state->stopping) co_return;
  state->cancel = &cancel;
  const io::CancelToken token = cancel.token();
  Duration retry = options.retry;
  while (!token.cancelled()) {
    auto answer = co_await state->resolve(state->loop, options.name, options.port, options.timeout, token);
    if (token.cancelled()) break;
    Duration pause = options.interval;
    if (answer.ok() && !answer->empty()) {
      if (!state->last_error.empty()) telemetry::log_info("name resolves again", {{"name", options.name}});
      state->last_error.clear();
      retry = options.retry;
      state->sink.endpoints(state->source, endpoints_of(options, *answer));
    } else {
      const std::string error = answer.ok() ? "the name has no address" : answer.error().message;
      if (error != state->last_error) {
        telemetry::log_warn("name can't be resolved, the last good addresses stay",
                            {{"name", options.name}, {"error", error}});
      }
      state->last_error = error;
      pause = std::min(retry, options.interval);
      retry = std::min(2 * retry, options.interval);
    }
    (void)co_await state->wake.wait(pause, token);  // ends early when woken
    state->wake.reset();
  }
}

void DnsDiscovery::refresh() {
  state_->loop.post([state = state_] { state->wake.set(); });
}

void DnsDiscovery::stop() {
  state_->loop.post([state = state_] {
    state->stopping = true;
    if (state->cancel != nullptr) state->cancel->cancel();
  });
  std::unique_lock lock(state_->mutex);
  if (!state_->ended.wait_for(lock, kStopWithin, [&] { return !state_->running; }))
    telemetry::log_error("name look-ups did not end in time", {{"name", state_->options.name}});
}

}  // namespace penstock::discovery
