#include "scheduling/producers/mm_embeddings_cache_producer.h"

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "base/strings.h"

namespace penstock::scheduling {

namespace {

constexpr size_t kMaxPodsDumped = 100;
constexpr std::array<double, 11> kRatios{0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1};

telemetry::FamilyOptions options(std::string_view name, std::string_view help,
                                 std::vector<std::string_view> labels) {
  telemetry::FamilyOptions out{name, help, std::move(labels)};
  return out;
}

telemetry::FamilyOptions ratio_options() {
  telemetry::FamilyOptions out =
      options("llm_d_epp_encoder_cache_hit_ratio",
              "[ALPHA] Share of a request's media items an endpoint holds.", {"plugin_type", "plugin_name"});
  out.bounds = kRatios;
  return out;
}

// Modalities are a few; whatever else one calls itself is one label.
std::string_view modality_label(std::string_view modality) {
  for (const std::string_view known : {"image", "video", "audio"}) {
    if (modality == known) return known;
  }
  return "other";
}

}  // namespace

// --- EncoderCacheTable --------------------------------------------------------------------------------

EncoderCacheTable::EncoderCacheTable(size_t capacity) : capacity_(std::max<size_t>(capacity, 1)) {}

bool EncoderCacheTable::holds(EndpointSlot slot, uint64_t item) const {
  const std::lock_guard lock(mutex_);
  const auto found = caches_.find(slot);
  return found != caches_.end() && found->second.index.contains(item);
}

void EncoderCacheTable::add(const Endpoint& endpoint, uint64_t item) {
  const std::lock_guard lock(mutex_);
  Cache& cache = caches_[endpoint.slot];
  if (cache.id != endpoint.id) cache.id = endpoint.id;
  const auto found = cache.index.find(item);
  if (found != cache.index.end()) {
    cache.recent.splice(cache.recent.end(), cache.recent, found->second);
    return;
  }
  if (cache.recent.size() >= capacity_) {
    cache.index.erase(cache.recent.front());
    cache.recent.pop_front();
  }
  cache.recent.push_back(item);
  cache.index.emplace(item, std::prev(cache.recent.end()));
}

void EncoderCacheTable::remove(EndpointSlot slot) {
  const std::lock_guard lock(mutex_);
  caches_.erase(slot);
}

std::vector<EncoderCacheTable::Pod> EncoderCacheTable::pods() const {
  std::vector<Pod> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [slot, cache] : caches_) out.push_back({cache.id, cache.recent.size()});
  return out;
}

// --- MmEmbeddingsCacheProducer ------------------------------------------------------------------------

void MmEmbeddingsCacheProducer::bind(config::Binder& b, Params& p) {
  b.field("cacheSizeInMBPerServer", p.cache_mib, "MiB",
          "Encoder cache of an endpoint, at 2 MiB an item; values below 1 count as 4096.");
}

size_t MmEmbeddingsCacheProducer::capacity(const Params& params) {
  const int mib = params.cache_mib > 0 ? params.cache_mib : 4096;
  return static_cast<size_t>(std::max(1, mib / 2));
}

Result<std::unique_ptr<Plugin>> MmEmbeddingsCacheProducer::create(const PluginFactoryContext& context) {
  Params params;
  Status status =
      config::decode_params(context.parameters, context.path, [&](config::Binder& b) { bind(b, params); });
  if (!status.ok()) return std::move(status).error();
  const size_t items = capacity(params);
  const auto make = [items]() -> Result<std::shared_ptr<EncoderCacheTable>> {
    return std::make_shared<EncoderCacheTable>(items);
  };
  const std::string key = std::string(kType) + "/" + std::string(context.name) + "/" + std::to_string(items);
  std::shared_ptr<EncoderCacheTable> table =
      context.warm == nullptr ? *make() : *context.warm->get<EncoderCacheTable>(key, make);
  return std::unique_ptr<Plugin>(
      std::make_unique<MmEmbeddingsCacheProducer>(std::move(table), context.name, context.metrics));
}

MmEmbeddingsCacheProducer::MmEmbeddingsCacheProducer(std::shared_ptr<EncoderCacheTable> table,
                                                     std::string_view name,
                                                     telemetry::MetricRegistry& metrics)
    : table_(std::move(table)),
      name_label_(name),
      queries_(metrics.counter(options("llm_d_epp_encoder_cache_queries_total",
                                       "[ALPHA] Media items that were looked up.",
                                       {"plugin_type", "plugin_name", "modality"}))),
      hits_(metrics.counter(options("llm_d_epp_encoder_cache_hits_total",
                                    "[ALPHA] Media items that an endpoint was found to hold.",
                                    {"plugin_type", "plugin_name", "pod", "modality"}))),
      hit_ratio_(metrics.histogram(ratio_options()).with({kType, name})) {}

void MmEmbeddingsCacheProducer::declare_data(DataDeclaration& declaration) const {
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
  declaration.produce<MultiModalMatch>(key());
}

void MmEmbeddingsCacheProducer::bind_slots(const SlotResolver& slots) {
  slot_ = slots.slot(key());
}

std::span<const MmEmbeddingsCacheProducer::Item> MmEmbeddingsCacheProducer::distinct_items(
    SchedulingContext& ctx) {
  size_t features = 0;
  for (const TokenizedPrompt& prompt : ctx.request.prompts) features += prompt.features.size();
  if (features == 0) return {};
  const std::span<Item> items = ctx.arena.make_span<Item>(std::min(features, kMaxItems));
  size_t count = 0;
  for (const TokenizedPrompt& prompt : ctx.request.prompts) {
    for (const MultiModalFeature& feature : prompt.features) {
      if (feature.hash.empty() || count == items.size()) continue;
      const uint64_t hash = hash_of(feature.hash);
      const auto same = [&](const Item& item) { return item.hash == hash; };
      if (std::none_of(items.begin(), items.begin() + static_cast<ptrdiff_t>(count), same))
        items[count++] = {hash, feature.modality};
    }
  }
  return items.first(count);
}

Status MmEmbeddingsCacheProducer::produce(SchedulingContext& ctx) const {
  if (slot_ == kNoSlot) return {};
  const std::span<const Item> items = distinct_items(ctx);
  if (items.empty()) return {};
  const std::span<MultiModalMatch> column = ctx.attributes.create<MultiModalMatch>(slot_);
  if (!ctx.explain) {
    for (const Item& item : items) queries_.with({kType, name_label_, modality_label(item.modality)}).add();
  }
  for (const Candidate c : ctx.candidates) {
    const Endpoint& endpoint = *ctx.pool.endpoints[c];
    column[c].request_items = static_cast<uint32_t>(items.size());
    for (const Item& item : items) {
      if (!table_->holds(endpoint.slot, item.hash)) continue;
      ++column[c].matched_items;
      if (!ctx.explain) hits_.with({kType, name_label_, endpoint.id, modality_label(item.modality)}).add();
    }
    if (!ctx.explain)
      hit_ratio_.observe(static_cast<double>(column[c].matched_items) / static_cast<double>(items.size()));
  }
  return {};
}

Status MmEmbeddingsCacheProducer::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (result.primary == nullptr) return {};
  for (const Item& item : distinct_items(ctx)) {
    for (const Candidate target : result.primary->targets)
      table_->add(*ctx.pool.endpoints[target], item.hash);
  }
  return {};
}

std::optional<std::string> MmEmbeddingsCacheProducer::dump_state() const {
  std::vector<EncoderCacheTable::Pod> pods = table_->pods();
  std::sort(pods.begin(), pods.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  std::string out = "{\"podList\":[";
  for (size_t i = 0; i < std::min(pods.size(), kMaxPodsDumped); ++i) {
    if (i > 0) out += ',';
    append_json_quoted(out, pods[i].id);
  }
  out += "],\"totalKnownPods\":" + std::to_string(pods.size()) + ",\"pods\":[";
  std::sort(pods.begin(), pods.end(), [](const auto& a, const auto& b) {
    return a.items != b.items ? a.items > b.items : a.id < b.id;
  });
  for (size_t i = 0; i < std::min(pods.size(), kMaxPodsDumped); ++i) {
    if (i > 0) out += ',';
    out += "{\"pod\":";
    append_json_quoted(out, pods[i].id);
    out += ",\"items\":" + std::to_string(pods[i].items) + "}";
  }
  out += "],\"totalPods\":" + std::to_string(pods.size()) + ",\"maxPods\":" + std::to_string(kMaxPodsDumped) +
         "}";
  return out;
}

}  // namespace penstock::scheduling
