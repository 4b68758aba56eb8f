#include "extproc/door.h"

#include <array>
#include <random>

#include "assembly/await_questions.h"
#include "base/strings.h"
#include "director/pictures.h"
#include "extproc/core.h"
#include "extproc/processor.h"
#include "telemetry/log.h"

namespace penstock::extproc {

namespace {

using director::CollectedFamily;
using io::GrpcCode;
using io::GrpcServerStream;
using io::GrpcStatus;
using io::Task;

constexpr std::array<CollectedFamily, 4> kFamilies{{
    {"penstock_extproc_streams_open", telemetry::MetricType::kGauge, "", "Process streams that are open."},
    {"penstock_requests_active", telemetry::MetricType::kGauge, "", "Requests being served right now."},
    {"penstock_extproc_undecided", telemetry::MetricType::kGauge, "",
     "Requests whose data plane waits for an answer."},
    {"penstock_extproc_credits", telemetry::MetricType::kGauge, "",
     "Reservations of requests whose answers nobody watches, until the next scrape."},
}};

void collect(const Core& core, telemetry::Writer& out) {
  const std::array<int64_t, kFamilies.size()> values{
      core.open.load(std::memory_order_relaxed), core.active.load(std::memory_order_relaxed),
      core.undecided.load(std::memory_order_relaxed), core.credits.load(std::memory_order_relaxed)};
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    out.header(kFamilies[i].name, kFamilies[i].help, kFamilies[i].type);
    out.sample(kFamilies[i].name, {}, static_cast<double>(values[i]));
  }
  const std::shared_ptr<const ServedPools> served = core.pools.get();
  std::vector<director::ServedPool> pools;
  for (const PoolHandle& one : served->pools) {
    if (one->pool.metrics == nullptr) pools.push_back({one->pool.pool, one->pool.members});
  }
  director::collect_door(core.bodies, core.access_log, pools, core.clock.now(), out);
}

uint64_t seed_from_system() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32U) | device();
}

// As Go spells them, which dashboards and alerts of the reference ask for.
std::string_view go_name(GrpcCode code) {
  static constexpr std::array<std::string_view, 17> kNames{
      "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
      "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
      "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
      "DataLoss", "Unauthenticated"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "Unknown";
}

// Counts a stream for as long as it lives.
class Open {
 public:
  explicit Open(Core& core) : core_(core) {
    core_.open.fetch_add(1, std::memory_order_relaxed);
    core_.total.fetch_add(1, std::memory_order_relaxed);
    if (core_.metrics.inflight == nullptr) return;
    core_.metrics.inflight->add(1);
    since_ = core_.clock.now();
  }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  ~Open() {
    core_.open.fetch_sub(1, std::memory_order_relaxed);
    if (core_.metrics.inflight == nullptr) return;
    core_.metrics.inflight->add(-1);
    core_.metrics.duration->observe(to_seconds(core_.clock.now() - since_));
    core_.metrics.codes->with({go_name(code)}).add();
  }
  GrpcCode code = GrpcCode::kCancelled;

 private:
  Core& core_;
  TimePoint since_ = kNever;
};

// Answers for one message, lent by the loop.
class Lent {
 public:
  explicit Lent(LoopPart& part) : part_(part), answers_(part.answers.take()) { answers_->clear(); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { part_.answers.give_back(std::move(answers_)); }
  Answers& operator*() { return *answers_; }
  Answers* operator->() { return answers_.get(); }

 private:
  LoopPart& part_;
  std::unique_ptr<Answers> answers_;
};

// What broke a stream off: a connection that ends with its streams is not a client that has gone.
Error broken_by(GrpcServerStream& stream, Error error) {
  if (error.code == ErrorCode::kClientClosed && stream.exchange().connection_lost()) {
    error.code = ErrorCode::kIo;
  }
  return error;
}

Error ended_while_asking(const GrpcServerStream& stream) {
  if (stream.deadline_passed())
    return Error{ErrorCode::kRequestTimeout, "the call's deadline passed before the request was decided"};
  return Error{ErrorCode::kClientClosed, "the stream ended before the request was decided"};
}

// What a stream may mean its pool by.
PoolChoice::Answer choose(const PoolChoice& names, GrpcServerStream& stream) {
  if (names.given()) return PoolChoice::Answer(size_t{0});
  std::vector<std::string_view> fields;
  for (const io::HeaderField& field : stream.request().fields) {
    if (field.name == kPoolField) fields.push_back(trim(field.value));
  }
  StreamNames said;
  said.fields = fields;
  said.authority = stream.request().authority;
  const io::ConnectionInfo& connection = stream.exchange().connection();
  if (connection.listener.starts_with(Door::kPoolListener)) said.port = connection.local.port();
  return names.choose(said);
}

PoolPart& part_of(ServedPool& pool, LoopPart& part) {
  std::unique_ptr<PoolPart>& own = pool.parts[part.index];
  if (own == nullptr) {
    own = std::make_unique<PoolPart>(part, *pool.pool.pool, pool.pool.freshness_budget, part.loop,
                                     std::make_unique<director::TablePictures>(
                                         *pool.pool.members, *pool.pool.signals, pool.pool.freshness_budget));
  }
  return *own;
}

// A stream's hold on its pool.
class InPool {
 public:
  InPool(ServedPool& pool, LoopPart& part) : pool_(pool), part_(part_of(pool, part)) { ++part_.streams; }
  InPool(const InPool&) = delete;
  InPool& operator=(const InPool&) = delete;
  ~InPool() {
    if (--part_.streams != 0 || !part_.leaving) return;
    pool_.parts[part_.part.index].reset();
    pool_.loops_to_leave.fetch_sub(1, std::memory_order_release);
  }
  PoolPart& part() { return part_; }

 private:
  ServedPool& pool_;
  PoolPart& part_;
};

Task<GrpcStatus> run(LoopPart& part, GrpcServerStream& stream) {
  Open open(part.core);
  const ServedPools& pools = *part.pools.current();
  PoolChoice::Answer choice = choose(pools.names, stream);
  if (!choice.pool) {
    part.core.metrics.unassigned.with({failure_name(choice.failure)}).add();
    telemetry::log_debug("a stream without a pool", {{"error", choice.message}});
    GrpcStatus status(
        choice.failure == PoolChoice::Failure::kUnknown ? GrpcCode::kNotFound : GrpcCode::kFailedPrecondition,
        std::move(choice.message));
    open.code = status.code;
    co_return status;
  }
  InPool in(*pools.pools[*choice.pool], part);
  Processor processor(in.part());
  bool with_last = false;
  for (;;) {
    GrpcServerStream::Read read = co_await stream.read_message(processor.patience());
    Processor::Next next = Processor::Next::kRead;
    Lent answers(part);
    if (read.ok() && !read->has_value()) {
      processor.ended();
      open.code = GrpcCode::kOk;
      co_return GrpcStatus();
    }
    if (read.ok()) {
      next = processor.message(**read, *answers, with_last);
      with_last = stream.message_ready();
    } else if (read.error().code == ErrorCode::kRequestTimeout && !stream.deadline_passed() &&
               processor.waits_for_request()) {
      next = processor.overdue(*answers);
    } else {
      processor.ended(broken_by(stream, read.error()));
      GrpcStatus status = io::grpc_status_of(read.error());
      open.code = status.code;
      co_return status;
    }
    if (next == Processor::Next::kAsk) {
      co_await assembly::await_questions(stream.loop(), processor.request(), stream.cancel_token());
      if (stream.cancel_token().cancelled()) {
        // Nobody waits for the decision any more: no plugin is told of a request that will not be sent.
        const Error gone = broken_by(stream, ended_while_asking(stream));
        processor.ended(gone);
        GrpcStatus status = io::grpc_status_of(gone);
        open.code = status.code;
        co_return status;
      }
      next = processor.resume(*answers);
    }
    if (next == Processor::Next::kFail) {
      open.code = processor.failure().code;
      co_return processor.failure();
    }
    if (next == Processor::Next::kClose) {
      const Status finished = co_await stream.finish(GrpcStatus(), answers->messages());
      if (finished.ok()) open.code = GrpcCode::kOk;
      co_return GrpcStatus();
    }
    if (!answers->empty()) {
      std::optional<Status> wrote = stream.write_messages_there(answers->messages());
      if (!wrote) {
        with_last = false;  // time has passed
        Status waited = co_await stream.write_messages(answers->messages());
        wrote.emplace(std::move(waited));
      }
      processor.sent();
      if (!wrote->ok()) {
        processor.ended(broken_by(stream, wrote->error()));
        GrpcStatus status = io::grpc_status_of(wrote->error());
        open.code = status.code;
        co_return status;
      }
    } else {
      processor.sent();
    }
  }
}

}  // namespace

struct Door::Impl {
  Impl(io::LoopGroup& group, telemetry::MetricRegistry& registry, const Clock& clock,
       director::AccessLog* access_log, DoorOptions options)
      : loops(group), metrics(registry), core(registry, clock, access_log, options), parts(group.size()) {
    core.pools.publish(
        std::make_shared<const ServedPools>(ServedPools{PoolChoice(std::vector<PoolNames>()), {}}));
    collector = metrics.add_collector([this](telemetry::Writer& out) { collect(core, out); });
  }
  ~Impl() {
    metrics.remove_collector(collector);
    for (const PoolHandle& pool : pools) {
      forget_metrics(*pool);
      pool->parts.clear();  // they refer to what is destroyed now, whoever has the handle
    }
  }
  static void forget_metrics(ServedPool& pool) {
    if (pool.collector != 0) pool.pool.metrics->remove_collector(std::exchange(pool.collector, 0));
  }

  // On the loop itself.
  LoopPart& part(io::Loop& loop) {
    std::unique_ptr<LoopPart>& part = parts[loop.index()];
    if (part == nullptr) part = std::make_unique<LoopPart>(core, &loop, loop.index());
    return *part;
  }

  io::LoopGroup& loops;
  telemetry::MetricRegistry& metrics;
  uint64_t collector = 0;
  Core core;
  std::vector<std::unique_ptr<LoopPart>> parts;
  std::vector<PoolHandle> pools;  // that have not left
};

std::span<const CollectedFamily> collected_families() {
  static const std::vector<CollectedFamily> families = [] {
    std::vector<CollectedFamily> all(kFamilies.begin(), kFamilies.end());
    all.insert(all.end(), director::door_families().begin(), director::door_families().end());
    return all;
  }();
  return families;
}

Door::Door(io::LoopGroup& loops, telemetry::MetricRegistry& metrics, const Clock& clock,
           director::AccessLog* access_log, DoorOptions options) {
  if (options.seed == 0) options.seed = seed_from_system();
  impl_ = std::make_unique<Impl>(loops, metrics, clock, access_log, options);
}

Door::Door(io::LoopGroup& loops, telemetry::MetricRegistry& metrics, const Clock& clock,
           director::AccessLog* access_log, DoorOptions options, DoorPool pool)
    : Door(loops, metrics, clock, access_log, options) {
  auto only = std::make_shared<ServedPools>();
  only->pools.push_back(add(pool));
  impl_->core.pools.publish(std::move(only));
}

Door::~Door() = default;

void Door::serve(io::GrpcRouter& router) {
  router.add(std::string(kProcessPath), [impl = impl_.get()](GrpcServerStream& stream) {
    return run(impl->part(stream.loop()), stream);
  });
}

PoolHandle Door::add(DoorPool pool) {
  auto served = std::make_shared<ServedPool>(pool, impl_->loops.size());
  if (pool.metrics != nullptr) {
    served->collector =
        pool.metrics->add_collector([pool, &clock = impl_->core.clock](telemetry::Writer& out) {
          const std::array<director::ServedPool, 1> pools{{{pool.pool, pool.members}}};
          director::collect_pools(pools, clock.now(), out);
        });
  }
  impl_->pools.push_back(served);
  return served;
}

void Door::choose_among(std::vector<NamedPool> pools) {
  auto served = std::make_shared<ServedPools>();
  std::vector<PoolNames> names;
  for (NamedPool& pool : pools) {
    served->pools.push_back(std::move(pool.pool));
    names.push_back(std::move(pool.names));
  }
  served->names = PoolChoice(std::move(names));
  impl_->core.pools.publish(std::move(served));
}

void Door::leave(const PoolHandle& pool) {
  Impl::forget_metrics(*pool);
  for (size_t i = 0; i < impl_->loops.size(); ++i) {
    impl_->loops.at(i).post([impl = impl_.get(), i, pool] {
      impl->part(impl->loops.at(i)).pools.current();  // new streams don't see it
      std::unique_ptr<PoolPart>& part = pool->parts[i];
      if (part != nullptr && part->streams != 0) {
        part->leaving = true;
        return;
      }
      part.reset();
      pool->loops_to_leave.fetch_sub(1, std::memory_order_release);
    });
  }
}

bool Door::left(const PoolHandle& pool) const {
  if (pool->loops_to_leave.load(std::memory_order_acquire) != 0) return false;
  std::erase(impl_->pools, pool);
  return true;
}

void Door::begin_stop() {
  impl_->core.stopping = true;
}

Door::Stats Door::stats() const {
  const Core& core = impl_->core;
  return {core.open.load(),   core.active.load(),  core.undecided.load(),
          core.bodies.held(), core.credits.load(), core.total.load()};
}

void Door::release_idle_memory() {
  for (size_t i = 0; i < impl_->loops.size(); ++i) {
    impl_->loops.at(i).post([impl = impl_.get(), i] {
      if (impl->parts[i] != nullptr) impl->parts[i]->release_idle_memory();
      io::release_recycled_buffers();
    });
  }
}

Result<std::string> Door::explain(const ExplainRequest& request) {
  io::Loop* loop = io::Loop::current();
  if (loop == nullptr) return Error{ErrorCode::kInternal, "explain runs on one of the loops"};
  LoopPart& part = impl_->part(*loop);
  const ServedPools& pools = *part.pools.current();
  std::vector<HeaderField> fields;
  std::vector<std::string_view> named;
  for (const auto& [name, value] : request.headers) {
    if (name == kPoolField) {
      named.push_back(value);
    } else {
      fields.push_back({name, value});
    }
  }
  if (!request.pool.empty()) named = {request.pool};
  StreamNames said;
  said.fields = named;
  const PoolChoice::Answer choice = pools.names.choose(said);
  if (!choice.pool) return Error{ErrorCode::kNotFound, choice.message};
  InPool in(*pools.pools[*choice.pool], part);
  std::string padded = request.body;
  padded.append(protocol::kBodyPadding, '\0');
  director::RequestInput input;
  input.request_id = "explain";
  input.method = request.method;
  input.path = std::string_view(request.path).substr(0, request.path.find('?'));
  input.headers = fields;
  input.body = {padded.data(), request.body.size()};
  input.bodyless = request.body.empty();
  input.received_at = impl_->core.clock.now();
  director::Request scratch;
  return in.part().director.explain(scratch, input);
}

}  // namespace penstock::extproc
