#include "simulator/faults.h"

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "config/node.h"

namespace penstock::simulator {

bool Fault::touches_body() const {
  return first_byte_delay_ms > 0 || lying_content_length || reset_after_bytes >= 0 ||
         stall_after_events >= 0 || truncate_after_events >= 0 || stream_error_after_events >= 0 ||
         !sse.empty();
}

bool Fault::touches_requests() const {
  return hang || delay_ms > 0 || status != 0 || close_after || touches_body();
}

namespace {

constexpr std::array<std::string_view, 6> kStatusBodies = {"vllm", "flat", "string", "text", "html", "empty"};
constexpr std::array<std::string_view, 13> kSseKinds = {
    "",           "crlf",          "cr",  "no_space", "comments", "bom",         "invalid_json",
    "multi_line", "no_blank_line", "nul", "one_byte", "huge",     "empty_events"};
constexpr std::array<std::string_view, 12> kMetricsTexts = {
    "",        "empty", "html", "json",     "no_final_newline", "crlf",
    "no_type", "nan",   "inf",  "negative", "duplicate",        "garbage"};

template <size_t N>
void one_of(config::Binder& b, std::string_view name, const std::string& value,
            const std::array<std::string_view, N>& kinds) {
  if (b.describing() || std::find(kinds.begin(), kinds.end(), value) != kinds.end()) return;
  std::string known;
  for (const std::string_view kind : kinds) {
    if (!kind.empty()) known += (known.empty() ? "" : ", ") + std::string(kind);
  }
  b.fail(name, "\"" + value + "\" is none of " + known);
}

}  // namespace

void bind(config::Binder& b, Fault& f) {
  b.field("probability", f.probability, "ratio", "Share of the matching requests that are hit.");
  b.field("skip", f.skip, "requests", "Matching requests left alone before the first is hit.");
  b.field("count", f.count, "requests", "How many requests are hit; -1: all.");
  b.field("paths", f.paths, "", "Paths of the requests; empty: the inference routes.");
  b.field("model", f.model, "", "Model or adapter of the requests; empty: every one.");
  b.field("hang", f.hang, "", "The request is never answered.");
  b.field("delay_ms", f.delay_ms, "ms", "Wait before the response's head.");
  b.field("status", f.status, "", "Answer with this HTTP status.");
  b.field("status_body", f.status_body, "", "Its body: vllm, flat, string, text, html or empty.");
  b.field("retry_after", f.retry_after, "", "Its retry-after field; empty: none.");
  b.field("first_byte_delay_ms", f.first_byte_delay_ms, "ms",
          "Wait between the head and the first body byte.");
  b.field("lying_content_length", f.lying_content_length, "",
          "Promise 64 bytes more than are sent, then close. Streams are not affected.");
  b.field("reset_after_bytes", f.reset_after_bytes, "bytes",
          "Break the connection after so much of the body; -1: never.");
  b.field("stall_after_events", f.stall_after_events, "events",
          "Pause a stream after so many events; -1: never.");
  b.field("stall_ms", f.stall_ms, "ms", "Length of that pause; -1: for ever.");
  b.field("truncate_after_events", f.truncate_after_events, "events",
          "End a stream cleanly after so many events, without its end marker; -1: never.");
  b.field("stream_error_after_events", f.stream_error_after_events, "events",
          "Put an error event and the end after so many events; -1: never.");
  b.field(
      "sse", f.sse, "",
      "Damage to stream events: crlf, cr, no_space, comments, bom, invalid_json, multi_line, no_blank_line, "
      "nul, one_byte, huge or empty_events.");
  b.field("close_after", f.close_after, "", "Close the connection after the answer.");
  b.field("accept_delay_ms", f.accept_delay_ms, "ms", "The first request of every connection waits.");
  b.field("slow_factor", f.slow_factor, "ratio", "Multiplies the time of every step.");
  b.field("health_status", f.health_status, "", "Status of /health and /ping.");
  b.field("health_hang", f.health_hang, "", "/health and /ping are never answered.");
  b.field("metrics_status", f.metrics_status, "", "Status of the metrics page.");
  b.field("metrics_hang", f.metrics_hang, "", "The metrics page is never answered.");
  b.field("metrics_freeze", f.metrics_freeze, "", "The metrics page stays as it was when first asked for.");
  b.field("metrics_drop", f.metrics_drop, "", "Metric families left out; \"name*\" is a prefix.");
  b.field("metrics_rename", f.metrics_rename, "", "Metric families shown under another name: \"old=new\".");
  b.field("metrics_text", f.metrics_text, "",
          "Damage to the page: empty, html, json, no_final_newline, crlf, no_type, nan, inf, negative, "
          "duplicate or "
          "garbage.");

  if (f.probability < 0 || f.probability > 1) b.fail("probability", "must be between 0 and 1");
  if (f.status != 0 && (f.status < 200 || f.status > 599)) b.fail("status", "must be between 200 and 599");
  if (f.health_status != 0 && (f.health_status < 200 || f.health_status > 599))
    b.fail("health_status", "must be between 200 and 599");
  if (f.metrics_status != 0 && (f.metrics_status < 200 || f.metrics_status > 599))
    b.fail("metrics_status", "must be between 200 and 599");
  if (f.slow_factor < 0) b.fail("slow_factor", "must not be negative");
  one_of(b, "status_body", f.status_body, kStatusBodies);
  one_of(b, "sse", f.sse, kSseKinds);
  one_of(b, "metrics_text", f.metrics_text, kMetricsTexts);
}

Result<std::vector<Fault>> Faults::parse(std::string_view document) {
  config::ParseLimits limits;
  limits.max_bytes = 256 * 1024;
  Result<config::Node> node = config::parse_document(document, "faults", limits);
  if (!node) return std::move(node).error();
  std::vector<const config::Node*> items;
  if (node->is_list()) {
    for (const config::Node& item : node->items) items.push_back(&item);
  } else if (!node->is_null() && !(node->is_map() && node->members.empty())) {
    items.push_back(&node.value());
  }
  if (items.size() > kMaxFaults)
    return invalid_config("faults: " + std::to_string(items.size()) + " faults, at most " +
                          std::to_string(kMaxFaults) + " are kept");
  std::vector<Fault> faults;
  for (size_t i = 0; i < items.size(); ++i) {
    Fault fault;
    Status decoded = config::decode_params(
        items[i], "faults[" + std::to_string(i) + "]", [&](config::Binder& b) { bind(b, fault); },
        config::Binder::Case::kSensitive);
    if (!decoded) return std::move(decoded).error();
    faults.push_back(std::move(fault));
  }
  return faults;
}

Status Faults::set(std::string_view document) {
  Result<std::vector<Fault>> faults = parse(document);
  if (!faults) return std::move(faults).error();
  entries_.clear();
  for (Fault& fault : *faults) entries_.push_back({std::move(fault)});
  return {};
}

Status Faults::add(std::string_view document) {
  Result<std::vector<Fault>> faults = parse(document);
  if (!faults) return std::move(faults).error();
  if (entries_.size() + faults->size() > kMaxFaults) return invalid_config("faults: too many");
  for (Fault& fault : *faults) entries_.push_back({std::move(fault)});
  return {};
}

const Fault* Faults::pick(std::string_view path, bool inference_route, std::string_view model) {
  for (Entry& entry : entries_) {
    const Fault& fault = entry.fault;
    if (!fault.touches_requests()) continue;
    if (fault.paths.empty() ? !inference_route
                            : std::find(fault.paths.begin(), fault.paths.end(), path) == fault.paths.end())
      continue;
    if (!fault.model.empty() && fault.model != model) continue;
    if (entry.matched++ < fault.skip) continue;
    if (fault.count >= 0 && entry.hit >= fault.count) continue;
    if (fault.probability < 1.0 && random_.uniform() >= fault.probability) continue;
    ++entry.hit;
    ++injected_;
    return &fault;
  }
  return nullptr;
}

namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit = text.find(from); hit != std::string_view::npos; hit = text.find(from, at)) {
    out.append(text.substr(at, hit - at)).append(to);
    at = hit + from.size();
  }
  return out.append(text.substr(at));
}

}  // namespace

std::string damage_events(std::string_view kind, std::string_view events) {
  if (kind == "crlf") return replaced(events, "\n", "\r\n");
  if (kind == "cr") return replaced(events, "\n", "\r");
  if (kind == "no_space") return replaced(events, "data: ", "data:");
  if (kind == "comments") return ": keep-alive\n\n" + replaced(events, "data: ", ": comment\ndata: ");
  if (kind == "bom") return "\xef\xbb\xbf" + std::string(events);
  if (kind == "invalid_json") return replaced(events, "\"choices\":[", "\"choices\":[,");
  if (kind == "multi_line") return replaced(events, "\"choices\":[", "\ndata: \"choices\":[");
  if (kind == "no_blank_line") return replaced(events, "\n\n", "\n");
  if (kind == "nul") return replaced(events, "\"created\":", std::string_view("\"created\":\0", 11));
  if (kind == "huge")
    return "data: {\"choices\":[],\"padding\":\"" + std::string(10 << 20U, 'x') + "\"}\n\n" +
           std::string(events);
  if (kind == "empty_events") return "\n\ndata:\n\n" + std::string(events);
  return std::string(events);
}

namespace {

// True when a series or comment of this name belongs to the family (or to the prefix "family*").
bool in_family(std::string_view name, std::string_view family) {
  if (family.ends_with('*')) return name.starts_with(family.substr(0, family.size() - 1));
  if (!name.starts_with(family)) return false;
  const std::string_view rest = name.substr(family.size());
  return rest.empty() || rest == "_bucket" || rest == "_sum" || rest == "_count" || rest == "_created";
}

}  // namespace

std::string damage_metrics(const Fault& fault, std::string_view page) {
  if (fault.metrics_text == "empty") return {};
  if (fault.metrics_text == "html") return "<html><body><h1>It works!</h1></body></html>\n";
  if (fault.metrics_text == "json") return "[]";
  std::string out;
  bool garbage_written = false;
  for (std::string_view line : split(page, '\n')) {
    if (line.empty()) continue;
    const bool comment = line.starts_with("# ");
    if (comment && fault.metrics_text == "no_type" && line.starts_with("# TYPE")) continue;
    const size_t name_at = comment ? line.find(' ', 2) + 1 : 0;
    const size_t name_end = std::min(line.find_first_of(" {", name_at), line.size());
    const std::string_view name = line.substr(name_at, name_end - name_at);
    if (std::any_of(fault.metrics_drop.begin(), fault.metrics_drop.end(),
                    [&](const std::string& family) { return in_family(name, family); }))
      continue;
    std::string written(line);
    for (const std::string& rename : fault.metrics_rename) {
      const size_t equals = rename.find('=');
      if (equals == std::string::npos || !in_family(name, std::string_view(rename).substr(0, equals)))
        continue;
      written.replace(name_at, equals, rename.substr(equals + 1));
    }
    if (!comment) {
      const size_t value_at = written.rfind(' ') + 1;
      if (fault.metrics_text == "nan") written.replace(value_at, std::string::npos, "NaN");
      if (fault.metrics_text == "inf") written.replace(value_at, std::string::npos, "+Inf");
      if (fault.metrics_text == "negative") written.insert(value_at, "-");
      if (fault.metrics_text == "garbage" && !garbage_written) {
        written = "foo{ this is no metric\n" + written;
        garbage_written = true;
      }
      if (fault.metrics_text == "duplicate") written += "\n" + written;
    }
    out += written;
    out += fault.metrics_text == "crlf" ? "\r\n" : "\n";
  }
  if (fault.metrics_text == "no_final_newline" && !out.empty()) out.pop_back();
  return out;
}

std::string status_body(const Fault& fault, std::string& content_type) {
  content_type = "application/json";
  const std::string code = std::to_string(fault.status);
  const std::string message = "injected status " + code;
  if (fault.status_body == "flat")
    return R"({"object":"error","message":")" + message +
           R"(","type":"InternalServerError","param":null,"code":)" + code + "}";
  if (fault.status_body == "string") return R"({"error":")" + message + "\"}";
  if (fault.status_body == "text") {
    content_type = "text/plain; charset=utf-8";
    return message + "\n";
  }
  if (fault.status_body == "html") {
    content_type = "text/html";
    return "<html><head><title>" + code + "</title></head><body>" + message + "</body></html>\n";
  }
  if (fault.status_body == "empty") {
    content_type.clear();
    return {};
  }
  const char* type = fault.status == 503   ? "Service Unavailable"
                     : fault.status == 429 ? "Too Many Requests"
                     : fault.status >= 500 ? "InternalServerError"
                     : fault.status == 404 ? "NotFoundError"
                                           : "BadRequestError";
  return R"({"error":{"message":")" + message + R"(","type":")" + type + R"(","param":null,"code":)" + code +
         "}}";
}

}  // namespace penstock::simulator
