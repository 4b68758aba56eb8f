#include "protocol/response_reader.h"

#include <array>
#include <cstring>
#include <memory>

#include "base/strings.h"
#include "protocol/byte_scan.h"
#include "protocol/grpc_response.h"
#include "protocol/json_cursor.h"
#include "protocol/json_text.h"
#include "protocol/json_watcher.h"
#include "protocol/usage.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kDataPrefix = "data:";
constexpr std::string_view kDone = "[DONE]";
constexpr size_t kKeptBytes = 4096;              // of each buffer, from one answer to the next
constexpr size_t kMaxLineBytesKept = 64 * 1024;  // of a split line, until the first token was seen

// The first byte of the value whose key ends before `at`.
size_t value_at(std::string_view text, size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == ':')) ++at;
  return at;
}

// A member whose value begins with `open` and is not closed at once.
bool has_filled(std::string_view text, std::string_view quoted_key, char open, char close) {
  for (size_t at = find_word(text, quoted_key); at != std::string_view::npos;) {
    const size_t value = value_at(text, at + quoted_key.size());
    if (value + 1 < text.size() && text[value] == open && text[value + 1] != close) return true;
    const size_t next = find_word(text.substr(at + 1), quoted_key);
    at = next == std::string_view::npos ? next : at + 1 + next;
  }
  return false;
}

// {"error":... or {"type":"error"...
bool begins_as_error(std::string_view json) {
  constexpr std::string_view kError = R"({"error")";
  if (json.starts_with(kError)) {
    const size_t value = value_at(json, kError.size());
    return value < json.size() && json[value] != 'n';
  }
  return json.starts_with(R"({"type":"error")");
}

// Whether the JSON of one event holds output of the model. A glance at the text, not a parse: made for the
// first few events of a stream only.
bool carries_output(std::string_view json, ApiKind api) {
  switch (api) {
    case ApiKind::kResponses:
      return find_word(json, ".delta\"") != std::string_view::npos ||
             find_word(json, "\"response.completed\"") != std::string_view::npos;
    case ApiKind::kMessages:
      return find_word(json, "\"content_block_delta\"") != std::string_view::npos ||
             find_word(json, "\"message_delta\"") != std::string_view::npos;
    case ApiKind::kChatCompletions:
    case ApiKind::kCompletions:
    case ApiKind::kVllmGenerate:
      for (const std::string_view key :
           {"\"content\"", "\"text\"", "\"reasoning\"", "\"reasoning_content\"", "\"finish_reason\""}) {
        if (has_filled(json, key, '"', '"')) return true;
      }
      return has_filled(json, "\"tool_calls\"", '[', ']') || has_filled(json, "\"token_ids\"", '[', ']');
    default:
      return true;
  }
}

// True when "usage" (or SGLang's "meta_info") stands in the text with a value that is not null.
bool may_hold_usage(std::string_view json, ApiKind api) {
  if (api == ApiKind::kSglangGenerate) return true;
  constexpr std::string_view kKey = "\"usage\"";
  size_t at = find_word(json, kKey);
  while (at != std::string_view::npos) {
    at += kKey.size();
    const size_t value = value_at(json, at);
    if (value == json.size() || json[value] != 'n') return true;
    const size_t next = find_word(json.substr(at), kKey);
    at = next == std::string_view::npos ? next : at + next;
  }
  return false;
}

bool icontains(std::string_view text, std::string_view part) {
  for (size_t i = 0; i + part.size() <= text.size(); ++i) {
    if (ascii_lower(text[i]) == part[0] && ascii_iequals(text.substr(i, part.size()), part)) return true;
  }
  return false;
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

}  // namespace

// Where it stands in a stream of lines:
//   kStart     within the first bytes of a line, which don't tell yet what it is (`head`)
//   kData      behind "data:"
//   kBare      in a line that is JSON without a field name
//   kIgnored   in a comment, another field, or something unknown
struct ResponseReader::State final : JsonWatcher::Events {
  enum class Mode : uint8_t { kOff, kJson, kEvents, kGrpc };
  enum class Line : uint8_t { kStart, kData, kBare, kIgnored };

  ApiKind api = ApiKind::kNone;
  bool wants_rewrite = false;
  std::string served;         // set when wants_rewrite
  std::string quoted_client;  // the same
  JsonWatcher watcher{*this};
  std::unique_ptr<GrpcResponse> grpc;  // Mode::kGrpc

  Mode mode = Mode::kOff;
  bool event_stream = false;
  bool has_usage = false;
  Usage usage_so_far;
  std::string id_seen;
  uint64_t events = 0;
  bool first_token = false;
  bool error = false;

  // Line state of an event stream.
  Line line = Line::kStart;
  char delimiter = 0;          // '\n' or '\r'; 0: no line has ended yet
  bool cr_pending = false;     // the last piece ended with '\r', delimiter unknown
  std::string head;            // start of the line or of its data, at most 16 bytes
  std::string line_kept;       // data of a split line while the first token is awaited
  bool line_too_long = false;  // to be kept: taken for output
  bool line_was_bare = false;  // the last line was
  bool data_is_split = false;  // the current line began in an earlier piece or is read in parts

  // Output of the current feed() while rewriting.
  std::vector<std::string_view>* out = nullptr;
  const char* sent = nullptr;   // everything before it is in `out` or held
  const char* quote = nullptr;  // opening quote of the model literal, if in this piece
  std::string held;             // the part of an unfinished literal that earlier pieces brought
  std::string released;         // what was held and is in `out` now

  void start(const Options& options) {
    api = options.api;
    wants_rewrite = !options.served_model.empty() && !options.client_model.empty() &&
                    options.served_model != options.client_model;
    if (wants_rewrite) {
      served.assign(options.served_model);
      quoted_client.clear();
      append_json_quoted(quoted_client, options.client_model);
    }
    for (std::string* kept : {&head, &line_kept, &held, &released}) {
      if (kept->capacity() > kKeptBytes) *kept = std::string();
      kept->clear();
    }
    watcher.start(wants_rewrite ? 6 * served.size() : 0, options.max_usage_bytes, options.max_id_bytes);
    id_seen.clear();
    grpc.reset();
    mode = Mode::kOff;
    event_stream = has_usage = first_token = error = false;
    usage_so_far = {};
    events = 0;
    line = Line::kStart;
    delimiter = 0;
    cr_pending = line_too_long = line_was_bare = data_is_split = false;
    out = nullptr;
    sent = quote = nullptr;
  }

  bool rewriting() const { return wants_rewrite && mode != Mode::kOff && mode != Mode::kGrpc; }

  void send(std::string_view text) {
    if (!text.empty()) out->push_back(text);
  }
  void send_until(const char* to) {
    if (to > sent) send({sent, static_cast<size_t>(to - sent)});
    sent = to;
  }
  void release_held() {
    if (held.empty()) return;
    released.swap(held);
    held.clear();
    send(released);
  }

  void model_begins(const char* at) override { quote = at; }
  void model_ends(const char* after, std::string_view content) override {
    const bool matches = content.find('\\') == std::string_view::npos ? content == served : [&] {
      std::string text;
      append_unescaped(text, content);
      return text == served;
    }();
    if (matches) {
      if (quote != nullptr) send_until(quote);
      held.clear();
      send(quoted_client);
      sent = after;
    } else {
      release_held();
    }
    quote = nullptr;
  }
  void model_given_up() override {
    release_held();
    quote = nullptr;
  }
  void usage(std::string_view object, bool is_meta_info) override {
    Usage found;
    if (!read_usage(object, is_meta_info, mode == Mode::kEvents, found)) return;
    merge_usage(usage_so_far, found);
    has_usage = true;
  }
  void error_member() override { error = error || mode == Mode::kEvents; }
  void id(std::string_view content) override {
    id_seen.clear();
    append_unescaped(id_seen, content);
    watcher.seen_id();
  }

  // An unfinished literal at the end of a piece is held back only while it may become the served name.
  void hold_or_release(const char* end) {
    if (watcher.in_model()) {
      const std::string_view content = watcher.model_so_far();
      const bool possible =
          content.find('\\') != std::string_view::npos || std::string_view(served).starts_with(content);
      if (!possible) watcher.give_up_model();
    }
    if (!watcher.in_model()) {
      send_until(end);
      return;
    }
    if (quote != nullptr) send_until(quote);
    held.append(sent, end);
    sent = end;
    quote = nullptr;
  }

  void feed(std::string_view piece) {
    const char* p = piece.data();
    const char* end = p + piece.size();
    if (mode == Mode::kGrpc) {
      grpc->feed(piece);
    } else if (mode == Mode::kJson) {
      first_token = true;
      watcher.feed(p, end);
    } else {
      feed_lines(p, end);
    }
  }

  // The end of the line that begins or goes on at p, or nullptr. Decides which character ends lines.
  const char* find_line_end(const char* p, const char* end) {
    if (delimiter == 0) {
      const char* at = p;
      while (at < end && *at != '\n' && *at != '\r') ++at;
      if (at == end) return nullptr;
      if (*at == '\r' && at + 1 == end) {
        cr_pending = true;
        return nullptr;
      }
      delimiter = *at == '\r' && at[1] != '\n' ? '\r' : '\n';
    }
    return static_cast<const char*>(std::memchr(p, delimiter, static_cast<size_t>(end - p)));
  }

  void feed_lines(const char* p, const char* end) {
    if (cr_pending && p < end) {
      cr_pending = false;
      if (*p != '\n') {
        delimiter = '\r';
        end_split_line();
      }
    }
    while (p < end) {
      const char* stop = find_line_end(p, end);
      if (stop != nullptr && !data_is_split) {
        whole_line(p, stop);
      } else {
        data_is_split = true;
        part_of_line(p, stop == nullptr ? end : stop);
        if (stop != nullptr) end_split_line();
      }
      if (stop == nullptr) return;
      p = stop + 1;
    }
  }

  // A line of JSON without a field name, or one more of a document that such a line began.
  bool is_bare(char first) const { return first == '{' || first == '[' || bare_goes_on(); }
  bool bare_goes_on() const { return line_was_bare && watcher.inside(); }

  void whole_line(const char* p, const char* stop) {
    const std::string_view text(p, static_cast<size_t>(stop - p));
    if (text.empty() || text == "\r") {
      watcher.reset();
      line_was_bare = false;
      return;
    }
    const bool data = text.starts_with(kDataPrefix);
    if (!data && !is_bare(text.front())) return;
    line_was_bare = !data;
    const std::string_view json = without_blanks(data ? text.substr(kDataPrefix.size()) : text);
    if (json != kDone) count_event(json);
    const bool complete = !watcher.inside() && json.starts_with('{') && json.ends_with('}');
    if (rewriting() || !complete || watcher.wants_id() || may_hold_usage(json, api)) {
      watcher.feed(json.data(), json.data() + json.size());
      end_of_json_line(!data);
    }
  }

  // Bare lines have no blank lines between them to count on: what is lost begins anew with the next.
  void end_of_json_line(bool bare) {
    watcher.line_end();
    line_was_bare = bare;
    if (bare && watcher.lost()) watcher.reset();
  }

  void count_event(std::string_view json) {
    ++events;
    if (!first_token) first_token = carries_output(json, api);
    if (begins_as_error(json)) error = true;
  }

  // Lines that come in parts: the watcher follows their data as it comes.
  void part_of_line(const char* p, const char* stop) {
    if (line == Line::kStart) {
      p = read_head(p, stop);
      if (line == Line::kStart) return;
    }
    if (head.size() < 16) head.append(p, std::min<size_t>(16 - head.size(), static_cast<size_t>(stop - p)));
    if (line == Line::kIgnored) return;
    if (!first_token) {
      line_too_long = line_too_long || line_kept.size() + static_cast<size_t>(stop - p) > kMaxLineBytesKept;
      if (!line_too_long) line_kept.append(p, stop);
    }
    watcher.feed(p, stop);
  }

  // Returns where the data begins.
  const char* read_head(const char* p, const char* stop) {
    while (p < stop) {
      if (head.size() < kDataPrefix.size() && *p != kDataPrefix[head.size()]) {
        line = is_bare(head.empty() ? *p : head.front()) ? Line::kBare : Line::kIgnored;
        // What looked like the field name is the bare line's own; it holds no quote.
        if (line == Line::kBare) watcher.feed(head.data(), head.data() + head.size());
        return p;
      }
      head.push_back(*p++);
      if (head.size() == kDataPrefix.size()) {
        line = Line::kData;
        head.clear();
        return p;
      }
    }
    return p;
  }

  void end_split_line() {
    if (line == Line::kStart && !head.empty() && head != "\r" && bare_goes_on()) {
      watcher.feed(head.data(), head.data() + head.size());
      line = Line::kBare;
    }
    if (line == Line::kData || line == Line::kBare) {
      end_of_json_line(line == Line::kBare);
      if (without_blanks(head) != kDone) {
        ++events;
        if (!first_token) first_token = line_too_long || carries_output(line_kept, api);
      }
    } else if (head.empty() || head == "\r") {
      watcher.reset();
      line_was_bare = false;
    }
    line = Line::kStart;
    head.clear();
    line_kept.clear();
    line_too_long = false;
    data_is_split = false;
  }
};

ResponseReader::ResponseReader() : state_(std::make_unique<State>()) {}
ResponseReader::~ResponseReader() = default;

void ResponseReader::start(const Options& options) {
  state_->start(options);
}

void ResponseReader::begin(int, std::string_view content_type, std::string_view content_encoding) {
  state_->event_stream = icontains(content_type, "text/event-stream");
  content_encoding = trim(content_encoding);
  const bool readable = content_encoding.empty() || ascii_iequals(content_encoding, "identity");
  if (!readable) return;
  if (GrpcResponse::reads(state_->api)) {
    constexpr std::string_view kType = "application/grpc";
    if (!ascii_iequals(content_type.substr(0, kType.size()), kType)) return;
    state_->grpc = std::make_unique<GrpcResponse>(state_->api, state_->watcher.max_usage_bytes());
    state_->mode = State::Mode::kGrpc;
  } else if (state_->event_stream) {
    state_->mode = State::Mode::kEvents;
  } else if (icontains(content_type, "json")) {
    state_->mode = State::Mode::kJson;
  }
}

bool ResponseReader::is_event_stream() const {
  return state_->event_stream;
}
bool ResponseReader::rewrites() const {
  return state_->rewriting();
}

void ResponseReader::feed(std::string_view piece, std::vector<std::string_view>& out) {
  if (piece.empty()) return;
  State& state = *state_;
  if (state.mode == State::Mode::kOff) {
    state.first_token = true;
    out.push_back(piece);
    return;
  }
  if (!state.rewriting()) {
    state.feed(piece);
    out.push_back(piece);
    return;
  }
  state.out = &out;
  state.sent = piece.data();
  state.quote = nullptr;
  state.feed(piece);
  state.hold_or_release(piece.data() + piece.size());
}

void ResponseReader::finish(std::vector<std::string_view>& out) {
  State& state = *state_;
  if (state.mode == State::Mode::kOff) return;
  state.out = &out;
  state.sent = nullptr;
  if (state.mode == State::Mode::kEvents && (state.data_is_split || state.cr_pending)) state.end_split_line();
  if (state.grpc != nullptr) state.grpc->finish();
  state.watcher.reset();
  state.release_held();
}

const Usage* ResponseReader::usage() const {
  if (state_->grpc != nullptr) return state_->grpc->usage();
  return state_->has_usage ? &state_->usage_so_far : nullptr;
}
std::string_view ResponseReader::response_id() const {
  return state_->id_seen;
}
uint64_t ResponseReader::events() const {
  if (state_->grpc != nullptr) return state_->grpc->events();
  return state_->events;
}
bool ResponseReader::first_token_seen() const {
  if (state_->grpc != nullptr) return state_->grpc->first_token_seen();
  return state_->first_token;
}
bool ResponseReader::error_seen() const {
  if (state_->grpc != nullptr) return state_->grpc->error_seen();
  return state_->error;
}

}  // namespace penstock::protocol
