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
constexpr std::array<std::string_view, 4> kModalities{"image", "video", "audio", "other"};
size_t modality_of(std::string_view modality) {
  const auto found = std::find(kModalities.begin(), kModalities.end() - 1, modality);
  return static_cast<size_t>(found - kModalities.begin());
}

}  // namespace

// --- EncoderCacheTable --------------------------------------------------------------------------------

EncoderCacheTable::EncoderCacheTable(size_t capacity)
    : capacity_(std::clamp<size_t>(capacity, 1, kMaxCapacity)) {}

const EncoderCacheTable::Cache* EncoderCacheTable::find(const Endpoint& endpoint) const {
  const auto found = caches_.find(endpoint.slot);
  return found == caches_.end() || !found->second.is_of(endpoint) ? nullptr : &found->second;
}

void EncoderCacheTable::touch(Cache& cache, uint64_t item) const {
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

void EncoderCacheTable::add(const Endpoint& endpoint, std::span<const uint64_t> items) {
  if (items.empty()) return;
  const std::lock_guard lock(mutex_);
  Cache& cache = caches_[endpoint.slot];
  if (cache.gone != nullptr && cache.gone == endpoint.live) return;
  if (!cache.is_of(endpoint)) {
    cache = {};
    cache.id = endpoint.id;
    cache.host_port = endpoint.host_port;
  }
  for (const uint64_t item : items) touch(cache, item);
}

void EncoderCacheTable::remove(const Endpoint& endpoint) {
  const std::lock_guard lock(mutex_);
  Cache& cache = caches_[endpoint.slot];
  cache = {};
  cache.gone = endpoint.live;
}

std::vector<EncoderCacheTable::Pod> EncoderCacheTable::pods() const {
  std::vector<Pod> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [slot, cache] : caches_) {
    if (cache.gone == nullptr) out.push_back({cache.id, cache.recent.size()});
  }
  return out;
}

// --- MmEmbeddingsCacheProducer ------------------------------------------------------------------------

void MmEmbeddingsCacheProducer::bind(config::Binder& b, Params& p) {
  b.field("cacheSizeInMBPerServer", p.cache_mib, "MiB",
          "Encoder cache of an endpoint, at 2 MiB an item; values below 1 count as 4096, those above 32768 "
          "as that.");
}

size_t MmEmbeddingsCacheProducer::capacity(const Params& params) {
  const int mib = params.cache_mib > 0 ? params.cache_mib : 4096;
  return std::clamp<size_t>(static_cast<size_t>(mib / 2), 1, EncoderCacheTable::kMaxCapacity);
}

Result<std::unique_ptr<Plugin>> MmEmbeddingsCacheProducer::create(Params params,
                                                                  const PluginFactoryContext& context) {
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

MmEmbeddingsCacheProducer::Items MmEmbeddingsCacheProducer::distinct_items(SchedulingContext& ctx) {
  size_t features = 0;
  for (const TokenizedPrompt& prompt : ctx.request.prompts) features += prompt.features.size();
  if (features == 0) return {};
  const size_t most = std::min(features, kMaxItems);
  const Items items{ctx.arena.make_span<uint64_t>(most), ctx.arena.make_span<std::string_view>(most)};
  size_t count = 0;
  for (const TokenizedPrompt& prompt : ctx.request.prompts) {
    for (const MultiModalFeature& feature : prompt.features) {
      if (feature.hash.empty() || count == most) continue;
      const uint64_t hash = hash_of(feature.hash);
      const auto known = items.hashes.first(count);
      if (std::find(known.begin(), known.end(), hash) != known.end()) continue;
      items.hashes[count] = hash;
      items.modalities[count++] = feature.modality;
    }
  }
  return {items.hashes.first(count), items.modalities.first(count)};
}

Status MmEmbeddingsCacheProducer::produce(SchedulingContext& ctx) const {
  if (slot_ == kNoSlot) return {};
  const Items items = distinct_items(ctx);
  const size_t count = items.hashes.size();
  if (count == 0) return {};
  const std::span<MultiModalMatch> column = ctx.attributes.create<MultiModalMatch>(slot_);
  using Counts = std::array<uint32_t, kModalities.size()>;
  const std::span<Counts> held = ctx.arena.make_filled<Counts>(ctx.candidates.size());
  const std::span<size_t> modalities = ctx.arena.make_span<size_t>(count);
  for (size_t k = 0; k < count; ++k) modalities[k] = modality_of(items.modalities[k]);
  const auto count_match = [&](size_t i, size_t k) {
    ++column[ctx.candidates[i]].matched_items;
    ++held[i][modalities[k]];
  };
  const auto count_hits = [&] {
    for (size_t i = 0; i < ctx.candidates.size() && !ctx.explain; ++i) {
      for (size_t m = 0; m < kModalities.size(); ++m) {
        if (held[i][m] == 0) continue;
        hits_.update({kType, name_label_, ctx.pool.endpoints[ctx.candidates[i]]->id, kModalities[m]},
                     [&](telemetry::Counter& hits) { hits.add(held[i][m]); });
      }
    }
  };
  table_->match(ctx.pool, ctx.candidates, items.hashes, count_match, count_hits);
  for (const Candidate c : ctx.candidates) column[c].request_items = static_cast<uint32_t>(count);
  if (ctx.explain) return {};
  for (const size_t modality : modalities) queries_.with({kType, name_label_, kModalities[modality]}).add();
  for (const Candidate c : ctx.candidates)
    hit_ratio_.observe(static_cast<double>(column[c].matched_items) / static_cast<double>(count));
  return {};
}

void MmEmbeddingsCacheProducer::endpoint_removed(const Endpoint& endpoint) const {
  table_->remove(endpoint);
  for (const std::string_view modality : kModalities)
    hits_.remove({kType, name_label_, endpoint.id, modality});
}

Status MmEmbeddingsCacheProducer::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (result.primary == nullptr) return {};
  const Items items = distinct_items(ctx);
  for (const Candidate target : result.primary->targets)
    table_->add(*ctx.pool.endpoints[target], items.hashes);
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
