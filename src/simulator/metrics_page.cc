#include "simulator/metrics_page.h"

#include <charconv>
#include <cmath>
#include <initializer_list>

namespace penstock::simulator {

Result<MetricsDialect> parse_dialect(std::string_view name) {
  if (name == "vllm") return MetricsDialect::kVllm;
  if (name == "vllm-old") return MetricsDialect::kVllmOld;
  if (name == "sglang") return MetricsDialect::kSglang;
  if (name == "trtllm-serve" || name == "trtllm") return MetricsDialect::kTrtllmServe;
  if (name == "triton-tensorrt-llm") return MetricsDialect::kTritonTensorrtLlm;
  return invalid_config("dialect \"" + std::string(name) +
                        "\" is none of vllm, vllm-old, sglang, trtllm-serve, triton-tensorrt-llm");
}

void append_sample_value(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
    return;
  }
  char text[400];
  const double magnitude = std::abs(value);
  const bool exponent = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto end = std::to_chars(text, text + sizeof text, value,
                                 exponent ? std::chars_format::scientific : std::chars_format::fixed)
                       .ptr;
  std::string written(text, static_cast<size_t>(end - text));
  if (!exponent && written.find('.') == std::string::npos) written += ".0";
  const size_t dot = written.find('.');
  if (!exponent && value > 0 && dot > 6) {
    // The client library shortens large numbers to Go's form, with a literal zero before the exponent.
    std::string mantissa = written.substr(0, 1) + "." + written.substr(1, dot - 1) + written.substr(dot + 1);
    mantissa.erase(mantissa.find_last_not_of("0.") + 1);
    out += mantissa;
    out += "e+0";
    out += std::to_string(dot - 1);
    return;
  }
  out += written;
}

namespace {

void escape_label(std::string& out, std::string_view value) {
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
}

// Builds label sets and families of one page. `base` is a rendered label set without braces.
class Page {
 public:
  Page(std::string& out, double created_at) : out_(out), created_at_(created_at) {}

  void head(std::string_view name, std::string_view help, std::string_view type) {
    out_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name);
    out_.append(" ").append(type).append("\n");
  }
  void sample(std::string_view name, std::string_view labels, double value) {
    out_ += name;
    if (!labels.empty()) out_.append("{").append(labels).append("}");
    out_ += ' ';
    append_sample_value(out_, value);
    out_ += '\n';
  }
  void gauge(std::string_view name, std::string_view help, std::string_view labels, double value) {
    head(name, help, "gauge");
    sample(name, labels, value);
  }
  struct Series {
    std::string labels;
    double value;
  };
  // With the _created family that the Python client adds, when the dialect has one.
  void counter(std::string_view stem, std::string_view help, std::initializer_list<Series> series) {
    const std::string name = std::string(stem) + "_total";
    head(name, help, "counter");
    for (const Series& s : series) sample(name, s.labels, s.value);
    if (created_at_ <= 0) return;
    const std::string created = std::string(stem) + "_created";
    head(created, help, "gauge");
    for (const Series& s : series) sample(created, s.labels, created_at_);
  }
  // `before` and `after`: the labels that sort before and after "le".
  void histogram(std::string_view name, std::string_view help, std::string_view before,
                 std::string_view after, const PlainHistogram& h) {
    head(name, help, "histogram");
    uint64_t total = 0;
    for (size_t i = 0; i <= h.bounds().size(); ++i) {
      total += h.bucket(i);
      out_.append(name).append("_bucket{").append(before).append(before.empty() ? "" : ",").append("le=\"");
      append_sample_value(out_, i < h.bounds().size() ? h.bounds()[i] : INFINITY);
      out_.append(after.empty() ? "\"" : "\",").append(after).append("} ");
      append_sample_value(out_, static_cast<double>(total));
      out_ += '\n';
    }
    std::string labels(before);
    if (!before.empty() && !after.empty()) labels += ',';
    labels += after;
    sample(std::string(name) + "_count", labels, static_cast<double>(h.count()));
    sample(std::string(name) + "_sum", labels, h.sum());
    if (created_at_ <= 0) return;
    head(std::string(name) + "_created", help, "gauge");
    sample(std::string(name) + "_created", labels, created_at_);
  }

 private:
  std::string& out_;
  double created_at_;
};

std::string label(std::string_view name, std::string_view value) {
  std::string out(name);
  out += "=\"";
  escape_label(out, value);
  out += '"';
  return out;
}

double waiting(const EngineStats& s) {
  return s.waiting_capacity + s.waiting_deferred;
}

void cache_config(Page& page, const EngineModel& model, const MetricsContext& context, bool engine_label) {
  const auto& o = model.options();
  const uint64_t tokens = static_cast<uint64_t>(o.num_blocks - 1) * o.block_size;
  std::string labels = "_block_size_resolved=\"True\",";
  labels += label("block_size", std::to_string(o.block_size));
  labels += ",cache_dtype=\"auto\",cache_hit_alignment_tokens=\"None\",";
  labels += label("effective_attention_block_size", std::to_string(o.block_size));
  labels += ",enable_mamba_shared_prefix_checkpoint=\"False\",";
  labels += label("enable_prefix_caching", o.prefix_caching ? "True" : "False");
  if (engine_label) labels += ",engine=\"0\"";
  labels +=
      ",gpu_memory_utilization=\"0.92\",hash_block_size=\"None\",is_attention_free=\"False\","
      "kv_cache_dtype_skip_layers=\"[]\",kv_cache_layout=\"None\",";
  std::string concurrency;
  append_sample_value(concurrency, static_cast<double>(tokens) / o.max_model_len);
  labels += label("kv_cache_max_concurrency", concurrency);
  labels += ",kv_cache_memory_bytes=\"None\",";
  labels += label("kv_cache_size_tokens", std::to_string(tokens));
  labels +=
      ",kv_offloading_backend=\"native\",kv_offloading_size=\"None\",kv_sharing_fast_prefill=\"False\","
      "mamba_block_size=\"None\",mamba_cache_dtype=\"auto\",mamba_cache_mode=\"none\","
      "mamba_page_size_padded=\"None\",mamba_ssm_cache_dtype=\"float32\",num_cpu_blocks=\"None\",";
  labels += label("num_gpu_blocks", std::to_string(o.num_blocks));
  labels += ',';
  labels += label("num_gpu_blocks_override", std::to_string(o.num_blocks));
  labels += ",prefix_cache_retention_interval=\"0\",";
  labels += label("prefix_caching_hash_algo", context.prefix_hash);
  labels +=
      ",prefix_match_unit=\"None\",replayssm_buffer_len=\"16\",skip_page_size_padded=\"None\","
      "sliding_window=\"None\",swa_bounded_replay=\"True\",use_kda_recoverssm=\"False\",use_replayssm="
      "\"False\","
      "user_specified_block_size=\"True\"";
  page.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels, 1);
}

void adapter_series(Page& page, const EngineModel& model) {
  const std::string name = "vllm:lora_requests_info";
  page.head(name, "Running stats on lora requests.", "gauge");
  const std::string max_lora = label("max_lora", std::to_string(model.options().max_adapters));
  for (const auto& series : model.stats().adapters)
    page.sample(name,
                max_lora + "," + label("running_lora_adapters", series.running) + "," +
                    label("waiting_lora_adapters", series.waiting),
                series.updated_at);
}

void vllm_histograms(Page& page, const EngineStats& s, std::string_view before, std::string_view after) {
  const auto histogram = [&](std::string_view name, std::string_view help, const PlainHistogram& h) {
    page.histogram("vllm:" + std::string(name), help, before, after, h);
  };
  histogram("request_prompt_tokens", "Number of prefill tokens processed.", s.request_prompt_tokens);
  histogram("request_generation_tokens", "Number of generation tokens processed.",
            s.request_generation_tokens);
  histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", s.step_tokens);
  histogram("request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.", s.request_max_generation_tokens);
  histogram("request_params_n", "Histogram of the n request parameter.", s.request_n);
  histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.",
            s.request_max_tokens);
  histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.",
            s.first_token_seconds);
  histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.",
            s.inter_token_seconds);
  histogram("request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.", s.request_token_seconds);
  histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", s.e2e_seconds);
  histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
            s.queue_seconds);
  histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
            s.inference_seconds);
  histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
            s.prefill_seconds);
  histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
            s.decode_seconds);
  histogram("request_num_preemptions", "Histogram of the number of times a request was preempted.",
            s.request_preemptions);
  histogram("request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            s.request_computed_tokens);
}

void vllm(std::string& out, const EngineModel& model, const MetricsContext& context) {
  const EngineStats& s = model.stats();
  Page page(out, context.started_at);
  const std::string m = label("model_name", context.model_name);
  const std::string l = "engine=\"0\"," + m;
  const auto with = [&](std::string_view name, std::string_view value) {
    return l + "," + label(name, value);
  };
  const auto finished = [&](std::string_view reason) {
    return "engine=\"0\"," + label("finished_reason", reason) + "," + m;
  };
  const auto count = [&](FinishReason reason) {
    return static_cast<double>(s.finished[static_cast<size_t>(reason)]);
  };

  page.head("python_info", "Python platform information", "gauge");
  page.sample("python_info",
              "implementation=\"CPython\",major=\"3\",minor=\"12\",patchlevel=\"1\",version=\"3.12.1\"", 1);
  page.gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "",
             context.started_at);
  page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", l, s.running);
  page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", l, waiting(s));
  page.head(
      "vllm:num_requests_waiting_by_reason",
      "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
      "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "
      "reasons equals vllm:num_requests_waiting.",
      "gauge");
  page.sample("vllm:num_requests_waiting_by_reason", with("reason", "capacity"), s.waiting_capacity);
  page.sample("vllm:num_requests_waiting_by_reason", with("reason", "deferred"), s.waiting_deferred);
  page.head("vllm:engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            "gauge");
  page.sample("vllm:engine_sleep_state", with("sleep_state", "awake"), context.sleep_level == 0 ? 1 : 0);
  page.sample("vllm:engine_sleep_state", with("sleep_state", "weights_offloaded"),
              context.sleep_level == 1 ? 1 : 0);
  page.sample("vllm:engine_sleep_state", with("sleep_state", "discard_all"),
              context.sleep_level == 2 ? 1 : 0);
  page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", l, s.kv_usage_ratio);

  const auto tokens = [](uint64_t n) { return static_cast<double>(n); };
  page.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
               {{l, tokens(s.prefix_queries)}});
  page.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.",
               {{l, tokens(s.prefix_hits)}});
  page.counter(
      "vllm:external_prefix_cache_queries",
      "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of "
      "queried tokens.",
      {{l, 0}});
  page.counter(
      "vllm:external_prefix_cache_hits",
      "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of "
      "cached tokens.",
      {{l, 0}});
  page.counter("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.",
               {{l, 0}});
  page.counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", {{l, 0}});
  page.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.",
               {{l, tokens(s.preemptions)}});
  page.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", {{l, tokens(s.prompt_tokens)}});
  page.counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.",
               {{with("source", "local_compute"), tokens(s.prompt_tokens - s.prompt_tokens_cached)},
                {with("source", "local_cache_hit"), tokens(s.prompt_tokens_cached)},
                {with("source", "external_kv_transfer"), 0}});
  page.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).",
               {{l, tokens(s.prompt_tokens_cached)}});
  page.counter(
      "vllm:prompt_tokens_cached_by_source",
      "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
      "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
      "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
      {{with("source", "device"), tokens(s.prefix_hits)},
       {with("source", "host"), 0},
       {with("source", "p2p"), 0},
       {with("source", "disk"), 0},
       {with("source", "external_unspecified"), 0}});
  page.counter("vllm:generation_tokens", "Number of generation tokens processed.",
               {{l, tokens(s.generation_tokens)}});
  page.counter("vllm:request_success", "Count of successfully processed requests.",
               {{finished("stop"), count(FinishReason::kStop)},
                {finished("length"), count(FinishReason::kLength)},
                {finished("abort"), count(FinishReason::kAbort)},
                {finished("error"), count(FinishReason::kError)},
                {finished("repetition"), 0}});
  page.counter("vllm:admission_rejections",
               "Number of admission attempts rejected by a queue limit, by reason.",
               {{m + ",reason=\"max_num_queued_reqs\"", tokens(s.rejected_requests)},
                {m + ",reason=\"max_num_queued_tokens\"", 0}});
  vllm_histograms(page, s, "engine=\"0\"", m);
  if (context.adapters_enabled) adapter_series(page, model);
  cache_config(page, model, context, true);

  if (context.http_requests == nullptr) return;
  page.head("http_requests_total", "Total number of requests by method, status and handler.", "counter");
  for (const auto& [key, number] : *context.http_requests)
    page.sample("http_requests_total", label("handler", key.first) + "," + key.second, tokens(number));
}

void vllm_old(std::string& out, const EngineModel& model, const MetricsContext& context) {
  const EngineStats& s = model.stats();
  Page page(out, 0);
  const std::string l = label("model_name", context.model_name);
  const auto number = [](uint64_t n) { return static_cast<double>(n); };
  page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", l, s.running);
  page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", l,
             s.waiting_capacity);
  page.gauge("vllm:gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", l,
             s.kv_usage_ratio);
  page.counter("vllm:gpu_prefix_cache_queries",
               "GPU prefix cache queries, in terms of number of queried tokens.",
               {{l, number(s.prefix_queries)}});
  page.counter("vllm:gpu_prefix_cache_hits", "GPU prefix cache hits, in terms of number of cached tokens.",
               {{l, number(s.prefix_hits)}});
  page.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.",
               {{l, number(s.preemptions)}});
  page.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", {{l, number(s.prompt_tokens)}});
  page.counter("vllm:generation_tokens", "Number of generation tokens processed.",
               {{l, number(s.generation_tokens)}});
  page.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", "", l,
                 s.first_token_seconds);
  page.histogram("vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.", "",
                 l, s.inter_token_seconds);
  page.histogram("vllm:e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.",
                 "", l, s.e2e_seconds);
  if (context.adapters_enabled) adapter_series(page, model);
  cache_config(page, model, context, false);
}

void sglang(std::string& out, const EngineModel& model, const MetricsContext& context) {
  const EngineStats& s = model.stats();
  const auto& o = model.options();
  Page page(out, 0);
  const std::string before = "engine_type=\"unified\"";
  const std::string after =
      label("model_name", context.model_name) + ",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"";
  const std::string l = before + "," + after;
  const auto number = [](uint64_t n) { return static_cast<double>(n); };
  const double usable = model.cache().usable();
  page.gauge("sglang:num_running_reqs", "The number of running requests.", l, s.running);
  page.gauge("sglang:num_used_tokens", "The number of used tokens.", l,
             s.kv_usage_ratio * usable * o.block_size);
  page.gauge("sglang:token_usage", "The token usage.", l, s.kv_usage_ratio);
  page.gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.", l, waiting(s));
  page.gauge("sglang:num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", l, 0);
  page.gauge("sglang:cache_hit_rate", "The prefix cache hit rate.", l,
             s.prefix_queries == 0 ? 0.0 : number(s.prefix_hits) / number(s.prefix_queries));
  page.gauge("sglang:max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", l,
             usable * o.block_size);
  page.gauge("sglang:page_size", "The number of tokens in a page of the KV cache.", l, o.block_size);
  page.gauge("sglang:num_pages", "The number of pages of the KV cache.", l, usable);
  page.gauge("sglang:context_len", "The longest context.", l, o.max_model_len);
  page.gauge("sglang:num_retracted_reqs", "The number of retracted requests.", l, number(s.preemptions));
  if (context.adapters_enabled) {
    uint32_t used = 0;
    for (const char c : s.adapters.empty() ? std::string() : s.adapters[s.live_adapters].running)
      used += c == ',';
    if (!s.adapters.empty() && !s.adapters[s.live_adapters].running.empty()) ++used;
    page.gauge("sglang:lora_pool_slots_used", "Number of adapter slots in use.", l, used);
    page.gauge("sglang:lora_pool_slots_total", "Number of adapter slots.", l, o.max_adapters);
  }
  page.counter("sglang:prompt_tokens", "Number of prefill tokens processed.", {{l, number(s.prompt_tokens)}});
  page.counter("sglang:generation_tokens", "Number of generation tokens processed.",
               {{l, number(s.generation_tokens)}});
  page.counter("sglang:cached_tokens", "Number of cached prompt tokens.",
               {{"cache_source=\"device\"," + l, number(s.prompt_tokens_cached)},
                {"cache_source=\"total\"," + l, number(s.prompt_tokens_cached)}});
  page.counter("sglang:num_aborted_requests", "Number of requests aborted.",
               {{l, number(s.finished[static_cast<size_t>(FinishReason::kAbort)])}});
  page.histogram("sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.", before,
                 after, s.first_token_seconds);
  page.histogram("sglang:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", before,
                 after, s.inter_token_seconds);
  page.histogram("sglang:e2e_request_latency_seconds", "Histogram of end-to-end request latency in seconds.",
                 before, after, s.e2e_seconds);
}

void trtllm(std::string& out, const EngineModel& model) {
  const EngineStats& s = model.stats();
  const auto& o = model.options();
  Page page(out, 0);
  const std::string before = "engine_type=\"undefined\"";
  const std::string after = "model_name=\"undefined\"";
  const std::string l = before + "," + after;
  const auto number = [](uint64_t n) { return static_cast<double>(n); };
  const double usable = model.cache().usable();
  const double used = usable - model.cache().free();
  page.gauge("trtllm_num_requests_running", "Number of requests being executed", l, s.running);
  page.gauge("trtllm_num_requests_waiting", "Number of requests waiting", l, waiting(s));
  page.gauge("trtllm_kv_cache_utilization", "KV cache utilization", l, s.kv_usage_ratio);
  page.gauge("trtllm_kv_cache_hit_rate", "KV cache hit rate", l,
             s.prefix_queries == 0 ? 0.0 : number(s.prefix_hits) / number(s.prefix_queries));
  page.gauge("trtllm_kv_cache_max_blocks", "Number of KV cache blocks", l, usable);
  page.gauge("trtllm_kv_cache_free_blocks", "Number of free KV cache blocks", l, usable - used);
  page.gauge("trtllm_kv_cache_used_blocks", "Number of used KV cache blocks", l, used);
  page.gauge("trtllm_kv_cache_tokens_per_block", "Tokens in a KV cache block", l, o.block_size);
  page.gauge("trtllm_max_num_active_requests", "Largest number of active requests", l, o.max_sequences);
  page.counter("trtllm_request_success", "Count of successfully processed requests.",
               {{l + ",finished_reason=\"stop\"", number(s.finished[0])},
                {l + ",finished_reason=\"length\"", number(s.finished[1])}});
  page.histogram("trtllm_time_to_first_token_seconds", "Histogram of time to first token in seconds.", before,
                 after, s.first_token_seconds);
  page.histogram("trtllm_time_per_output_token_seconds", "Histogram of time per output token in seconds.",
                 before, after, s.request_token_seconds);
  page.histogram("trtllm_e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.",
                 before, after, s.e2e_seconds);
  page.histogram("trtllm_request_queue_time_seconds", "Histogram of time spent waiting.", before, after,
                 s.queue_seconds);
}

// Triton writes integers without a fraction.
void triton(std::string& out, const EngineModel& model) {
  const EngineStats& s = model.stats();
  const auto& o = model.options();
  const auto family = [&](std::string_view name, std::string_view help) {
    out.append("# HELP nv_trt_llm_").append(name).append(" ").append(help).append("\n# TYPE nv_trt_llm_");
    out.append(name).append(" gauge\n");
  };
  const auto sample = [&](std::string_view name, std::string_view type, std::string_view value,
                          uint64_t number) {
    out.append("nv_trt_llm_").append(name).append("{");
    if (type < "model")
      out.append(type).append("=\"").append(value).append("\",model=\"tensorrt_llm\"");
    else
      out.append("model=\"tensorrt_llm\",").append(type).append("=\"").append(value).append("\"");
    out.append(",version=\"1\"} ").append(std::to_string(number)).append("\n");
  };
  const uint64_t usable = model.cache().usable();
  const uint64_t free = model.cache().free();
  family("request_metrics", "TRT LLM request metrics");
  sample("request_metrics", "request_type", "waiting", s.waiting_capacity + s.waiting_deferred);
  sample("request_metrics", "request_type", "context", 0);
  sample("request_metrics", "request_type", "scheduled", s.running);
  sample("request_metrics", "request_type", "max", o.max_sequences);
  sample("request_metrics", "request_type", "active", s.running);
  family("kv_cache_block_metrics", "TRT LLM KV cache block metrics");
  out +=
      "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"tensorrt_llm\",version="
      "\"1\"} ";
  append_sample_value(out, s.kv_usage_ratio);
  out += '\n';
  sample("kv_cache_block_metrics", "kv_cache_block_type", "tokens_per", o.block_size);
  sample("kv_cache_block_metrics", "kv_cache_block_type", "used", usable - free);
  sample("kv_cache_block_metrics", "kv_cache_block_type", "free", free);
  sample("kv_cache_block_metrics", "kv_cache_block_type", "max", usable);
  family("general_metrics", "General TRT LLM metrics");
  sample("general_metrics", "general_type", "iteration_counter", s.steps);
}

}  // namespace

void append_metrics(std::string& out, MetricsDialect dialect, const EngineModel& model,
                    const MetricsContext& context) {
  switch (dialect) {
    case MetricsDialect::kVllm:
      return vllm(out, model, context);
    case MetricsDialect::kVllmOld:
      return vllm_old(out, model, context);
    case MetricsDialect::kSglang:
      return sglang(out, model, context);
    case MetricsDialect::kTrtllmServe:
      return trtllm(out, model);
    case MetricsDialect::kTritonTensorrtLlm:
      return triton(out, model);
  }
}

void append_iteration_stats(std::string& out, const EngineModel& model) {
  const EngineStats& s = model.stats();
  const uint64_t usable = model.cache().usable();
  out += "[{\"iter\":" + std::to_string(s.steps) + ",\"numActiveRequests\":" + std::to_string(s.running) +
         ",\"numQueuedRequests\":" + std::to_string(s.waiting_capacity + s.waiting_deferred) +
         ",\"kvCacheStats\":{\"maxNumBlocks\":" + std::to_string(usable) +
         ",\"freeNumBlocks\":" + std::to_string(model.cache().free()) +
         ",\"usedNumBlocks\":" + std::to_string(usable - model.cache().free()) +
         ",\"tokensPerBlock\":" + std::to_string(model.options().block_size) + "}}]";
}

}  // namespace penstock::simulator
