#include "signals/signal_table.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace penstock::signals {

namespace {

constexpr uint32_t kNotCopied = 1;  // odd: no settled row has it

uint64_t pack_states(const std::array<SignalValue, kSignalCount>& signals) {
  uint64_t packed = 0;
  for (size_t i = 0; i < kSignalCount; ++i) packed |= static_cast<uint64_t>(signals[i].state) << (8 * i);
  return packed;
}

uint64_t pack_lora(const LoraSignal& lora) {
  return static_cast<uint64_t>(lora.state) | static_cast<uint64_t>(lora.running_count) << 8U |
         static_cast<uint64_t>(lora.waiting_count) << 16U |
         static_cast<uint64_t>(static_cast<uint32_t>(lora.max_adapters)) << 32U;
}

uint64_t pack_time(TimePoint t) {
  return static_cast<uint64_t>(t.time_since_epoch().count());
}
TimePoint unpack_time(uint64_t word) {
  return TimePoint(Duration(static_cast<int64_t>(word)));
}

}  // namespace

SignalTable::SignalTable(Duration coalesce) : coalesce_ns_(coalesce.count()) {
  static_assert(kSignalCount <= 8 && kMaxAdapters < 256, "states and counts are packed into bytes");
}

SignalTable::~SignalTable() {
  for (auto& block : blocks_) delete block.load();
}

SignalTable::Row* SignalTable::find(EndpointSlot slot) const {
  if (slot >= kMaxEndpoints) return nullptr;
  Block* block = blocks_[slot / kRowsPerBlock].load(std::memory_order_acquire);
  return block == nullptr ? nullptr : &block->rows[slot % kRowsPerBlock];
}

void SignalTable::store(Row& row, const SignalRow& from) {
  const uint32_t sequence = row.sequence.load(std::memory_order_relaxed);
  row.sequence.store(sequence + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  size_t w = 0;
  const auto put = [&](uint64_t word) { row.words[w++].store(word, std::memory_order_relaxed); };
  for (const SignalValue& v : from.signals) put(std::bit_cast<uint64_t>(v.value));
  for (const SignalValue& v : from.signals) put(pack_time(v.observed_at));
  put(pack_states(from.signals));
  put(pack_time(from.lora.observed_at));
  put(pack_lora(from.lora));
  put(from.shown_round);
  for (size_t i = 0; i < from.lora.running_count; ++i) put(from.lora.running[i]);
  for (size_t i = 0; i < from.lora.waiting_count; ++i) put(from.lora.waiting[i]);
  row.sequence.store(sequence + 2, std::memory_order_release);
}

uint32_t SignalTable::load(const Row& row, SignalRow& into) {
  while (true) {
    const uint32_t before = row.sequence.load(std::memory_order_acquire);
    if ((before & 1U) != 0) continue;
    size_t w = 0;
    const auto get = [&] { return row.words[w++].load(std::memory_order_relaxed); };
    for (SignalValue& v : into.signals) v.value = std::bit_cast<double>(get());
    for (SignalValue& v : into.signals) v.observed_at = unpack_time(get());
    const uint64_t states = get();
    for (size_t i = 0; i < kSignalCount; ++i)
      into.signals[i].state = static_cast<SignalState>(states >> (8 * i) & 0xFFU);
    into.lora.observed_at = unpack_time(get());
    const uint64_t lora = get();
    into.lora.state = static_cast<SignalState>(lora & 0xFFU);
    // A torn read may hold any counts: bounded here, rejected by the sequence below.
    into.lora.running_count = static_cast<uint16_t>(std::min<uint64_t>(lora >> 8U & 0xFFU, kMaxAdapters));
    into.lora.waiting_count = static_cast<uint16_t>(std::min<uint64_t>(lora >> 16U & 0xFFU, kMaxAdapters));
    into.lora.max_adapters = static_cast<int32_t>(static_cast<uint32_t>(lora >> 32U));
    into.shown_round = static_cast<UnseenRequests::Round>(get());
    for (size_t i = 0; i < into.lora.running_count; ++i) into.lora.running[i] = get();
    for (size_t i = 0; i < into.lora.waiting_count; ++i) into.lora.waiting[i] = get();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (row.sequence.load(std::memory_order_relaxed) == before) return before;
  }
}

SignalTable::Ticket SignalTable::attach(EndpointSlot slot, TimePoint now) {
  assert(slot < kMaxEndpoints);
  const std::lock_guard lock(mutex_);
  auto& block = blocks_[slot / kRowsPerBlock];
  if (block.load(std::memory_order_relaxed) == nullptr) block.store(new Block, std::memory_order_release);
  Row& row = *find(slot);
  store(row, SignalRow{});
  published(now);
  return {slot, ++row.generation};
}

void SignalTable::detach(const Ticket& ticket, TimePoint now) {
  const std::lock_guard lock(mutex_);
  Row* row = find(ticket.slot);
  if (row == nullptr || row->generation != ticket.generation) return;
  ++row->generation;
  store(*row, SignalRow{});
  published(now);
}

bool SignalTable::write(const Ticket& ticket, const SignalRow& row, TimePoint now) {
  const std::lock_guard lock(mutex_);
  Row* target = find(ticket.slot);
  if (target == nullptr || target->generation != ticket.generation) return false;
  store(*target, row);
  published(now);
  return true;
}

SignalRow SignalTable::read(EndpointSlot slot) const {
  SignalRow row;
  if (const Row* found = find(slot)) load(*found, row);
  return row;
}

void SignalTable::published(TimePoint now) {
  pending_.store(true, std::memory_order_release);
  epoch(now);
}

uint64_t SignalTable::epoch(TimePoint now) {
  if (pending_.load(std::memory_order_acquire)) {
    const int64_t now_ns = now.time_since_epoch().count();
    int64_t last = last_publication_ns_.load(std::memory_order_relaxed);
    // Whoever moves the time publishes; the others read what that one made.
    if (now_ns - last >= coalesce_ns_ && last_publication_ns_.compare_exchange_strong(last, now_ns)) {
      pending_.exchange(false, std::memory_order_acq_rel);
      return epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
    }
  }
  return epoch_.load(std::memory_order_acquire);
}

FrameReader::FrameReader(SignalTable& table, Duration freshness_budget)
    : table_(table), budget_(freshness_budget) {}

void FrameReader::copy_row(const SignalRow& row, size_t i, SignalView& view) const {
  for (size_t s = 0; s < kSignalCount; ++s) {
    view.value[s][i] = row.signals[s].value;
    view.observed_at[s][i] = row.signals[s].observed_at;
    view.state[s][i] = row.signals[s].state;
  }
  view.shown_round[i] = row.shown_round;
  LoraSignal& lora = view.lora_rows[i];
  lora.observed_at = row.lora.observed_at;
  lora.state = row.lora.state;
  lora.max_adapters = row.lora.max_adapters;
  lora.running_count = row.lora.running_count;
  lora.waiting_count = row.lora.waiting_count;
  std::copy_n(row.lora.running.begin(), row.lora.running_count, lora.running.begin());
  std::copy_n(row.lora.waiting.begin(), row.lora.waiting_count, lora.waiting.begin());
}

void FrameReader::expire(SignalView& view, TimePoint now) {
  next_expiry_ = TimePoint::max();
  const auto check = [&](TimePoint observed_at, SignalState& state) {
    if (state != SignalState::kFresh) return;
    if (now - observed_at > budget_) {
      state = SignalState::kStale;
    } else {
      next_expiry_ = std::min(next_expiry_, observed_at + budget_);
    }
  };
  for (size_t s = 0; s < kSignalCount; ++s) {
    for (size_t i = 0; i < view.state[s].size(); ++i) check(view.observed_at[s][i], view.state[s][i]);
  }
  for (LoraSignal& lora : view.lora_rows) check(lora.observed_at, lora.state);
}

void FrameReader::find_oldest(SignalView& view) {
  const auto oldest_of = [&](auto&& at) {
    TimePoint oldest = TimePoint::max();
    for (size_t i = 0; i < view.lora_rows.size(); ++i) {
      const auto& [observed_at, state] = at(i);
      if (!is_known(state, observed_at)) return kNever;
      oldest = std::min(oldest, observed_at);
    }
    return view.lora_rows.empty() ? kNever : oldest;
  };
  for (size_t s = 0; s < kSignalCount; ++s) {
    view.oldest[s] = oldest_of([&](size_t i) { return std::pair(view.observed_at[s][i], view.state[s][i]); });
  }
  view.oldest[kSignalCount] =
      oldest_of([&](size_t i) { return std::pair(view.lora_rows[i].observed_at, view.lora_rows[i].state); });
}

void FrameReader::refresh(const PoolSnapshot& pool, SignalView& view, TimePoint now) {
  const uint64_t epoch = table_.epoch(now);
  const bool moved = pool.epoch != seen_membership_ || sequences_.size() != pool.endpoints.size();
  if (epoch == seen_epoch_ && !moved) {
    if (now > next_expiry_) expire(view, now);
    return;
  }
  if (moved) {
    view.resize(pool.endpoints.size());
    sequences_.assign(pool.endpoints.size(), kNotCopied);
  }
  for (size_t i = 0; i < pool.endpoints.size(); ++i) {
    const SignalTable::Row* row = table_.find(pool.endpoints[i]->slot);
    if (row == nullptr || row->sequence.load(std::memory_order_acquire) == sequences_[i]) continue;
    sequences_[i] = SignalTable::load(*row, scratch_);
    copy_row(scratch_, i, view);
  }
  seen_epoch_ = epoch;
  seen_membership_ = pool.epoch;
  view.epoch = epoch;
  find_oldest(view);
  expire(view, now);
}

}  // namespace penstock::signals
