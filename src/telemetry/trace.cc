#include "telemetry/trace.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <random>
#include <thread>

#include "base/escapes.h"
#include "base/random.h"
#include "base/strings.h"
#include "telemetry/tracer.h"

namespace penstock::telemetry {

namespace {

constexpr size_t kMaxTracestateBytes = 512;
constexpr size_t kMaxTextBytes = 512;  // of values and errors
constexpr size_t kMaxAttributes = 32;
constexpr size_t kMaxListItems = 16;

// Lower case only, as the recommendation says.
int lower_hex_digit(char c) {
  return ascii_lower(c) == c ? hex_digit(c) : -1;
}

bool read_hex(std::string_view text, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = lower_hex_digit(text[2 * i]);
    const int low = lower_hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

char* write_hex(char* out, std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const uint8_t byte : bytes) {
    *out++ = kDigits[byte >> 4U];
    *out++ = kDigits[byte & 15U];
  }
  return out;
}

bool all_zero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

// Two generators, so that a process's 128-bit ids are not the sequence of one 64-bit state.
struct IdSource {
  IdSource() : high(seed()), low(seed()) {}
  static uint64_t seed() {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32U) ^ device();
  }
  void fill(std::span<uint8_t> out) {
    do {
      for (size_t i = 0; i < out.size(); i += 8) {
        const uint64_t value = (i == 0 ? high : low).next_u64();
        for (size_t b = 0; b < 8; ++b) out[i + b] = static_cast<uint8_t>(value >> (8 * b));
      }
    } while (all_zero(out));
  }
  Random high;
  Random low;
};

IdSource& ids() {
  thread_local IdSource source;
  return source;
}

// Its first kMaxTextBytes, less what they have of a UTF-8 character that goes on behind them.
std::string_view cut(std::string_view text) {
  if (text.size() <= kMaxTextBytes) return text;
  const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U; };
  size_t end = kMaxTextBytes;
  // A character has at most three such bytes; more are no UTF-8, and may be cut anywhere.
  while (end > kMaxTextBytes - 3 && continues(end)) --end;
  return text.substr(0, end);
}
void cut(std::string& text) {
  text.resize(cut(std::string_view(text)).size());
}

// Values are bounded, whatever a client put into them.
void bound(SpanValue& value) {
  if (auto* text = std::get_if<std::string>(&value)) {
    cut(*text);
  } else if (auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    if (texts->size() > kMaxListItems) texts->resize(kMaxListItems);
    for (std::string& item : *texts) cut(item);
  } else if (auto* numbers = std::get_if<std::vector<double>>(&value)) {
    if (numbers->size() > kMaxListItems) numbers->resize(kMaxListItems);
  }
}

void add_attribute(Span& span, std::string_view key, SpanValue value) {
  if (span.attributes.size() >= kMaxAttributes) return;
  bound(value);
  span.attributes.push_back({key, std::move(value)});
}

void set_error(Span& span, std::string_view message) {
  span.failed = true;
  span.error = cut(message);
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view text) {
  if (text.size() < kTraceparentSize) return std::nullopt;
  if (text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  std::array<uint8_t, 1> version{};
  std::array<uint8_t, 1> flags{};
  TraceContext context;
  if (!read_hex(text.substr(0, 2), version) || !read_hex(text.substr(3, 32), context.trace_id) ||
      !read_hex(text.substr(36, 16), context.span_id) || !read_hex(text.substr(53, 2), flags)) {
    return std::nullopt;
  }
  if (version[0] == 0xff || all_zero(context.trace_id) || all_zero(context.span_id)) return std::nullopt;
  // Later versions may append fields.
  if (text.size() > kTraceparentSize && (version[0] == 0 || text[kTraceparentSize] != '-'))
    return std::nullopt;
  context.flags = flags[0];
  return context;
}

void format_traceparent(const TraceContext& context, std::span<char, kTraceparentSize> out) {
  char* at = out.data();
  *at++ = '0';
  *at++ = '0';
  *at++ = '-';
  at = write_hex(at, context.trace_id);
  *at++ = '-';
  at = write_hex(at, context.span_id);
  *at++ = '-';
  write_hex(at, std::span<const uint8_t>(&context.flags, 1));
}

bool usable_tracestate(std::string_view text) {
  return text.size() <= kMaxTracestateBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= 0x20 && c <= 0x7e) || c == '\t'; });
}

void RequestTrace::start(Tracer& tracer, std::string_view traceparent, std::string_view tracestate,
                         std::string_view name, SpanKind kind, std::string_view scope) {
  reset();
  tracer_ = &tracer;
  const std::optional<TraceContext> parent = parse_traceparent(traceparent);
  TraceContext own;
  if (parent) {
    own.trace_id = parent->trace_id;
    if (usable_tracestate(tracestate)) tracestate_ = tracestate;
  } else {
    ids().fill(own.trace_id);
  }
  ids().fill(own.span_id);
  sampled_ = tracer.samples(own.trace_id, parent ? &*parent : nullptr);
  own.flags = sampled_ ? 1 : 0;
  format_traceparent(own, traceparent_);
  if (!sampled_) return;
  batch_ = std::make_unique<SpanBatch>();
  batch_->trace_id = own.trace_id;
  batch_->flags = own.flags;
  batch_->remote_parent = parent.has_value();
  batch_->tracestate = tracestate_;
  begin(name, {}, kind, scope);
  Span& first = batch_->spans.front();
  first.id = own.span_id;
  if (parent) first.parent_id = parent->span_id;
}

uint32_t RequestTrace::begin(std::string_view name, std::string_view suffix, SpanKind kind,
                             std::string_view scope) {
  std::vector<Span>& spans = batch_->spans;
  if (spans.size() >= kMaxSpans) return kNone;
  if (spans.empty()) spans.reserve(16);
  const auto index = static_cast<uint32_t>(spans.size());
  Span& span = spans.emplace_back();
  ids().fill(span.id);
  if (open_ != kNone) span.parent_id = spans[open_].id;
  span.scope = scope;
  span.name.reserve(name.size() + suffix.size());
  span.name.append(name).append(suffix);
  span.kind = kind;
  span.start = tracer_->clock().wall_now();
  parents_.push_back(open_);
  open_ = index;
  return index;
}

void RequestTrace::end(uint32_t index) {
  if (index == kNone || batch_ == nullptr) return;
  assert(index == open_);
  batch_->spans[index].end = tracer_->clock().wall_now();
  open_ = parents_[index];
}

void RequestTrace::set(std::string_view key, SpanValue value) {
  if (sampled_) add_attribute(batch_->spans.front(), key, std::move(value));
}

void RequestTrace::fail(std::string_view message) {
  if (sampled_) set_error(batch_->spans.front(), message);
}

void RequestTrace::finish() {
  if (sampled_) {
    const WallTime now = tracer_->clock().wall_now();
    for (Span& span : batch_->spans)
      if (span.end == WallTime{}) span.end = now;
    tracer_->submit(std::move(*batch_));
  }
  reset();
}

void RequestTrace::reset() {
  if (tracer_ == nullptr) return;
  tracer_ = nullptr;
  sampled_ = false;
  tracestate_.clear();
  batch_.reset();
  parents_.clear();
  open_ = kNone;
}

void SpanScope::set(std::string_view key, SpanValue value) {
  if (trace_ == nullptr || index_ == RequestTrace::kNone) return;
  add_attribute(trace_->batch_->spans[index_], key, std::move(value));
}

void SpanScope::fail(std::string_view message) {
  if (trace_ == nullptr || index_ == RequestTrace::kNone) return;
  set_error(trace_->batch_->spans[index_], message);
}

}  // namespace penstock::telemetry
