#include "signals/plugins.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>

#include "base/units.h"
#include "config/params.h"

namespace penstock::signals {

namespace {

using config::Binder;

constexpr int64_t kMaxPort = 65535;

// What a document writes; MetricsSourceParams is what it means.
struct MetricsSourceDocument {
  MetricsSourceParams params;
  std::string interval;
  bool is_dcgm = false;
  bool use_node_address = false;
};

void bind(Binder& b, MetricsSourceDocument& d) {
  MetricsSourceParams& p = d.params;
  b.field("scheme", p.scheme, "", "http or https. Left out: https for endpoints that are served over TLS.");
  b.field("path", p.path, "", "Path of the metrics page.");
  b.field("port", p.port, "",
          "Port to scrape instead of the endpoint's own, 1 to 65535; 0 or left out: the endpoint's own.");
  b.field("insecureSkipVerify", p.insecure_skip_verify, "", "Whether certificates of engines go unchecked.");
  b.field("caCertPath", p.ca_cert_path, "", "PEM file of the authorities to check against.");
  b.field("clientCertPath", p.client_cert_path, "", "PEM file of the certificate to show.");
  b.field("clientKeyPath", p.client_key_path, "", "PEM file of its key.");
  b.field("interval", d.interval, "", "Time between two scrapes of an endpoint, such as \"200ms\".");
  if (d.is_dcgm) {
    b.field("useNodeAddress", d.use_node_address, "",
            "Fetch from the address of the endpoint's node; needs Kubernetes, so only false is taken.");
  }
  if (b.describing()) return;

  if (d.use_node_address) b.fail("useNodeAddress", "needs the Kubernetes client, which this build lacks");
  p.scheme_given = p.scheme_given || b.present("scheme");
  p.insecure_skip_verify_given = p.insecure_skip_verify_given || b.present("insecureSkipVerify");
  if (p.scheme != "http" && p.scheme != "https")
    b.fail("scheme", fmt::format("unsupported scheme: {}", p.scheme));
  if (!p.path.starts_with("/")) b.fail("path", fmt::format("path \"{}\" must begin with \"/\"", p.path));
  if (b.present("port") && (p.port < 1 || p.port > kMaxPort))
    b.fail("port", fmt::format("invalid port {}: must be between 1 and 65535", p.port));
  if (p.client_cert_path.empty() != p.client_key_path.empty())
    b.fail("clientCertPath", "clientCertPath and clientKeyPath go together");
  if (!d.interval.empty()) {
    const auto interval = parse_duration(d.interval);
    if (!interval) {
      b.fail("interval", fmt::format("invalid interval \"{}\": {}", d.interval, interval.error().message));
    } else if (*interval < Duration::zero()) {
      b.fail("interval", fmt::format("interval must be non-negative, got {}", format_duration(*interval)));
    } else {
      p.interval = *interval;
    }
  }
}

// What a document of each source starts from.
MetricsSourceDocument metrics_source() {
  return {};
}
MetricsSourceDocument multicluster_source() {
  MetricsSourceDocument out;
  out.params.scheme = "https";
  out.params.scheme_given = true;
  out.params.insecure_skip_verify = false;
  out.params.insecure_skip_verify_given = true;
  return out;
}
MetricsSourceDocument models_source() {
  MetricsSourceDocument out;
  out.params.path = "/v1/models";
  return out;
}
MetricsSourceDocument dcgm_source() {
  MetricsSourceDocument out;
  out.params.port = 9400;
  out.is_dcgm = true;
  return out;
}

template <MetricsSourceDocument (*kDefaults)()>
Result<std::unique_ptr<Plugin>> create_source(const PluginFactoryContext& ctx) {
  MetricsSourceDocument document = kDefaults();
  Status status = config::decode_params(ctx.parameters, ctx.path, [&](Binder& b) { bind(b, document); });
  if (!status.ok()) return std::move(status).error();
  return std::unique_ptr<Plugin>(std::make_unique<MetricsDataSource>(std::move(document.params)));
}

template <MetricsSourceDocument (*kDefaults)()>
std::vector<config::ParamDoc> describe_source() {
  MetricsSourceDocument document = kDefaults();
  return config::describe_params([&](Binder& b) { bind(b, document); });
}

struct EngineDocument {
  std::string name;
  std::string queued;
  std::string running;
  std::string kv_usage;
  std::string lora;
  std::string cache_info;
  std::string block_size_label;
  std::string num_blocks_label;
  std::string block_size;
  std::string num_blocks;
  const config::Node* custom = nullptr;
};

void bind(Binder& b, EngineDocument& d) {
  b.field("name", d.name, "", "Value of the engine label that this entry is for.");
  b.field("queuedRequestsSpec", d.queued, "", "Gauge of waiting requests.");
  b.field("runningRequestsSpec", d.running, "", "Gauge of running requests.");
  b.field("kvUsageSpec", d.kv_usage, "", "Gauge of KV cache usage, 0 to 1.");
  b.field("loraSpec", d.lora, "", "Info gauge of LoRA adapters.");
  b.field("cacheInfoSpec", d.cache_info, "", "Info gauge whose labels give the cache's size.");
  b.field("cacheBlockSizeLabelName", d.block_size_label, "", "Its label for tokens per block.");
  b.field("cacheNumBlocksLabelName", d.num_blocks_label, "", "Its label for the number of blocks.");
  b.field("cacheBlockSizeSpec", d.block_size, "", "Gauge of tokens per block.");
  b.field("cacheNumBlocksSpec", d.num_blocks, "", "Gauge of the number of blocks.");
  b.node("customMetrics", d.custom, "Further numbers: list of {attributeKey, metricSpec}.");
}

void read_custom_metrics(Binder& b, const config::Node& custom, const std::string& path,
                         std::string_view engine, std::vector<CustomMetric>& out) {
  if (!custom.is_list()) return b.fail("customMetrics", "expected list");
  std::vector<std::string> keys;
  for (size_t i = 0; i < custom.items.size(); ++i) {
    std::string key;
    std::string text;
    const Status status = config::decode_params(
        &custom.items[i], fmt::format("{}.customMetrics[{}]", path, i), [&](Binder& item) {
          item.field("attributeKey", key, "", "");
          item.field("metricSpec", text, "", "");
        });
    if (!status.ok()) {
      b.fail("customMetrics", status.error().message);
    } else if (key.empty()) {
      b.fail("customMetrics", "custom metric attributeKey cannot be empty");
    } else if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
      b.fail("customMetrics", fmt::format("custom metric attributeKey \"{}\" is duplicated", key));
    } else if (auto spec = parse_metric_spec(text); !spec.ok()) {
      b.fail("customMetrics", spec.error().message);
    } else if (!spec->has_value()) {
      b.fail("customMetrics", fmt::format("custom metric \"{}\" spec cannot be empty", key));
    } else {
      out.push_back({std::string(engine), key, std::move(**spec)});
    }
    keys.push_back(std::move(key));
  }
}

void set_spec(Binder& b, std::string_view field, const std::string& text, std::optional<MetricSpec>& out) {
  auto parsed = parse_metric_spec(text);
  if (!parsed.ok()) return b.fail(field, parsed.error().message);
  out = std::move(parsed).value();
}

void set_rule(Binder& b, std::string_view field, const std::string& text, Need need, SignalRule& out) {
  std::optional<MetricSpec> spec;
  set_spec(b, field, text, spec);
  if (spec) out = {{std::move(*spec)}, need};
}

Status decode_engine(const config::Node& node, const std::string& path, EngineMapping& out,
                     std::vector<CustomMetric>& custom) {
  EngineDocument d;
  return config::decode_params(&node, path, [&](Binder& b) {
    bind(b, d);
    out.name = d.name;
    set_rule(b, "queuedRequestsSpec", d.queued, Need::kRequired, out.rule(Signal::kWaitingRequests));
    set_rule(b, "runningRequestsSpec", d.running, Need::kRequired, out.rule(Signal::kRunningRequests));
    set_rule(b, "kvUsageSpec", d.kv_usage, Need::kRequired, out.rule(Signal::kKvUsage));
    set_rule(b, "cacheBlockSizeSpec", d.block_size, Need::kOptional, out.rule(Signal::kCacheBlockSize));
    set_rule(b, "cacheNumBlocksSpec", d.num_blocks, Need::kOptional, out.rule(Signal::kCacheNumBlocks));
    set_spec(b, "loraSpec", d.lora, out.lora);
    set_spec(b, "cacheInfoSpec", d.cache_info, out.cache_info.spec);
    out.cache_info.block_size_label = d.block_size_label;
    out.cache_info.num_blocks_label = d.num_blocks_label;
    if (d.custom != nullptr) read_custom_metrics(b, *d.custom, path, d.name, custom);
    for (const EngineMapping& builtin : builtin_engines(SeriesMode::kCompatible)) {
      if (builtin.name == out.name) out.rank_label = builtin.rank_label;
    }
  });
}

struct ExtractorDocument {
  CoreMetricsParams params;
  const config::Node* engines = nullptr;
};

void bind(Binder& b, ExtractorDocument& d) {
  b.field("engineLabelKey", d.params.engine_label_key, "", "Endpoint label that names the engine.");
  b.field("defaultEngine", d.params.default_engine, "", "Mapping of endpoints whose engine nobody names.");
  b.node("engineConfigs", d.engines,
         "List of mappings {name, queuedRequestsSpec, runningRequestsSpec, kvUsageSpec, loraSpec, "
         "cacheInfoSpec, cacheBlockSizeLabelName, cacheNumBlocksLabelName, cacheBlockSizeSpec, "
         "cacheNumBlocksSpec, customMetrics: [{attributeKey, metricSpec}]}; one with a built-in engine's "
         "name replaces it entirely.");
}

// The sink survives a change of policy that leaves the rules as they are.
std::shared_ptr<ScalarSink> make_sink(const PluginFactoryContext& ctx, const std::string& rules_text,
                                      std::vector<ScalarRule> rules) {
  const auto make = [&]() -> Result<std::shared_ptr<ScalarSink>> {
    return std::make_shared<ScalarSink>(std::move(rules));
  };
  if (ctx.warm == nullptr) return *make();
  return *ctx.warm->get<ScalarSink>(fmt::format("scalars/{}/{}", ctx.name, rules_text), make);
}

Result<std::unique_ptr<Plugin>> create_with_custom_metrics(const PluginFactoryContext& ctx,
                                                           CoreMetricsParams params) {
  std::vector<DataKey> keys;
  std::vector<ScalarRule> rules;
  std::string text;
  for (const CustomMetric& metric : params.custom_metrics) {
    DataKey key{metric.attribute_key, data_keys::kWaitingQueueSize.producer};
    size_t at = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (at == keys.size()) {
      keys.push_back(std::move(key));
      rules.emplace_back();
    }
    rules[at].specs[metric.engine] = metric.spec;
    text += fmt::format("{}={}:{};", metric.engine, metric.attribute_key, metric.spec.text());
  }
  auto sink = make_sink(ctx, text, std::move(rules));
  return std::unique_ptr<Plugin>(
      std::make_unique<CustomMetricsExtractor>(std::move(params), std::move(keys), std::move(sink)));
}

Result<std::unique_ptr<Plugin>> create_dcgm_extractor(const PluginFactoryContext& ctx) {
  ScalarRule rule;
  rule.specs[""] = {"DCGM_FI_DEV_GPU_UTIL", {}};
  rule.own_pod_only = true;
  rule.largest = true;
  rule.scale = 0.01;
  return std::unique_ptr<Plugin>(std::make_unique<ScalarExtractor>(
      std::vector<DataKey>{data_keys::kGpuUtilization}, make_sink(ctx, "dcgm", {std::move(rule)})));
}

struct MulticlusterDocument {
  std::string kv = "llm_d_epp_average_kv_cache_utilization";
  std::string queue = "llm_d_epp_average_queue_size";
};

void bind(Binder& b, MulticlusterDocument& d) {
  b.field("kvCacheUtilizationMetric", d.kv, "", "Gauge of the other cluster's average KV cache usage.");
  b.field("queueSizeMetric", d.queue, "", "Gauge of the other cluster's average queue size.");
}

Result<std::unique_ptr<Plugin>> create_multicluster_extractor(const PluginFactoryContext& ctx) {
  MulticlusterDocument document;
  std::vector<ScalarRule> rules(2);
  Status status = config::decode_params(ctx.parameters, ctx.path, [&](Binder& b) {
    bind(b, document);
    const auto set = [&](std::string_view field, const std::string& text, ScalarRule& rule) {
      auto spec = parse_metric_spec(text);
      if (!spec.ok()) return b.fail(field, spec.error().message);
      if (!spec->has_value()) return b.fail(field, "cannot be empty");
      rule.specs[""] = std::move(**spec);
    };
    set("kvCacheUtilizationMetric", document.kv, rules[0]);
    set("queueSizeMetric", document.queue, rules[1]);
  });
  if (!status.ok()) return std::move(status).error();
  return std::unique_ptr<Plugin>(std::make_unique<ScalarExtractor>(
      std::vector<DataKey>{data_keys::kMulticlusterKvUsage, data_keys::kMulticlusterQueueSize},
      make_sink(ctx, document.kv + ";" + document.queue, std::move(rules))));
}

std::vector<config::ParamDoc> describe_multicluster_extractor() {
  MulticlusterDocument document;
  return config::describe_params([&](Binder& b) { bind(b, document); });
}

Result<std::unique_ptr<Plugin>> create_models_extractor(const PluginFactoryContext& ctx) {
  const auto make = []() -> Result<std::shared_ptr<ModelsSink>> { return std::make_shared<ModelsSink>(); };
  auto sink =
      ctx.warm == nullptr ? *make() : *ctx.warm->get<ModelsSink>(fmt::format("models/{}", ctx.name), make);
  return std::unique_ptr<Plugin>(std::make_unique<ModelsExtractor>(std::move(sink)));
}

Result<std::unique_ptr<Plugin>> create_extractor(const PluginFactoryContext& ctx) {
  ExtractorDocument document;
  Status status = config::decode_params(ctx.parameters, ctx.path, [&](Binder& b) {
    bind(b, document);
    if (document.engines == nullptr) return;
    if (!document.engines->is_list()) return b.fail("engineConfigs", "expected list");
    for (size_t i = 0; i < document.engines->items.size(); ++i) {
      const std::string path = fmt::format("{}.engineConfigs[{}]", ctx.path, i);
      EngineMapping mapping;
      const Status engine =
          decode_engine(document.engines->items[i], path, mapping, document.params.custom_metrics);
      if (!engine.ok()) b.fail("engineConfigs", engine.error().message);
      document.params.engine_configs.push_back(std::move(mapping));
    }
  });
  if (!status.ok()) return std::move(status).error();
  const CoreMetricsParams& p = document.params;
  auto table =
      EngineTable::build(p.engine_configs, p.default_engine, p.engine_label_key, SeriesMode::kCompatible);
  if (!table.ok()) return std::move(table).error().wrap(ctx.path);
  if (!p.custom_metrics.empty()) return create_with_custom_metrics(ctx, std::move(document.params));
  return std::unique_ptr<Plugin>(std::make_unique<CoreMetricsExtractor>(std::move(document.params)));
}

std::vector<config::ParamDoc> describe_extractor() {
  ExtractorDocument document;
  return config::describe_params([&](Binder& b) { bind(b, document); });
}

constexpr std::array kPlugins{
    PluginDescriptor{.type = "metrics-data-source",
                     .stability = Stability::kBeta,
                     .summary = "Scrapes each endpoint's Prometheus page.",
                     .create = create_source<metrics_source>,
                     .describe = describe_source<metrics_source>},
    PluginDescriptor{.type = "core-metrics-extractor",
                     .stability = Stability::kBeta,
                     .summary = "Reads load, cache and LoRA signals from the scraped page, engine by engine.",
                     .create = create_extractor,
                     .describe = describe_extractor},
    PluginDescriptor{.type = "multicluster-metrics-data-source",
                     .stability = Stability::kAlpha,
                     .summary = "Fetches the metrics page of another cluster's picker.",
                     .create = create_source<multicluster_source>,
                     .describe = describe_source<multicluster_source>},
    PluginDescriptor{.type = "multicluster-metrics-extractor",
                     .stability = Stability::kAlpha,
                     .summary = "Reads another cluster's queue and KV cache usage from its page.",
                     .create = create_multicluster_extractor,
                     .describe = describe_multicluster_extractor},
    PluginDescriptor{.type = "models-data-source",
                     .stability = Stability::kBeta,
                     .summary = "Fetches each endpoint's list of models.",
                     .create = create_source<models_source>,
                     .describe = describe_source<models_source>},
    PluginDescriptor{.type = "models-data-extractor",
                     .stability = Stability::kBeta,
                     .summary = "Keeps which models each endpoint says it serves.",
                     .create = create_models_extractor},
    PluginDescriptor{.type = "dcgm-data-source",
                     .stability = Stability::kAlpha,
                     .summary = "Fetches the page of each endpoint's DCGM exporter.",
                     .create = create_source<dcgm_source>,
                     .describe = describe_source<dcgm_source>},
    PluginDescriptor{.type = "dcgm-extractor",
                     .stability = Stability::kAlpha,
                     .summary = "Reads GPU utilisation from a DCGM page.",
                     .create = create_dcgm_extractor},
};

}  // namespace

EngineTable CoreMetricsExtractor::engines(SeriesMode mode) const {
  auto table =
      EngineTable::build(params_.engine_configs, params_.default_engine, params_.engine_label_key, mode);
  assert(table.ok());
  return std::move(table).value();
}

void CoreMetricsExtractor::declare_data(DataDeclaration& data) const {
  data.produce<SignalValue>(data_keys::kWaitingQueueSize);
  data.produce<SignalValue>(data_keys::kRunningRequestsSize);
  data.produce<SignalValue>(data_keys::kKvCacheUsagePercent);
  data.produce<LoraSignal>(data_keys::kActiveModels);
  data.produce<LoraSignal>(data_keys::kWaitingModels);
}

std::span<const PluginDescriptor> signal_plugins() {
  return kPlugins;
}

}  // namespace penstock::signals
