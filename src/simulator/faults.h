#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "config/params.h"

namespace penstock::simulator {

// One fault of a simulated engine: which requests it meets and what happens to them, or what the engine
// does wrong as a whole. Set at start, or while it runs by POST /sim/faults, as JSON with these names.
struct Fault {
  // Which requests. Engine-wide effects ignore these.
  double probability = 1.0;
  int64_t skip = 0;                // matching requests left alone first
  int64_t count = -1;              // matching requests hit after those; -1: all
  std::vector<std::string> paths;  // empty: the inference routes
  std::string model;               // empty: every model

  // Effects on a request, in the order in which they come into play.
  bool hang = false;                       // never an answer
  int64_t delay_ms = 0;                    // before the response's head
  int64_t status = 0;                      // this status instead of an answer
  std::string status_body = "vllm";        // vllm, flat, string, text, html, empty
  std::string retry_after;                 // of a status
  int64_t first_byte_delay_ms = 0;         // between head and body
  bool lying_content_length = false;       // promises 64 bytes more than it sends, then closes
  int64_t reset_after_bytes = -1;          // of the body; 0: right after the head went out
  int64_t stall_after_events = -1;         // of a stream
  int64_t stall_ms = -1;                   // -1: for ever
  int64_t truncate_after_events = -1;      // ends a stream as if it were complete, without [DONE]
  int64_t stream_error_after_events = -1;  // an error event, [DONE], the end
  std::string sse;                         // crlf, cr, no_space, comments, bom, invalid_json, multi_line,
                                           // no_blank_line, nul, one_byte, huge, empty_events
  bool close_after = false;                // the connection closes after the answer, without notice

  // Effects on the engine.
  int64_t accept_delay_ms = 0;  // the first request of each connection waits
  double slow_factor = 1.0;     // multiplies the time of every step
  int64_t health_status = 0;    // of /health and /ping
  bool health_hang = false;
  int64_t metrics_status = 0;
  bool metrics_hang = false;
  bool metrics_freeze = false;              // the page of the moment when the fault was set
  std::vector<std::string> metrics_drop;    // families; "name*" is a prefix
  std::vector<std::string> metrics_rename;  // "old=new"
  std::string metrics_text;  // empty, html, json, no_final_newline, crlf, no_type, nan, inf, negative,
                             // duplicate, garbage

  bool touches_requests() const;
  // Any effect on how body bytes are sent.
  bool touches_body() const;
};

void bind(config::Binder& b, Fault& fault);

// The faults of one engine and the counters their selectors need. Deterministic by seed. Not thread-safe.
class Faults {
 public:
  static constexpr size_t kMaxFaults = 64;
  explicit Faults(uint64_t seed) : random_(seed) {}

  // Replaces all faults by those of a JSON or YAML document: one object, a list of them, or {} for none.
  // Errors name field and value; nothing changes then.
  Status set(std::string_view document);
  Status add(std::string_view document);

  bool empty() const { return entries_.empty(); }
  // The first fault that hits this request, or nullptr. The pointer is valid until set(); copy it to keep it.
  const Fault* pick(std::string_view path, bool inference_route, std::string_view model);
  // The first fault for which `wanted` holds, or nullptr.
  template <typename F>
  const Fault* engine_wide(F wanted) const {
    for (const Entry& entry : entries_)
      if (wanted(entry.fault)) return &entry.fault;
    return nullptr;
  }
  // Requests hit since start.
  uint64_t injected() const { return injected_; }

 private:
  struct Entry {
    Fault fault;
    int64_t matched = 0;
    int64_t hit = 0;
  };
  static Result<std::vector<Fault>> parse(std::string_view document);

  std::vector<Entry> entries_;
  Random random_;
  uint64_t injected_ = 0;
};

// Damages rendered SSE events as `Fault::sse` says.
std::string damage_events(std::string_view kind, std::string_view events);
// Damages a metrics page as the metrics_* fields say.
std::string damage_metrics(const Fault& fault, std::string_view page);
// The body of an injected status; `content_type` is set with it.
std::string status_body(const Fault& fault, std::string& content_type);

}  // namespace penstock::simulator
