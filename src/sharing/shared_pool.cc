#include "sharing/shared_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/strings.h"
#include "io/loop.h"
#include "telemetry/log.h"

namespace penstock::sharing {

namespace {

constexpr size_t kQueueBytes = 256 << 10;
constexpr size_t kMaxPromptBlocks = 4096;        // told of one prompt: its beginning
constexpr size_t kBatchBytes = 32 << 10;         // of a batch, unless one prompt is more
constexpr size_t kExchangeBytes = 512 << 10;     // of batches in one exchange
constexpr std::string_view kBatchesRead = "16";  // in one exchange
constexpr size_t kBatchesReadNumber = 16;
constexpr size_t kMaxSenders = 256;
constexpr std::array<std::string_view, 5> kShownStates{"fresh", "stale", "other_version", "unreadable",
                                                       "other_hashing"};
constexpr std::array<std::string_view, 9> kPrefixEvents{
    "told",          "dropped",    "applied", "unknown_endpoint", "other_block_size", "other_hashing",
    "other_version", "unreadable", "missed"};
// What the store keeps of a pool that nobody serves any more.
constexpr std::string_view kKeyLifeMs = "600000";
constexpr Duration kKeepEvery = std::chrono::minutes(1);

std::string key_of(const std::string& ns, const std::string& name, std::string_view what) {
  return fmt::format("penstock:{{{}/{}}}:{}", ns, name, what);
}

std::string_view bytes_of(const std::string& text) {
  return text;
}

// A new value is written only where it differs: the line is read by every decision.
template <typename T>
void set(std::atomic<T>& to, T value) {
  if (to.load(std::memory_order_relaxed) != value) to.store(value, std::memory_order_relaxed);
}

}  // namespace

SharedPool::SharedPool(Options options, Members members, Metrics& metrics)
    : options_(std::move(options)),
      load_key_(key_of(options_.ns, options_.name, "load")),
      prefix_key_(key_of(options_.ns, options_.name, "prefix")),
      label_(options_.ns + "/" + options_.name),
      metrics_(metrics),
      members_(std::move(members)),
      peers_(options_.field, options_.staleness, options_.hashing) {}

Result<std::shared_ptr<SharedPool>> SharedPool::create(Options options, Members members, Metrics& metrics) {
  std::shared_ptr<SharedPool> pool(new SharedPool(std::move(options), std::move(members), metrics));
  const size_t queues = pool->options_.prefixes ? std::max<size_t>(pool->options_.loops, 1) : 0;
  for (size_t i = 0; i < queues; ++i) {
    auto ring = kvindex::Mapping::reserve(kQueueBytes);
    if (!ring.ok()) return std::move(ring).error();
    pool->queues_.push_back(std::make_unique<kvindex::InsertQueue>(*std::move(ring), kQueueBytes));
  }
  return pool;
}

void SharedPool::count(std::string_view event, uint64_t n) {
  if (left()) return;
  metrics_.prefixes.update({label_, event}, [n](telemetry::Counter& counter) { counter.add(n); });
}

// --- from the loops --------------------------------------------------------------------------------------

void SharedPool::entered(std::string_view producer, const Endpoint& endpoint, uint32_t block_size_tokens,
                         std::span<const uint64_t> hashes) {
  if (queues_.empty() || left()) return;
  const io::Loop* loop = io::Loop::current();
  kvindex::InsertQueue& queue = *queues_[loop == nullptr ? 0 : loop->index() % queues_.size()];
  const uint64_t place = place_key(endpoint_key(endpoint.host_port), producer);
  if (!queue.push({place, block_size_tokens, 0}, hashes.first(std::min(hashes.size(), kMaxPromptBlocks))))
    dropped_.fetch_add(1, std::memory_order_relaxed);
}

// --- membership ------------------------------------------------------------------------------------------

void SharedPool::set_producers(std::vector<std::weak_ptr<const SharedPrefixes>> producers) {
  const std::lock_guard lock(mutex_);
  producers_ = std::move(producers);
  places_old_ = true;
}

void SharedPool::leave() {
  if (left_.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  members_ = nullptr;
  producers_.clear();
  snapshot_.reset();
  keys_.clear();
  places_.clear();
}

void SharedPool::remove_series() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, state] : shown_) metrics_.staleness.remove({label_, id});
  for (const std::string_view state : kShownStates) metrics_.replicas.remove({label_, state});
  for (const std::string_view event : kPrefixEvents) metrics_.prefixes.remove({label_, event});
}

void SharedPool::refresh_members() {
  if (!members_) return;
  std::shared_ptr<const PoolSnapshot> now = members_();
  if (now == snapshot_) return;
  snapshot_ = std::move(now);
  places_old_ = true;
  keys_.clear();
  for (const auto& endpoint : snapshot_->endpoints) keys_.push_back(endpoint_key(endpoint->host_port));
}

void SharedPool::rebuild_places() {
  if (!places_old_ || snapshot_ == nullptr) return;
  places_old_ = false;
  places_.clear();
  for (size_t p = 0; p < producers_.size(); ++p) {
    const auto producer = producers_[p].lock();
    if (producer == nullptr) continue;
    for (size_t i = 0; i < keys_.size(); ++i) {
      places_.try_emplace(place_key(keys_[i], producer->name()), Place{snapshot_->endpoints[i], p});
    }
  }
}

// --- what is told ----------------------------------------------------------------------------------------

void SharedPool::ask(std::string& commands, std::vector<Question>& questions, const StoreClock& clock,
                     TimePoint now) {
  const std::lock_guard lock(mutex_);
  behind_ = false;
  refresh_members();
  if (snapshot_ == nullptr) return;
  const uint64_t batches = batches_;
  if (options_.load) ask_load(commands, questions, clock, now);
  if (options_.prefixes) ask_prefixes(commands, questions);
  // The first batch may have made the stream, which then has no end of life yet.
  const bool made_stream = batches == 0 && batches_ != 0;
  if (!made_stream && kept_at_ != kNever && now - kept_at_ < kKeepEvery) return;
  kept_at_ = now;
  append_command(commands, {"PEXPIRE", load_key_, kKeyLifeMs});
  append_command(commands, {"PEXPIRE", prefix_key_, kKeyLifeMs});
  questions.insert(questions.end(), {{Expected::kAny}, {Expected::kAny}});
  for (const std::string& field : peers_.forgotten(now)) {
    append_command(commands, {"HDEL", load_key_, field});
    questions.push_back({Expected::kAny});
  }
}

void SharedPool::ask_load(std::string& commands, std::vector<Question>& questions, const StoreClock& clock,
                          TimePoint now) {
  loads_.clear();
  for (size_t i = 0; i < keys_.size(); ++i) {
    const EndpointLive& live = *snapshot_->endpoints[i]->live;
    const EndpointLive::InFlight own = live.own_in_flight();
    if (own.requests == 0 && own.tokens == 0) continue;
    loads_.push_back({keys_[i], static_cast<uint32_t>(own.requests), live.unseen.newest(), own.tokens});
  }
  if (written_at_ == kNever || now - written_at_ >= options_.heartbeat || loads_ != written_) {
    written_at_ = now;
    written_ = loads_;
    LoadRecord record{clock.earliest(now), ++sequence_, options_.hashing, std::move(loads_)};
    std::string bytes;
    append_load_record(bytes, record);
    loads_ = std::move(record.loads);
    append_command(commands, {"HSET", load_key_, options_.field, bytes});
    questions.push_back({Expected::kWritten});
  }
  append_command(commands, {"HGETALL", load_key_});
  questions.push_back({Expected::kLoads});
}

void SharedPool::ask_prefixes(std::string& commands, std::vector<Question>& questions) {
  drain_queues(commands, questions);
  // Before there is somebody to learn it, and of whom, it stays to be read.
  if (keys_.empty() || producers_.empty()) return;
  append_command(commands, {"XREAD", "COUNT", kBatchesRead, "STREAMS", prefix_key_, read_to_});
  questions.push_back({Expected::kBatches});
}

void SharedPool::drain_queues(std::string& commands, std::vector<Question>& questions) {
  const size_t begin = commands.size();
  uint32_t prompts = 0;
  const std::string length = std::to_string(options_.stream_length);
  const auto flush = [&] {
    if (prompts == 0) return;
    append_command(commands, {"XADD", prefix_key_, "MAXLEN", "~", length, "*", "b", bytes_of(batch_)});
    questions.push_back({Expected::kBatch, prompts});
    prompts = 0;
  };
  kvindex::InsertQueue::Header header;
  for (const auto& queue : queues_) {
    while (commands.size() - begin < kExchangeBytes && queue->pop(header, hashes_)) {
      if (batch_.size() + prefix_bytes(hashes_.size()) > kBatchBytes) flush();
      if (prompts == 0) {
        batch_.clear();
        append_prefix_header(batch_, {options_.incarnation, ++batches_, options_.hashing});
      }
      append_prefix(batch_, {header.owner, header.capacity_blocks, hashes_});
      ++prompts;
    }
  }
  flush();
  if (commands.size() - begin >= kExchangeBytes) behind_ = true;
}

void SharedPool::append_farewell(std::string& commands, size_t& replies) const {
  if (!options_.load) return;
  append_command(commands, {"HDEL", load_key_, options_.field});
  ++replies;
}

// --- what was told ---------------------------------------------------------------------------------------

Status SharedPool::take(std::span<const Question> questions, std::span<const RespReply> replies,
                        const StoreClock& clock) {
  const std::lock_guard lock(mutex_);
  wrote_ = false;
  Status failure;
  const auto fail = [&](const RespReply& reply) {
    Error error = reply.is_error() ? store_error(reply.text)
                                   : Error{ErrorCode::kBadGateway, "a reply of the store is of another kind"};
    const bool worse = failure.ok() || (failure.error().code == ErrorCode::kResourceExhausted &&
                                        error.code != ErrorCode::kResourceExhausted);
    if (worse) failure = std::move(error);
  };
  for (size_t i = 0; i < questions.size(); ++i) {
    const RespReply& reply = replies[i];
    switch (questions[i].expected) {
      case Expected::kWritten:
        wrote_ = wrote_ || !reply.is_error();
        if (reply.is_error()) fail(reply);
        break;
      case Expected::kLoads:
        if (reply.kind != RespReply::Kind::kArray) {
          fail(reply);
          break;
        }
        peers_.take(reply.items, clock);
        spread_load();
        break;
      case Expected::kBatch:
        wrote_ = wrote_ || !reply.is_error();
        count(reply.is_error() ? "dropped" : "told", questions[i].prompts);
        if (reply.is_error()) fail(reply);
        break;
      case Expected::kBatches:
        if (reply.kind == RespReply::Kind::kArray) {
          take_batches(reply);
        } else if (reply.kind != RespReply::Kind::kNull) {
          fail(reply);
        }
        break;
      case Expected::kAny:
        break;
    }
  }
  return failure;
}

void SharedPool::lost(std::span<const Question> questions) {
  const std::lock_guard lock(mutex_);
  for (const Question& question : questions) {
    if (question.expected == Expected::kBatch) count("dropped", question.prompts);
  }
}

void SharedPool::reconnected(const StoreClock& clock, bool skip) {
  const std::lock_guard lock(mutex_);
  written_at_ = kNever;
  kept_at_ = kNever;
  const uint64_t now_ms = clock.store_us / 1000;
  uint64_t read_ms = 0;
  std::from_chars(read_to_.data(), read_to_.data() + read_to_.size(), read_ms);
  if (skip) {
    read_to_ = fmt::format("{}-0", now_ms);
  } else if (read_ms > now_ms) {
    // Another store, or one whose clock went back: its entries would never come.
    read_to_ = "0-0";
  }
}

void SharedPool::spread_load() {
  if (snapshot_ == nullptr) return;
  peers_.sum(sums_);
  size_t met = 0;
  for (size_t i = 0; i < keys_.size(); ++i) {
    EndpointLive& live = *snapshot_->endpoints[i]->live;
    const auto found = sums_.find(keys_[i]);
    const Peers::Sum sum = found == sums_.end() ? Peers::Sum() : found->second;
    met += found == sums_.end() ? 0 : 1;
    set(live.others, EndpointLive::pack(std::min<uint64_t>(sum.requests, kMaxSharedRequests),
                                        std::min(sum.tokens, kMaxSharedTokens)));
    set(live.others_unseen, static_cast<uint32_t>(std::min<uint64_t>(sum.unseen, kMaxSharedRequests)));
  }
  strangers_ = sums_.size() - std::min(met, sums_.size());
}

void SharedPool::fade(TimePoint now, TimePoint until) {
  const std::lock_guard lock(mutex_);
  if (left()) return;
  refresh_members();
  if (peers_.fade(until)) spread_load();
  count("dropped", dropped_.exchange(0, std::memory_order_relaxed));
  show_peers(now);
}

void SharedPool::show_peers(TimePoint now) {
  struct Shown {
    PeerState state;
    Duration age;
  };
  std::map<std::string_view, Shown> by_id;
  std::array<uint64_t, kShownStates.size()> states{};
  for (const auto& [field, peer] : peers_.all()) {
    ++states[static_cast<size_t>(peer.state)];
    if (!peer.same_hashing && peer.state == PeerState::kFresh) ++states.back();
    const auto [it, first] = by_id.try_emplace(peer.id, Shown{peer.state, peer.age(now)});
    if (!first && peer.age(now) < it->second.age) it->second = {peer.state, peer.age(now)};
  }
  for (size_t i = 0; i < states.size(); ++i) {
    metrics_.replicas.update({label_, kShownStates[i]},
                             [n = static_cast<double>(states[i])](telemetry::Gauge& gauge) { gauge.set(n); });
  }
  for (const auto& [id, shown] : by_id) {
    metrics_.staleness.update({label_, id},
                              [&](telemetry::Gauge& gauge) { gauge.set(to_seconds(shown.age)); });
    const auto [it, first] = shown_.try_emplace(std::string(id), shown.state);
    if (first || it->second != shown.state) {
      telemetry::log_info("another replica of the pool",
                          {{"pool", label_}, {"replica", id}, {"state", peer_state_name(shown.state)}});
    }
    it->second = shown.state;
  }
  std::erase_if(shown_, [&](const auto& entry) {
    if (by_id.contains(entry.first)) return false;
    metrics_.staleness.remove({label_, entry.first});
    telemetry::log_info("another replica of the pool has gone", {{"pool", label_}, {"replica", entry.first}});
    return true;
  });
}

void SharedPool::take_batches(const RespReply& reply) {
  rebuild_places();
  for (const RespReply& stream : reply.items) {
    if (stream.items.size() != 2) continue;
    const std::vector<RespReply>& entries = stream.items[1].items;
    if (entries.size() >= kBatchesReadNumber) behind_ = true;
    for (const RespReply& entry : entries) {
      if (entry.items.empty() || entry.items[0].text.empty()) continue;
      read_to_ = entry.items[0].text;
      const bool whole = entry.items.size() == 2 && entry.items[1].items.size() == 2;
      if (whole) {
        take_batch(entry.items[1].items[1].text);
      } else {
        count("unreadable");
      }
    }
  }
}

void SharedPool::take_batch(std::string_view bytes) {
  PrefixBatchReader reader(bytes);
  PrefixBatchHeader header;
  const Decoded decoded = reader.header(header);
  if (decoded != Decoded::kOk) {
    count(decoded == Decoded::kOtherVersion ? "other_version" : "unreadable");
    return;
  }
  if (header.sender == options_.incarnation) return;
  if (header.hashing != options_.hashing) {
    count("other_hashing");
    return;
  }
  if (sequences_.size() >= kMaxSenders && !sequences_.contains(header.sender)) sequences_.clear();
  const auto [last, first] = sequences_.try_emplace(header.sender, header.sequence);
  if (!first && header.sequence > last->second + 1) count("missed", header.sequence - last->second - 1);
  last->second = std::max(last->second, header.sequence);
  while (const std::optional<SharedPrefix> prefix = reader.next()) {
    const auto place = places_.find(prefix->place);
    const auto producer = place == places_.end() ? nullptr : producers_[place->second.producer].lock();
    if (producer == nullptr) {
      count("unknown_endpoint");
    } else {
      const bool learnt = producer->learn(*place->second.endpoint, prefix->block_size, prefix->hashes);
      count(learnt ? "applied" : "other_block_size");
    }
  }
  if (reader.malformed()) count("unreadable");
}

void SharedPool::append_json(std::string& out, TimePoint now) const {
  const std::lock_guard lock(mutex_);
  out += fmt::format("\"incarnation\":\"{:016x}\",\"replicas\":[", options_.incarnation);
  bool first = true;
  for (const auto& [field, peer] : peers_.all()) {
    uint64_t requests = 0;
    uint64_t tokens = 0;
    for (const SharedLoad& load : peer.record.loads) {
      requests += load.requests;
      tokens += load.tokens;
    }
    out += fmt::format(
        "{}{{\"replica\":{},\"incarnation\":{},\"state\":\"{}\",\"age_s\":{:.3f},\"requests\":{},\"tokens\":{"
        "},"
        "\"endpoints\":{},\"prefixes\":\"{}\"}}",
        first ? "" : ",", json_quote(peer.id), json_quote(peer.incarnation), peer_state_name(peer.state),
        to_seconds(peer.age(now)), requests, tokens, peer.record.loads.size(),
        !options_.prefixes   ? "off"
        : !peer.same_hashing ? "refused: it hashes blocks another way"
                             : "shared");
    first = false;
  }
  out += fmt::format("],\"unknown_endpoints\":{},\"replicas_left_out\":{}", strangers_, peers_.left_out());
}

}  // namespace penstock::sharing
