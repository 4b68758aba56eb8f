#include "sharing/replicas.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <random>
#include <utility>

#include "base/backoff.h"
#include "base/hash.h"
#include "base/strings.h"
#include "sharing/metrics.h"
#include "sharing/peers.h"
#include "sharing/shared_pool.h"
#include "telemetry/log.h"

namespace penstock::sharing {

namespace {

constexpr Duration kRetryBase = std::chrono::milliseconds(100);
constexpr Duration kRetryCap = std::chrono::seconds(2);
constexpr Duration kFarewell = std::chrono::milliseconds(200);
constexpr Duration kCatchUp = std::chrono::milliseconds(2);

// Why the store is of no use, as metric, log and state call it.
std::string_view reason_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kIo:
      return "connect";
    case ErrorCode::kGatewayTimeout:
    case ErrorCode::kRequestTimeout:
      return "timeout";
    case ErrorCode::kUnauthorized:
      return "unauthorized";
    case ErrorCode::kServiceUnavailable:
      return "unavailable";
    case ErrorCode::kResourceExhausted:
      return "full";
    default:
      return "protocol";
  }
}

}  // namespace

std::string default_replica() {
  const char* pod = std::getenv("POD_NAME");
  if (pod != nullptr && *pod != '\0') return pod;
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return host[0] == '\0' ? "replica" : host.data();
}

struct Replicas::Impl {
  Impl(ReplicasOptions o, telemetry::MetricRegistry& registry)
      : options(std::move(o)), metrics(registry), loops(1) {
    std::random_device random;
    incarnation = (uint64_t{random()} << 32U) | random();
    metrics.connected.with({}).set(0);
    metrics.bound.with({}).set(to_seconds(options.staleness));
    for (const std::string_view direction : {"sent", "received"}) metrics.bytes.with({direction});
  }

  io::Task<void> run();
  io::Task<Error> converse(StoreConnection& store, io::CancelToken token);
  io::Task<void> farewell(StoreConnection& store);
  io::Task<void> fade();
  std::vector<std::shared_ptr<SharedPool>> current_pools();  // after seeing to those that left
  std::vector<std::shared_ptr<SharedPool>> left_pools();
  void connected_now();
  void failed(const Error& error);
  void takes_all_again();
  void count_bytes(const StoreConnection& store);

  const ReplicasOptions options;
  uint64_t incarnation = 0;  // of the first pool
  uint64_t joined = 0;       // under the mutex
  Metrics metrics;
  SystemClock clock;
  uint64_t sent_ = 0;  // of the connection, already counted
  uint64_t received_ = 0;

  mutable std::mutex mutex;  // pools, state and error
  std::vector<std::shared_ptr<SharedPool>> pools;
  std::vector<std::shared_ptr<SharedPool>> leaving;  // their records are still in the store
  std::string state = "starting";
  std::string error;
  TimePoint since = clock.now();
  bool connected = false;  // of the loop

  bool started = false;
  io::LoopGroup loops;  // last: ends first
};

std::vector<std::shared_ptr<SharedPool>> Replicas::Impl::current_pools() {
  const std::lock_guard lock(mutex);
  const auto left =
      std::partition(pools.begin(), pools.end(), [](const auto& pool) { return !pool->left(); });
  for (auto it = left; it != pools.end(); ++it) {
    const bool comes_again = std::any_of(pools.begin(), left, [&](const auto& other) {
      return other->name() == (*it)->name() && other->ns() == (*it)->ns();
    });
    if (!comes_again) (*it)->remove_series();
    leaving.push_back(std::move(*it));
  }
  pools.erase(left, pools.end());
  return pools;
}

std::vector<std::shared_ptr<SharedPool>> Replicas::Impl::left_pools() {
  const std::lock_guard lock(mutex);
  return std::exchange(leaving, {});
}

// Of use is a store that answered what pools asked, not one that merely lets us in.
void Replicas::Impl::connected_now() {
  if (connected) return;
  telemetry::log_info("state is shared between replicas",
                      {{"store", options.store.address.shown()}, {"replica", options.replica}});
  connected = true;
  metrics.connected.with({}).set(1);
  const std::lock_guard lock(mutex);
  state = "connected";
  error.clear();
  since = clock.now();
}

// Once in the log as long as it is for the same reason.
void Replicas::Impl::failed(const Error& e) {
  const std::string_view reason = reason_of(e.code);
  metrics.failures.with({reason}).add();
  const bool goes_on = e.code == ErrorCode::kResourceExhausted && connected;
  if (!goes_on) {
    connected = false;
    metrics.connected.with({}).set(0);
  }
  const std::lock_guard lock(mutex);
  error = e.message;
  if (state == reason) return;
  state = reason;
  since = clock.now();
  telemetry::log_warn(goes_on
                          ? "the store of shared state takes nothing new: other replicas don't learn of "
                            "this one, which goes on"
                          : "the store of shared state is lost: decisions go on by what this replica knows",
                      {{"store", options.store.address.shown()}, {"reason", reason}, {"error", e.message}});
}

void Replicas::Impl::takes_all_again() {
  const std::lock_guard lock(mutex);
  if (state == "connected") return;
  state = "connected";
  error.clear();
  since = clock.now();
  telemetry::log_info("the store of shared state takes records again",
                      {{"store", options.store.address.shown()}});
}

void Replicas::Impl::count_bytes(const StoreConnection& store) {
  metrics.bytes.with({"sent"}).add(store.bytes_sent() - std::exchange(sent_, store.bytes_sent()));
  metrics.bytes.with({"received"})
      .add(store.bytes_received() - std::exchange(received_, store.bytes_received()));
}

io::Task<void> Replicas::Impl::run() {
  io::Loop& loop = loops.at(0);
  const io::CancelToken token = loop.shutdown_token();
  Backoff backoff(kRetryBase, kRetryCap, incarnation);
  bool skip = false;
  while (!token.cancelled()) {
    auto opened = co_await StoreConnection::open(loop, options.store, token);
    if (token.cancelled()) co_return;
    if (opened.ok()) {
      sent_ = received_ = 0;
      StoreConnection& store = **opened;
      for (const auto& pool : current_pools()) pool->reconnected(store.clock(), skip);
      const TimePoint opened_at = clock.now();
      const Error error = co_await converse(store, token);
      count_bytes(store);
      if (token.cancelled()) {
        co_await farewell(store);
        co_return;
      }
      // A reply that nobody can read stays there: the stream is read on behind it.
      skip = error.code == ErrorCode::kPayloadTooLarge;
      if (clock.now() - opened_at > kRetryCap) backoff.reset();
      failed(error);
    } else {
      failed(opened.error());
    }
    const Duration wait = backoff.next();
    (void)co_await loop.sleep(wait, token);
  }
}

// Until something is wrong with the store, or the token fires.
io::Task<Error> Replicas::Impl::converse(StoreConnection& store, io::CancelToken token) {
  io::Loop& loop = loops.at(0);
  std::string commands;
  std::vector<std::pair<std::shared_ptr<SharedPool>, std::vector<SharedPool::Question>>> asked;
  while (true) {
    commands.clear();
    asked.clear();
    append_command(commands, {"TIME"});
    size_t replies = 1;
    const TimePoint now = clock.now();
    const std::vector<std::shared_ptr<SharedPool>> serving = current_pools();
    for (const auto& pool : left_pools()) pool->append_farewell(commands, replies);
    const size_t farewells = replies - 1;
    for (const auto& pool : serving) {
      auto& questions = asked.emplace_back(pool, std::vector<SharedPool::Question>()).second;
      pool->ask(commands, questions, store.clock(), now);
      replies += questions.size();
    }
    auto answer = co_await store.exchange(commands, replies, options.store.timeout, token);
    if (!answer.ok()) {
      for (const auto& [pool, questions] : asked) pool->lost(questions);
      co_return std::move(answer).error();
    }
    if (Status status = store.take_time(answer->front()); !status.ok()) co_return std::move(status).error();
    metrics.exchange_seconds.with({}).observe(to_seconds(store.clock().answered - store.clock().asked));
    count_bytes(store);
    std::span<const RespReply> rest = answer->subspan(1 + farewells);
    std::optional<Error> full;
    std::optional<Error> refused;
    bool behind = false;
    bool wrote = false;
    for (const auto& [pool, questions] : asked) {
      Status status = pool->take(questions, rest.first(questions.size()), store.clock());
      rest = rest.subspan(questions.size());
      behind = behind || pool->behind();
      wrote = wrote || pool->wrote();
      if (status.ok()) continue;
      (status.error().code == ErrorCode::kResourceExhausted ? full : refused) = std::move(status).error();
    }
    if (refused) co_return *std::move(refused);
    connected_now();
    if (full) {
      failed(*full);
    } else if (wrote) {
      takes_all_again();
    }
    const Duration pause = behind ? std::min(kCatchUp, options.interval) : options.interval;
    const bool goes_on = co_await loop.sleep(pause, token);
    if (!goes_on) co_return Error{ErrorCode::kCancelled, "the process ends"};
  }
}

io::Task<void> Replicas::Impl::farewell(StoreConnection& store) {
  std::string commands;
  size_t replies = 0;
  for (const auto& pool : current_pools()) pool->append_farewell(commands, replies);
  if (replies == 0) co_return;
  const io::CancelToken none;
  auto answer = co_await store.exchange(commands, replies, kFarewell, none);
  if (!answer.ok()) {
    telemetry::log_debug("no farewell to the store of shared state", {{"error", answer.error().message}});
  }
}

io::Task<void> Replicas::Impl::fade() {
  io::Loop& loop = loops.at(0);
  const io::CancelToken token = loop.shutdown_token();
  do {
    const TimePoint now = clock.now();
    // What would become too old before the next look has to go now.
    for (const auto& pool : current_pools()) pool->fade(now, now + options.interval);
  } while (co_await loop.sleep(options.interval, token));
}

Replicas::Replicas(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Replicas::~Replicas() {
  stop();
}

Result<std::unique_ptr<Replicas>> Replicas::create(ReplicasOptions options,
                                                   telemetry::MetricRegistry& metrics) {
  if (options.replica.empty()) options.replica = default_replica();
  if (options.store.address.tls) {
    io::TlsClientOptions tls;
    tls.verify = !options.skip_verify;
    tls.ca_file = options.ca_file;
    tls.alpn.clear();
    auto context = io::TlsClientContext::create(tls);
    if (!context.ok()) return context.error().wrap("TLS of the shared state");
    options.store.tls = *context;
  }
  return std::unique_ptr<Replicas>(new Replicas(std::make_unique<Impl>(std::move(options), metrics)));
}

std::shared_ptr<SharedPool> Replicas::join(const std::string& ns, const std::string& name, Members members) {
  SharedPool::Options pool;
  pool.ns = ns;
  pool.name = name;
  {
    const std::lock_guard lock(impl_->mutex);
    pool.incarnation = impl_->incarnation + impl_->joined++;
  }
  pool.field = peer_field(impl_->options.replica, pool.incarnation);
  pool.hashing = xxh64(impl_->options.hashing);
  pool.staleness = impl_->options.staleness;
  pool.heartbeat = impl_->options.staleness / 4;
  pool.load = impl_->options.load;
  pool.prefixes = impl_->options.prefixes;
  pool.stream_length = impl_->options.stream_length;
  pool.loops = impl_->options.loops;
  auto made = SharedPool::create(std::move(pool), std::move(members), impl_->metrics);
  if (!made.ok()) {
    telemetry::log_error("no memory for shared state: the pool shares none",
                         {{"pool", name}, {"error", made.error().message}});
    return nullptr;
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->pools.push_back(*made);
  return *std::move(made);
}

void Replicas::start() {
  if (std::exchange(impl_->started, true)) return;
  impl_->loops.start();
  io::spawn(impl_->loops.at(0), impl_->run());
  io::spawn(impl_->loops.at(0), impl_->fade());
}

void Replicas::stop() {
  impl_->loops.stop();
}

std::string Replicas::state_json() const {
  std::vector<std::shared_ptr<SharedPool>> pools;
  std::string out;
  const TimePoint now = impl_->clock.now();
  {
    const std::lock_guard lock(impl_->mutex);
    pools = impl_->pools;
    out = fmt::format(
        "{{\"store\":{},\"state\":\"{}\",\"since_s\":{:.1f},\"error\":{},\"replica\":{},"
        "\"staleness_bound_s\":{},\"pools\":{{",
        json_quote(impl_->options.store.address.shown()), impl_->state, to_seconds(now - impl_->since),
        json_quote(impl_->error), json_quote(impl_->options.replica), to_seconds(impl_->options.staleness));
  }
  bool first = true;
  for (const auto& pool : pools) {
    if (pool->left()) continue;
    out += fmt::format("{}{}:{{", first ? "" : ",", json_quote(pool->ns() + "/" + pool->name()));
    pool->append_json(out, now);
    out += '}';
    first = false;
  }
  return out + "}}\n";
}

}  // namespace penstock::sharing
