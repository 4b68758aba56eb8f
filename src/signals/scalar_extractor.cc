#include "signals/scalar_extractor.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/strings.h"
#include "protocol/json_cursor.h"

namespace penstock::signals {

namespace {

constexpr size_t kMaxEndpointsDumped = 100;

std::vector<std::string> names_of(const std::vector<ScalarRule>& rules) {
  std::vector<std::string> out;
  for (const ScalarRule& rule : rules) {
    for (const auto& [engine, spec] : rule.specs) out.push_back(spec.name);
  }
  return out;
}

// Collects the wanted series of one page.
class Finder final : public SampleSink {
 public:
  struct Found {
    bool found = false;
    double value = 0;
    int64_t timestamp_ms = 0;
  };
  Finder(const NameSet& names, const std::vector<ScalarRule>& rules,
         const std::vector<const MetricSpec*>& specs, std::string_view pod)
      : names_(names), rules_(rules), specs_(specs), pod_(pod), found_(rules.size()) {}

  void sample(const Sample& sample) override {
    for (size_t i = 0; i < rules_.size(); ++i) {
      if (specs_[i] != nullptr && names_.name(sample.name) == specs_[i]->name && matches(i, sample))
        take(i, sample);
    }
  }
  const std::vector<Found>& found() const { return found_; }

 private:
  bool matches(size_t rule, const Sample& sample) const {
    for (const auto& [name, value] : specs_[rule]->labels) {
      if (sample.label(name) != std::optional<std::string_view>(value)) return false;
    }
    return !rules_[rule].own_pod_only || sample.label("pod").value_or(pod_) == pod_;
  }
  void take(size_t rule, const Sample& sample) {
    // A NaN would stay the largest for good.
    if (!std::isfinite(sample.value * rules_[rule].scale)) return;
    Found& best = found_[rule];
    const bool better =
        rules_[rule].largest ? sample.value > best.value : sample.timestamp_ms > best.timestamp_ms;
    if (best.found && !better) return;
    best = {true, sample.value, sample.timestamp_ms};
  }

  const NameSet& names_;
  const std::vector<ScalarRule>& rules_;
  const std::vector<const MetricSpec*>& specs_;
  std::string_view pod_;
  std::vector<Found> found_;
};

}  // namespace

ScalarSink::ScalarSink(std::vector<ScalarRule> rules) : rules_(std::move(rules)), names_(names_of(rules_)) {}

const MetricSpec* ScalarSink::spec_of(const ScalarRule& rule, std::string_view engine) {
  auto found = rule.specs.find(engine);
  if (found == rule.specs.end()) found = rule.specs.find("");
  return found == rule.specs.end() ? nullptr : &found->second;
}

void ScalarSink::attached(const Endpoint& endpoint) {
  const uint64_t owner = hash_of(endpoint.id + ' ' + endpoint.address + ' ' + endpoint.metrics_host);
  const std::lock_guard lock(mutex_);
  if (owners_.size() <= endpoint.slot) owners_.resize(endpoint.slot + size_t{1});
  if (owners_[endpoint.slot] == owner) return;
  owners_[endpoint.slot] = owner;
  clear(endpoint.slot);
}

void ScalarSink::page(const Endpoint& endpoint, std::string_view engine, std::string_view body,
                      TimePoint observed_at) {
  std::vector<const MetricSpec*> specs;
  for (const ScalarRule& rule : rules_) specs.push_back(spec_of(rule, engine));
  Finder finder(names_, rules_, specs, endpoint.name);
  ExpositionScanner scanner(names_, finder);
  scanner.feed(body);
  scanner.finish();

  const std::lock_guard lock(mutex_);
  const size_t first = endpoint.slot * rules_.size();
  if (values_.size() < first + rules_.size()) values_.resize(first + rules_.size());
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Finder::Found& found = finder.found()[i];
    values_[first + i] = {found.found, found.value * rules_[i].scale, observed_at};
  }
}

void ScalarSink::gone(EndpointSlot slot) {
  const std::lock_guard lock(mutex_);
  clear(slot);
}

void ScalarSink::clear(EndpointSlot slot) {
  const size_t first = slot * rules_.size();
  for (size_t i = first; i < std::min(first + rules_.size(), values_.size()); ++i) values_[i] = {};
}

void ScalarSink::copy(size_t rule, const PoolSnapshot& pool, std::span<const Candidate> candidates,
                      std::span<EndpointScalar> column) const {
  const std::lock_guard lock(mutex_);
  for (const Candidate c : candidates) {
    const size_t at = pool.endpoints[c]->slot * rules_.size() + rule;
    if (at < values_.size()) column[c] = values_[at];
  }
}

// --- ScalarExtractor ----------------------------------------------------------------------------------

ScalarExtractor::ScalarExtractor(std::vector<DataKey> keys, std::shared_ptr<ScalarSink> sink)
    : keys_(std::move(keys)), sink_(std::move(sink)), slots_(keys_.size(), kNoSlot) {}

void ScalarExtractor::declare_data(DataDeclaration& data) const {
  for (const DataKey& key : keys_) data.produce<EndpointScalar>(key);
}

void ScalarExtractor::bind_slots(const SlotResolver& slots) {
  for (size_t i = 0; i < keys_.size(); ++i) slots_[i] = slots.slot(keys_[i]);
}

Status ScalarExtractor::produce(SchedulingContext& ctx) const {
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (slots_[i] == kNoSlot) continue;
    const std::span<EndpointScalar> column = ctx.attributes.create<EndpointScalar>(slots_[i]);
    sink_->copy(i, ctx.pool, ctx.candidates, column);
    if (ctx.freshness == nullptr) continue;
    for (const Candidate c : ctx.candidates) {
      EndpointScalar& scalar = column[c];
      if (ctx.now - scalar.observed_at >= ctx.freshness->attributes.unknown_after) scalar.known = false;
    }
  }
  return {};
}

// --- models -------------------------------------------------------------------------------------------

void ModelsSink::attached(const Endpoint& endpoint) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(endpoint.slot);
  if (found != entries_.end() && found->second.endpoint_id != endpoint.id) entries_.erase(found);
}

void ModelsSink::page(const Endpoint& endpoint, std::string_view, std::string_view body, TimePoint) {
  Arena arena;
  protocol::JsonCursor cursor(body, &arena);
  std::vector<std::string> models;
  const auto read_model = [&] {
    if (cursor.kind() != protocol::JsonKind::kObject) {
      cursor.skip();
      return;
    }
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      protocol::JsonString id;
      if (cursor.key() != "id" || !cursor.string(id)) {
        cursor.skip();
      } else if (models.size() < kMaxModels && id.value.size() <= kMaxNameBytes) {
        models.emplace_back(id.value);
      }
      if (cursor.failed()) return;
    }
  };
  if (cursor.kind() != protocol::JsonKind::kObject) return;
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    if (cursor.key() == "data" && cursor.kind() == protocol::JsonKind::kArray) {
      models.clear();
      for (bool item = cursor.enter_array(); item; item = cursor.next_element()) {
        read_model();
        if (cursor.failed()) return;
      }
    } else {
      cursor.skip();
    }
    if (cursor.failed()) return;
  }
  if (!cursor.finish()) return;
  const std::lock_guard lock(mutex_);
  entries_[endpoint.slot] = {endpoint.id, std::move(models)};
}

void ModelsSink::gone(EndpointSlot slot) {
  const std::lock_guard lock(mutex_);
  entries_.erase(slot);
}

std::vector<std::string> ModelsSink::models(EndpointSlot slot) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(slot);
  return found == entries_.end() ? std::vector<std::string>() : found->second.models;
}

std::string ModelsSink::dump() const {
  const std::lock_guard lock(mutex_);
  std::string out = "{\"endpoints\":[";
  size_t count = 0;
  for (const auto& [slot, entry] : entries_) {
    if (count == kMaxEndpointsDumped) break;
    if (count++ > 0) out += ',';
    out += "{\"endpoint\":";
    append_json_quoted(out, entry.endpoint_id);
    out += ",\"models\":[";
    for (size_t i = 0; i < entry.models.size(); ++i) {
      if (i > 0) out += ',';
      append_json_quoted(out, entry.models[i]);
    }
    out += "]}";
  }
  out += "],\"totalEndpoints\":" + std::to_string(entries_.size()) +
         ",\"maxEndpoints\":" + std::to_string(kMaxEndpointsDumped) + "}";
  return out;
}

}  // namespace penstock::signals
