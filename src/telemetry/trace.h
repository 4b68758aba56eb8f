#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"

// Distributed tracing: W3C trace context (www.w3.org/TR/trace-context), spans of one request, sampling, and a
// bounded queue towards an exporter's thread. A process without a Tracer pays one branch a request.
// What one request can leave is bounded: RequestTrace::kMaxSpans spans, a span's first 32 attributes, of a
// text (a value, an item of a list, an error) the first 512 bytes up to the end of a character, of a list the
// first 16 items. Keys, names and scopes are the program's own.
namespace penstock::telemetry {

// --- context ---

struct TraceContext {
  std::array<uint8_t, 16> trace_id{};
  std::array<uint8_t, 8> span_id{};
  uint8_t flags = 0;  // bit 0: sampled
  bool sampled() const { return (flags & 1U) != 0; }
};

inline constexpr size_t kTraceparentSize = 55;
// "00-<32 hex>-<16 hex>-<2 hex>"; of later versions what version 00 has of them. Nothing when malformed.
std::optional<TraceContext> parse_traceparent(std::string_view text);
void format_traceparent(const TraceContext& context, std::span<char, kTraceparentSize> out);
// Whether a tracestate can be passed on: printable, at most 512 bytes.
bool usable_tracestate(std::string_view text);

// --- spans ---

enum class SpanKind : uint8_t { kInternal = 1, kServer = 2, kClient = 3 };  // OTLP's numbers

using SpanValue =
    std::variant<std::string, int64_t, double, bool, std::vector<std::string>, std::vector<double>>;

struct SpanAttribute {
  std::string_view key;  // a literal
  SpanValue value;
};

struct Span {
  std::array<uint8_t, 8> id{};
  std::array<uint8_t, 8> parent_id{};  // all zero: a root
  std::string_view scope;              // instrumentation scope, a literal
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  WallTime start{};
  WallTime end{};
  bool failed = false;
  std::string error;  // why, when failed
  std::vector<SpanAttribute> attributes;
};

// The spans of one request, as the exporter gets them.
struct SpanBatch {
  std::array<uint8_t, 16> trace_id{};
  uint8_t flags = 0;
  bool remote_parent = false;  // the first span's parent is another process's
  std::string tracestate;
  std::vector<Span> spans;
};

class Tracer;

// The trace of one request: its context, and its spans when it is sampled. Belongs to the request's loop and
// is reused by the next one. The first span ("gateway.request" in the doors) is open from start() to
// finish(); others are opened inside it with SpanScope and nest.
class RequestTrace {
 public:
  static constexpr size_t kMaxSpans = 256;  // further ones are left out

  RequestTrace() = default;
  RequestTrace(const RequestTrace&) = delete;
  RequestTrace& operator=(const RequestTrace&) = delete;

  // Joins the trace of the headers (empty: absent) or begins one, and decides whether it is sampled. `tracer`
  // must outlive finish().
  void start(Tracer& tracer, std::string_view traceparent, std::string_view tracestate, std::string_view name,
             SpanKind kind, std::string_view scope);
  bool started() const { return tracer_ != nullptr; }
  // This, when spans are to be written; nullptr when tracing is off or the request isn't sampled.
  RequestTrace* recording() { return sampled_ ? this : nullptr; }

  // What goes on to the next hop, with the first span as the parent; "" before start(), so when tracing is
  // off a client's own headers should pass unchanged. Valid until reset().
  std::string_view traceparent() const {
    return {traceparent_.data(), tracer_ == nullptr ? 0 : kTraceparentSize};
  }
  std::string_view tracestate() const { return tracestate_; }

  // Of the first span; nothing when not recording.
  void set(std::string_view key, SpanValue value);
  void fail(std::string_view message);

  // Ends the first span and what is still open, hands everything to the tracer, and resets.
  void finish();
  // Forgets everything without handing it over.
  void reset();

 private:
  friend class SpanScope;
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t begin(std::string_view name, std::string_view suffix, SpanKind kind, std::string_view scope);
  void end(uint32_t index);

  Tracer* tracer_ = nullptr;
  bool sampled_ = false;
  std::array<char, kTraceparentSize> traceparent_{};
  std::string tracestate_;
  std::unique_ptr<SpanBatch> batch_;  // only when sampled
  uint32_t open_ = kNone;             // the innermost open span
  std::vector<uint32_t> parents_;     // by span, the index of its parent
};

// One span for the time of a block; does nothing with a null trace. `name` + `suffix` is its name.
class SpanScope {
 public:
  SpanScope(RequestTrace* trace, std::string_view name, SpanKind kind, std::string_view scope,
            std::string_view suffix = {})
      : trace_(trace) {
    if (trace_ != nullptr) index_ = trace_->begin(name, suffix, kind, scope);
  }
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;
  ~SpanScope() {
    if (trace_ != nullptr) trace_->end(index_);
  }

  explicit operator bool() const { return trace_ != nullptr; }
  // REQUIRES: recording (test with `if (span)`, so that no value is made for nothing).
  void set(std::string_view key, SpanValue value);
  void fail(std::string_view message);

 private:
  RequestTrace* trace_;
  uint32_t index_ = 0;
};

}  // namespace penstock::telemetry
