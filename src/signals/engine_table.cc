#include "signals/engine_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "base/strings.h"

namespace penstock::signals {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return is_letter(c) || is_digit(c);
}

std::string_view strip(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Puts bare label values in quotes, wherever a word, "=" and a bare value follow each other.
std::string quote_bare_values(std::string_view text) {
  const auto skip_spaces = [&](size_t i) {
    while (i < text.size() && is_space(text[i])) ++i;
    return i;
  };
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    if (!is_word(text[i])) {
      out += text[i++];
      continue;
    }
    size_t word_end = i;
    while (word_end < text.size() && is_word(text[word_end])) ++word_end;
    const std::string_view word = text.substr(i, word_end - i);
    const size_t equals = skip_spaces(word_end);
    if (equals < text.size() && text[equals] == '=') {
      const size_t begin = skip_spaces(equals + 1);
      size_t end = begin;
      while (end < text.size() && text[end] != '"' && text[end] != ',' && text[end] != '}' &&
             !is_space(text[end])) {
        ++end;
      }
      if (end > begin) {
        out.append(word).append("=\"").append(text.substr(begin, end - begin)).append("\"");
        i = end;
        continue;
      }
    }
    out += word;
    i = word_end;
  }
  return out;
}

bool legal_metric_name(std::string_view name) {
  if (name.empty() || is_digit(name.front())) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return is_word(c) || c == ':'; });
}

// `name = "value"`, or nothing.
std::optional<std::pair<std::string_view, std::string_view>> parse_pair(std::string_view text) {
  text = strip(text);
  size_t name_end = 0;
  while (name_end < text.size() && is_word(text[name_end])) ++name_end;
  const std::string_view name = text.substr(0, name_end);
  if (name.empty() || is_digit(name.front())) return std::nullopt;
  std::string_view rest = strip(text.substr(name_end));
  if (rest.empty() || rest.front() != '=') return std::nullopt;
  rest = strip(rest.substr(1));
  if (rest.size() < 2 || rest.front() != '"' || rest.back() != '"') return std::nullopt;
  const std::string_view value = rest.substr(1, rest.size() - 2);
  if (value.find('"') != std::string_view::npos) return std::nullopt;
  return std::pair(name, value);
}

MetricSpec spec(std::string name) {
  return {std::move(name), {}};
}
MetricSpec spec(std::string name, std::string label, std::string value) {
  return {std::move(name), {{std::move(label), std::move(value)}}};
}
SignalRule required(std::vector<MetricSpec> names) {
  return {std::move(names), Need::kRequired};
}
SignalRule optional(std::vector<MetricSpec> names) {
  return {std::move(names), Need::kOptional};
}

EngineMapping vllm(SeriesMode mode) {
  EngineMapping m;
  m.name = "vllm";
  m.rule(Signal::kWaitingRequests) = required({spec("vllm:num_requests_waiting")});
  if (mode == SeriesMode::kStrict) {
    auto& names = m.rule(Signal::kWaitingRequests).names;
    names.insert(names.begin(), spec("vllm:num_requests_waiting_by_reason", "reason", "capacity"));
    m.lora_resident = spec("vllm:lora_adapter_loaded");
  }
  m.rule(Signal::kRunningRequests) = required({spec("vllm:num_requests_running")});
  // Renamed in vLLM 0.9; some versions export both.
  m.rule(Signal::kKvUsage) = required({spec("vllm:kv_cache_usage_perc"), spec("vllm:gpu_cache_usage_perc")});
  m.lora = spec("vllm:lora_requests_info");
  m.cache_info = {spec("vllm:cache_config_info"), "block_size", "num_gpu_blocks"};
  m.rank_label = "engine";
  return m;
}

EngineMapping sglang() {
  EngineMapping m;
  m.name = "sglang";
  m.rule(Signal::kWaitingRequests) = required({spec("sglang:num_queue_reqs")});
  m.rule(Signal::kRunningRequests) = required({spec("sglang:num_running_reqs")});
  m.rule(Signal::kKvUsage) = required({spec("sglang:token_usage")});
  // Gauges since SGLang 0.5.11, labels of an info metric before.
  m.rule(Signal::kCacheBlockSize) = optional({spec("sglang:page_size")});
  m.rule(Signal::kCacheNumBlocks) = optional({spec("sglang:num_pages")});
  m.cache_info = {spec("sglang:cache_config_info"), "page_size", "num_pages"};
  m.rank_label = "dp_rank";
  return m;
}

EngineMapping trtllm_serve() {
  EngineMapping m;
  m.name = "trtllm-serve";
  m.rule(Signal::kWaitingRequests) = required({spec("trtllm_num_requests_waiting")});
  m.rule(Signal::kRunningRequests) = required({spec("trtllm_num_requests_running")});
  m.rule(Signal::kKvUsage) = required({spec("trtllm_kv_cache_utilization")});
  m.rule(Signal::kCacheBlockSize) = optional({spec("trtllm_kv_cache_tokens_per_block")});
  m.rule(Signal::kCacheNumBlocks) = optional({spec("trtllm_kv_cache_max_blocks")});
  return m;
}

EngineMapping triton_tensorrt_llm() {
  const std::string requests = "nv_trt_llm_request_metrics";
  const std::string blocks = "nv_trt_llm_kv_cache_block_metrics";
  EngineMapping m;
  m.name = "triton-tensorrt-llm";
  m.rule(Signal::kWaitingRequests) = required({spec(requests, "request_type", "waiting")});
  m.rule(Signal::kRunningRequests) = required({spec(requests, "request_type", "scheduled")});
  m.rule(Signal::kKvUsage) = required({spec(blocks, "kv_cache_block_type", "fraction")});
  m.rule(Signal::kCacheBlockSize) = optional({spec(blocks, "kv_cache_block_type", "tokens_per")});
  m.rule(Signal::kCacheNumBlocks) = optional({spec(blocks, "kv_cache_block_type", "max")});
  return m;
}

EngineMapping triton() {
  EngineMapping m;
  m.name = "triton";
  m.rule(Signal::kWaitingRequests) = required({spec("nv_inference_pending_request_count")});
  // A cumulative counter: kept as the reference has it.
  m.rule(Signal::kRunningRequests) = required({spec("nv_inference_exec_count")});
  return m;
}

EngineMapping lmdeploy() {
  EngineMapping m;
  m.name = "lmdeploy";
  m.rule(Signal::kWaitingRequests) = required({spec("lmdeploy:num_requests_waiting")});
  m.rule(Signal::kRunningRequests) = required({spec("lmdeploy:num_requests_running")});
  m.rule(Signal::kKvUsage) = required({spec("lmdeploy:gpu_cache_usage_perc")});
  m.rank_label = "engine";
  return m;
}

EngineMapping llamacpp() {
  EngineMapping m;
  m.name = "llamacpp";
  m.rule(Signal::kWaitingRequests) = required({spec("llamacpp:requests_deferred")});
  m.rule(Signal::kRunningRequests) = required({spec("llamacpp:requests_processing")});
  return m;
}

}  // namespace

std::string MetricSpec::text() const {
  if (labels.empty()) return name;
  std::string out = name + "{";
  for (const auto& [label, value] : labels) {
    if (out.back() != '{') out += ',';
    out += fmt::format("{}=\"{}\"", label, value);
  }
  return out + "}";
}

Result<std::optional<MetricSpec>> parse_metric_spec(std::string_view text) {
  if (text.empty()) return std::optional<MetricSpec>();
  const auto fail = [&] {
    return invalid_config(fmt::format("not a valid metric specification: \"{}\"", text));
  };
  const std::string quoted = quote_bare_values(text);
  std::string_view rest = strip(quoted);
  MetricSpec out;
  std::string_view pairs;
  if (!rest.empty() && rest.back() == '}') {
    const size_t open = rest.find('{');
    if (open == std::string_view::npos || rest.find('}') != rest.size() - 1) return fail();
    pairs = rest.substr(open + 1, rest.size() - open - 2);
    rest = strip(rest.substr(0, open));
  }
  if (!legal_metric_name(rest)) return fail();
  out.name = rest;
  if (strip(pairs).empty()) return std::optional(std::move(out));
  for (const std::string_view part : split(pairs, ',')) {
    const auto pair = parse_pair(part);
    if (!pair) {
      return invalid_config(
          fmt::format("invalid label pair \"{}\" in specification: \"{}\"", strip(part), text));
    }
    out.labels[std::string(pair->first)] = pair->second;
  }
  return std::optional(std::move(out));
}

bool EngineMapping::provides(Signal s) const {
  if (!rule(s).names.empty()) return true;
  if (!cache_info.spec) return false;
  return (s == Signal::kCacheBlockSize && !cache_info.block_size_label.empty()) ||
         (s == Signal::kCacheNumBlocks && !cache_info.num_blocks_label.empty());
}

std::vector<EngineMapping> builtin_engines(SeriesMode mode) {
  return {vllm(mode), sglang(), trtllm_serve(), triton_tensorrt_llm(), triton(), lmdeploy(), llamacpp()};
}

Result<EngineTable> EngineTable::build(std::vector<EngineMapping> custom, std::string_view default_engine,
                                       std::string_view label_key, SeriesMode mode) {
  EngineTable table;
  table.mode_ = mode;
  table.label_key_ = label_key;
  for (EngineMapping& mapping : custom) {
    if (mapping.name.empty()) return invalid_config("engine config name cannot be empty");
    if (mapping.name == "default")
      return invalid_config("engine config name cannot be \"default\" (reserved)");
    if (table.find(mapping.name) != nullptr)
      return invalid_config(fmt::format("mapping for engine type \"{}\" already exists", mapping.name));
    table.mappings_.push_back(std::move(mapping));
  }
  for (EngineMapping& mapping : builtin_engines(mode)) {
    if (table.find(mapping.name) == nullptr) table.mappings_.push_back(std::move(mapping));
  }
  const EngineMapping* chosen = table.find(default_engine);
  if (chosen == nullptr) {
    return invalid_config(fmt::format("defaultEngine \"{}\" not found in engineConfigs", default_engine));
  }
  table.default_ = static_cast<size_t>(chosen - table.mappings_.data());
  return table;
}

const EngineMapping* EngineTable::find(std::string_view name) const {
  const auto it = std::find_if(mappings_.begin(), mappings_.end(),
                               [&](const EngineMapping& mapping) { return mapping.name == name; });
  return it == mappings_.end() ? nullptr : &*it;
}

std::string_view EngineTable::engine_name(const Endpoint& endpoint) const {
  if (!endpoint.engine.empty()) return endpoint.engine;
  if (const std::string_view label = endpoint.label(label_key_); !label.empty()) return label;
  return endpoint.label(kLegacyEngineLabel);
}

const EngineMapping& EngineTable::for_endpoint(const Endpoint& endpoint) const {
  const EngineMapping* mapping = find(engine_name(endpoint));
  return mapping == nullptr ? default_mapping() : *mapping;
}

bool EngineTable::may_detect(const Endpoint& endpoint) const {
  return engine_name(endpoint).empty();
}

}  // namespace penstock::signals
