#include "signals/page_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/hash.h"
#include "base/strings.h"

namespace penstock::signals {

namespace {

constexpr std::string_view kRunningLabel = "running_lora_adapters";
constexpr std::string_view kWaitingLabel = "waiting_lora_adapters";
constexpr std::string_view kMaxLoraLabel = "max_lora";

bool matches(const MetricSpec& spec, const Sample& sample) {
  return std::all_of(spec.labels.begin(), spec.labels.end(), [&](const auto& wanted) {
    const auto value = sample.label(wanted.first);
    return value && *value == wanted.second;
  });
}

// Hashes of the names of a comma-separated list, ascending, without repetitions.
void read_adapters(std::string_view list, std::vector<uint64_t>& out) {
  for (const std::string_view part : split(list, ',')) {
    const std::string_view name = trim(part);
    if (!name.empty()) out.push_back(hash_of(name));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
}

void bound_adapters(std::vector<uint64_t>& names, uint32_t& dropped) {
  if (names.size() <= kMaxAdapters) return;
  dropped += static_cast<uint32_t>(names.size() - kMaxAdapters);
  names.resize(kMaxAdapters);
}

bool is_count(Signal signal) {
  return signal != Signal::kKvUsage;
}

}  // namespace

CompiledEngines::Plan::Plan(std::vector<Entry> all)
    : entries(std::move(all)), names([&] {
        std::vector<std::string> wanted;
        wanted.reserve(entries.size());
        for (const Entry& entry : entries) wanted.push_back(entry.spec->name);
        return wanted;
      }()) {
  entries_of.resize(names.size());
  for (uint32_t i = 0; i < entries.size(); ++i) entries_of[*names.find(entries[i].spec->name)].push_back(i);
}

void CompiledEngines::collect(const EngineMapping& mapping, std::vector<Entry>& out) {
  for (size_t s = 0; s < kSignalCount; ++s) {
    for (const MetricSpec& spec : mapping.rules[s].names)
      out.push_back({&mapping, &spec, Role::kScalar, static_cast<Signal>(s)});
  }
  if (mapping.lora) out.push_back({&mapping, &*mapping.lora, Role::kLora, {}});
  if (mapping.lora_resident) out.push_back({&mapping, &*mapping.lora_resident, Role::kLoraResident, {}});
  if (mapping.cache_info.spec) out.push_back({&mapping, &*mapping.cache_info.spec, Role::kCacheInfo, {}});
}

CompiledEngines::CompiledEngines(EngineTable table)
    : table_(std::move(table)), awake_{std::string(kSleepState), {{"sleep_state", "awake"}}} {
  std::vector<Entry> all;
  for (const EngineMapping& mapping : table_.mappings()) {
    std::vector<Entry> own;
    collect(mapping, own);
    collect(mapping, all);
    own.push_back({nullptr, &awake_, Role::kSleep, {}});
    plans_.push_back(std::make_unique<Plan>(std::move(own)));
  }
  all.push_back({nullptr, &awake_, Role::kSleep, {}});
  plans_.push_back(std::make_unique<Plan>(std::move(all)));
}

PageReader::PageReader(const CompiledEngines& engines, size_t max_page_bytes)
    : engines_(engines), max_page_bytes_(max_page_bytes) {
  begin(nullptr);
}

void PageReader::begin(const EngineMapping* mapping) {
  const auto mappings = engines_.table().mappings();
  const size_t index = mapping == nullptr ? mappings.size() : static_cast<size_t>(mapping - mappings.data());
  assert(index < engines_.plans_.size());
  mapping_ = mapping;
  if (plan_ != engines_.plans_[index].get()) {
    plan_ = engines_.plans_[index].get();
    scanner_ =
        std::make_unique<ExpositionScanner>(plan_->names, static_cast<SampleSink&>(*this),
                                            ExpositionScanner::Options{.max_page_bytes = max_page_bytes_});
    slots_.clear();
    slots_.resize(plan_->entries.size());
    return;
  }
  scanner_->reset();
  for (Slot& slot : slots_) {
    slot.best = Best{};
    slot.ranks.clear();
    slot.resident.clear();
  }
}

void PageReader::sample(const Sample& sample) {
  for (const uint32_t index : plan_->entries_of[sample.name]) {
    const CompiledEngines::Entry& entry = plan_->entries[index];
    if (matches(*entry.spec, sample)) take(entry, slots_[index], sample);
  }
}

void PageReader::take(const CompiledEngines::Entry& entry, Slot& slot, const Sample& sample) {
  using Role = CompiledEngines::Role;
  const auto improves = [&](Best& best) {
    if (best.seen && sample.timestamp_ms <= best.timestamp_ms) return false;
    best = {true, sample.value, sample.timestamp_ms};
    return true;
  };
  switch (entry.role) {
    case Role::kScalar:
      if (engines_.table().mode() == SeriesMode::kStrict && !entry.mapping->rank_label.empty()) {
        // SGLang repeats each family once more per priority; the total has none.
        if (!sample.label("priority").value_or("").empty()) return;
        const uint64_t rank = hash_of(sample.label(entry.mapping->rank_label).value_or(""));
        auto it = std::find_if(slot.ranks.begin(), slot.ranks.end(),
                               [&](const RankBest& known) { return known.rank == rank; });
        if (it == slot.ranks.end()) {
          if (slot.ranks.size() == kMaxRanks) return;
          slot.ranks.push_back({rank, {}});
          it = slot.ranks.end() - 1;
        }
        improves(it->best);
        slot.best.seen = true;
        return;
      }
      improves(slot.best);
      return;
    case Role::kLora:
      // The value is the time of the series' last update; old series never go away.
      if (slot.best.seen ? !(sample.value > slot.best.value) : !(sample.value > -1)) return;
      slot.best = {true, sample.value, 0};
      slot.first = sample.label(kRunningLabel).value_or("");
      slot.second = sample.label(kWaitingLabel).value_or("");
      slot.third = sample.label(kMaxLoraLabel).value_or("");
      return;
    case Role::kLoraResident:
      if (const auto name = sample.label("adapter_name"); name && sample.value > 0 && !name->empty()) {
        if (slot.resident.size() < 4 * kMaxAdapters) slot.resident.push_back(hash_of(*name));
      }
      return;
    case Role::kSleep:
      // One series for each rank; an engine with a rank that is awake serves.
      if (!slot.best.seen || sample.value > slot.best.value) slot.best = {true, sample.value, 0};
      return;
    case Role::kCacheInfo:
      if (!improves(slot.best)) return;
      slot.first = sample.label(entry.mapping->cache_info.block_size_label).value_or("");
      slot.second = sample.label(entry.mapping->cache_info.num_blocks_label).value_or("");
      return;
  }
}

const PageReader::Slot* PageReader::slot_of(const MetricSpec& spec) const {
  for (size_t i = 0; i < plan_->entries.size(); ++i) {
    if (plan_->entries[i].spec == &spec) return &slots_[i];
  }
  return nullptr;
}

const EngineMapping& PageReader::detect() const {
  if (mapping_ != nullptr) return *mapping_;
  const EngineMapping* best = &engines_.table().default_mapping();
  const auto required_found = [&](const EngineMapping& mapping) {
    size_t found = 0;
    for (const SignalRule& rule : mapping.rules) {
      if (rule.need != Need::kRequired) continue;
      found += std::any_of(rule.names.begin(), rule.names.end(),
                           [&](const MetricSpec& spec) { return slot_of(spec)->best.seen; })
                   ? 1
                   : 0;
    }
    return found;
  };
  size_t most = required_found(*best);
  if (most > 0) return *best;
  for (const EngineMapping& mapping : engines_.table().mappings()) {
    const size_t found = required_found(mapping);
    if (found > most) {
      most = found;
      best = &mapping;
    }
  }
  return *best;
}

double PageReader::combine(const Slot& slot, Signal signal) const {
  if (slot.ranks.empty()) return slot.best.value;
  double sum = 0;
  double most = slot.ranks.front().best.value;
  for (const RankBest& rank : slot.ranks) {
    sum += rank.best.value;
    most = std::max(most, rank.best.value);
  }
  return signal == Signal::kWaitingRequests || signal == Signal::kRunningRequests ? sum : most;
}

void PageReader::read_scalar(Signal signal, const EngineMapping& mapping) {
  const SignalRule& rule = mapping.rule(signal);
  Reading::Value& out = reading_.signals[static_cast<size_t>(signal)];
  if (rule.names.empty()) return;
  out.found = Reading::Found::kMissing;
  for (const MetricSpec& spec : rule.names) {
    const Slot* slot = slot_of(spec);
    if (!slot->best.seen) continue;
    const double value = combine(*slot, signal);
    if (!std::isfinite(value)) {
      out = {Reading::Found::kNotANumber, 0, &spec};
      reading_.errors.push_back(fmt::format("metric \"{}\" is not a number", spec.text()));
    } else {
      out = {Reading::Found::kValue, is_count(signal) ? std::trunc(value) : value, &spec};
    }
    return;
  }
}

void PageReader::read_cache_info(const EngineMapping& mapping) {
  if (!mapping.cache_info.spec) return;
  const Slot* slot = slot_of(*mapping.cache_info.spec);
  const auto read = [&](Signal signal, const std::string& label, const std::string& text) {
    Reading::Value& out = reading_.signals[static_cast<size_t>(signal)];
    if (label.empty() || out.found == Reading::Found::kValue) return;
    out.found = Reading::Found::kMissing;
    if (!slot->best.seen || text.empty()) return;
    const auto number = parse_i64(text);
    if (number) {
      out = {Reading::Found::kValue, static_cast<double>(*number), nullptr};
    } else {
      reading_.errors.push_back(fmt::format("label {}=\"{}\" of \"{}\" is not an integer", label,
                                            text.substr(0, 64), mapping.cache_info.spec->text()));
    }
  };
  read(Signal::kCacheBlockSize, mapping.cache_info.block_size_label, slot->first);
  read(Signal::kCacheNumBlocks, mapping.cache_info.num_blocks_label, slot->second);
  if (!slot->best.seen && (reading_.at(Signal::kCacheBlockSize).found == Reading::Found::kMissing ||
                           reading_.at(Signal::kCacheNumBlocks).found == Reading::Found::kMissing)) {
    reading_.errors.push_back(fmt::format("metric family \"{}\" not found", mapping.cache_info.spec->text()));
  }
}

void PageReader::read_lora(const EngineMapping& mapping) {
  reading_.lora_provided = mapping.lora.has_value();
  if (!mapping.lora) return;
  const Slot* slot = slot_of(*mapping.lora);
  if (slot->best.seen) {
    reading_.lora_found = true;
    read_adapters(slot->first, reading_.running);
    read_adapters(slot->second, reading_.waiting);
    if (!slot->third.empty()) {
      if (const auto most = parse_i64(slot->third); most && *most >= 0 && *most <= INT32_MAX) {
        reading_.max_adapters = static_cast<int32_t>(*most);
      } else {
        reading_.errors.push_back(fmt::format("label {}=\"{}\" of \"{}\" is not an integer", kMaxLoraLabel,
                                              slot->third.substr(0, 64), mapping.lora->text()));
      }
    }
  }
  if (mapping.lora_resident) {
    const Slot* resident = slot_of(*mapping.lora_resident);
    reading_.lora_found |= !resident->resident.empty();
    auto& running = reading_.running;
    running.insert(running.end(), resident->resident.begin(), resident->resident.end());
    std::sort(running.begin(), running.end());
    running.erase(std::unique(running.begin(), running.end()), running.end());
  }
  bound_adapters(reading_.running, reading_.dropped_adapters);
  bound_adapters(reading_.waiting, reading_.dropped_adapters);
}

void PageReader::read_sleep() {
  reading_.asleep.reset();
  const Slot* slot = slot_of(engines_.awake_);
  if (slot->best.seen && std::isfinite(slot->best.value)) reading_.asleep = slot->best.value == 0;
}

const Reading& PageReader::finish() {
  scanner_->finish();
  const EngineMapping& mapping = detect();
  reading_.engine = &mapping;
  reading_.signals = {};
  reading_.lora_found = false;
  reading_.max_adapters = -1;
  reading_.running.clear();
  reading_.waiting.clear();
  reading_.dropped_adapters = 0;
  reading_.errors.clear();
  reading_.stats = scanner_->stats();
  for (size_t s = 0; s < kSignalCount; ++s) read_scalar(static_cast<Signal>(s), mapping);
  read_cache_info(mapping);
  read_lora(mapping);
  read_sleep();
  for (size_t s = 0; s < kSignalCount; ++s) {
    const SignalRule& rule = mapping.rules[s];
    if (reading_.signals[s].found == Reading::Found::kMissing && !rule.names.empty())
      reading_.errors.push_back(fmt::format("metric family \"{}\" not found", rule.names.front().text()));
  }
  return reading_;
}

void AdapterMemory::apply(std::vector<uint64_t>& running, Duration keep, TimePoint now) {
  if (keep <= Duration::zero()) return;
  std::erase_if(seen_, [&](const Seen& s) { return now - s.at > keep; });
  for (const uint64_t name : running) {
    const auto it =
        std::find_if(seen_.begin(), seen_.end(), [&](const Seen& s) { return s.name_hash == name; });
    if (it != seen_.end()) {
      it->at = now;
      continue;
    }
    if (seen_.size() == kMaxAdapters) {
      seen_.erase(std::min_element(seen_.begin(), seen_.end(),
                                   [](const Seen& a, const Seen& b) { return a.at < b.at; }));
    }
    seen_.push_back({name, now});
  }
  running.clear();
  for (const Seen& s : seen_) running.push_back(s.name_hash);
  std::sort(running.begin(), running.end());
}

uint32_t apply_reading(const Reading& reading, SignalRow& row, TimePoint observed_at) {
  uint32_t missing_required = 0;
  for (size_t s = 0; s < kSignalCount; ++s) {
    const Reading::Value& from = reading.signals[s];
    SignalValue& to = row.signals[s];
    switch (from.found) {
      case Reading::Found::kValue:
        to = {from.value, observed_at, SignalState::kFresh};
        break;
      case Reading::Found::kNotANumber:
        to.state = to.observed_at == kNever ? SignalState::kNeverSeen : SignalState::kFresh;
        break;
      case Reading::Found::kMissing:
        if (reading.engine->rules[s].need == Need::kRequired) missing_required |= 1U << s;
        [[fallthrough]];
      case Reading::Found::kNotProvided:
        to.state = SignalState::kNameMissing;
        break;
    }
  }
  LoraSignal& lora = row.lora;
  const int32_t known_max = lora.max_adapters;
  lora = LoraSignal{};
  lora.observed_at = observed_at;
  lora.state = reading.lora_found ? SignalState::kFresh : SignalState::kNameMissing;
  if (reading.lora_found) lora.max_adapters = reading.max_adapters >= 0 ? reading.max_adapters : known_max;
  lora.running_count = static_cast<uint16_t>(std::min(reading.running.size(), kMaxAdapters));
  lora.waiting_count = static_cast<uint16_t>(std::min(reading.waiting.size(), kMaxAdapters));
  std::copy_n(reading.running.begin(), lora.running_count, lora.running.begin());
  std::copy_n(reading.waiting.begin(), lora.waiting_count, lora.waiting.begin());
  return missing_required;
}

void mark_down(SignalRow& row) {
  for (SignalValue& value : row.signals) value.state = SignalState::kEndpointDown;
  row.lora.state = SignalState::kEndpointDown;
}

}  // namespace penstock::signals
