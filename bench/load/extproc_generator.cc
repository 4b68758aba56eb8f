// Speaks to an endpoint picker as Envoy does, and checks every answer. On nghttp2 alone: it shares no code
// with the server it measures.
//
//   extproc_generator -p PORT -b BODIES   bodies: one request body a line
//     -c N   connections, 1                 -m N   streams at a time on each, 32
//     -r N   requests/s at fixed times; 0: closed loop. Latency counts from the moment a request was due
//     -k N   response body messages, 1      -z N   bytes of each, 512 (SSE when -k > 1)
//     -g US  gap between them, 0            -s N   size of request body messages, 65536
//     -d S   seconds measured, 2            -w S   seconds before, 0.5
//     -n N   ends after so many exchanges, in closed loop
//     -H     hold: opens all streams, brings each into its response phase, prints "held N", waits for a line
//            on standard input, ends them, reports
//
// One stream a request: RequestHeaders, RequestBody…; after the last request-body answer ResponseHeaders
// and ResponseBody…; after the last answer RST_STREAM(INTERNAL_ERROR), Envoy's usual end. A server that ends
// the stream with status 0 after the request phase leaves the response phase out: "left_early".
// Prints one line of JSON. "decision" is from the request's due time to the last request-body answer.
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/load/common.h"
#include "bench/load/extproc_wire.h"

namespace penstock::load {
namespace {

using Kind = extproc::Answer::Kind;

struct Options {
  int port = 0;
  std::string bodies;
  int connections = 1;
  int streams = 32;
  double rate = 0;
  int chunks = 1;
  size_t chunk_bytes = 512;
  uint64_t gap_ns = 0;
  size_t piece = 65536;
  double seconds = 2;
  double warm_up = 0.5;
  uint64_t exchanges = 0;  // 0: until the time is over
  bool hold = false;
};

constexpr size_t kIdSize = 36;

// The request phase of one prompt, encoded once.
struct Prompt {
  std::string body;
  std::string head;    // framed RequestHeaders; the request id is written into a copy
  size_t id_at = 0;    // its place
  std::string pieces;  // framed RequestBody messages, one after the other
  std::vector<std::string_view> messages;
};

struct Connection;

struct Stream {
  Connection* connection = nullptr;
  int32_t id = 0;
  const Prompt* prompt = nullptr;
  std::string head;
  uint64_t due_ns = 0, decided_ns = 0;
  bool measured = false, finished = false, failed = false, held = false;
  // Sending: message `next` from `offset` on; messages before `released` may go.
  size_t next = 0, released = 0, offset = 0;
  // Receiving: what of a gRPC frame has come.
  std::string partial;
  bool headers_answered = false, response_headers_answered = false, request_done = false;
  bool status_ok = false;
  size_t echoed = 0, response_echoed = 0;
};

struct Connection {
  int fd = -1;
  nghttp2_session* session = nullptr;
  std::string out;
  size_t sent = 0;
  bool watches_write = false, broken = false;
  int open = 0;
  std::vector<Stream*> responses;  // their request phase ended in this batch of input
};

struct Totals {
  uint64_t requests = 0, left_early = 0, failed = 0, immediate = 0, goaways = 0, reconnects = 0;
  std::vector<float> decision_us, exchange_us;
  std::vector<std::vector<float>> decision_us_in;  // by kWindowNs of the time each was due
};

class Generator {
 public:
  explicit Generator(const Options& options) : options_(options) {
    std::ifstream file(options.bodies);
    for (std::string body; std::getline(file, body);) prompts_.push_back(encode(std::move(body)));
    encode_response();
    make_callbacks();
  }

  int run() {
    if (prompts_.empty()) {
      std::fprintf(stderr, "no bodies in '%s'\n", options_.bodies.c_str());
      return 2;
    }
    connections_.resize(static_cast<size_t>(options_.connections));
    for (Connection& c : connections_) open(c);
    start_ns_ = now_ns();
    if (options_.hold) return hold();
    measure_ns_ = start_ns_ + static_cast<uint64_t>(options_.warm_up * 1e9);
    end_ns_ = measure_ns_ + static_cast<uint64_t>(options_.seconds * 1e9);
    turn_until([&] {
      return now_ >= end_ns_ || (options_.exchanges > 0 && totals_.requests >= options_.exchanges);
    });
    report(static_cast<double>(now_ - measure_ns_) / 1e9);
    return totals_.failed + totals_.goaways + totals_.reconnects == 0 ? 0 : 1;
  }

 private:
  Prompt* encode(std::string body) {
    auto prompt = std::make_unique<Prompt>();
    prompt->body = std::move(body);
    std::string map;
    extproc::header(map, ":authority", "127.0.0.1:8080");
    extproc::header(map, ":path", "/v1/chat/completions");
    extproc::header(map, ":method", "POST");
    extproc::header(map, ":scheme", "http");
    extproc::header(map, "user-agent", "OpenAI/Python 3.57.0");
    extproc::header(map, "accept", "application/json");
    extproc::header(map, "content-type", "application/json");
    extproc::header(map, "authorization", "Bearer sk-1234");
    extproc::header(map, "content-length", std::to_string(prompt->body.size()));
    extproc::header(map, "x-forwarded-proto", "http");
    const std::string place(kIdSize, '#');
    extproc::header(map, "x-request-id", place);
    prompt->head = extproc::headers_message(2, map, false, true);
    prompt->id_at = prompt->head.find(place);
    std::vector<size_t> sizes;
    for (size_t at = 0; at < prompt->body.size(); at += options_.piece) {
      const std::string_view piece = std::string_view(prompt->body).substr(at, options_.piece);
      const std::string message = extproc::body_message(4, piece, at + piece.size() == prompt->body.size());
      sizes.push_back(message.size());
      prompt->pieces += message;
    }
    size_t at = 0;
    for (const size_t size : sizes) {
      prompt->messages.push_back(std::string_view(prompt->pieces).substr(at, size));
      at += size;
    }
    owned_.push_back(std::move(prompt));
    return owned_.back().get();
  }

  void encode_response() {
    const bool sse = options_.chunks > 1;
    std::string map;
    extproc::header(map, ":status", "200");
    extproc::header(map, "date", "Mon, 30 Nov 2026 04:00:00 GMT");
    extproc::header(map, "server", "uvicorn");
    extproc::header(map, "content-type", sse ? "text/event-stream; charset=utf-8" : "application/json");
    extproc::header(map, "transfer-encoding", "chunked");
    response_.push_back(extproc::headers_message(3, map, false, false));
    const std::string usage = R"("usage":{"prompt_tokens":256,"total_tokens":320,"completion_tokens":64})";
    for (int i = 0; i < options_.chunks; ++i) {
      const bool last = i + 1 == options_.chunks;
      const std::string start =
          sse ? R"(data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"mock-model","choices":[{"index":0,"delta":{"content":")"
              : R"({"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1790000000,"model":"mock-model","choices":[{"index":0,"message":{"role":"assistant","content":")";
      const std::string end = !sse   ? R"("},"logprobs":null,"finish_reason":"stop"}],)" + usage + "}"
                              : last ? R"("},"finish_reason":"stop"}],)" + usage + "}\n\ndata: [DONE]\n\n"
                                     : "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
      const size_t room = options_.chunk_bytes;
      std::string piece = start;
      if (room > start.size() + end.size()) piece.append(room - start.size() - end.size(), 'w');
      piece += end;
      response_body_ += piece;
      response_.push_back(extproc::body_message(5, piece, !sse));
    }
    if (sse) response_.push_back(extproc::body_message(5, {}, true));
  }

  std::string_view message(const Stream& s, size_t i) const {
    if (i == 0) return s.head;
    const size_t pieces = s.prompt->messages.size();
    return i <= pieces ? s.prompt->messages[i - 1] : std::string_view(response_[i - 1 - pieces]);
  }

  // ---- nghttp2
  static Generator& self(void* connection_user) { return *static_cast<Generator*>(connection_user); }

  static Stream* stream_of(nghttp2_session* session, int32_t id) {
    return static_cast<Stream*>(nghttp2_session_get_stream_user_data(session, id));
  }

  void make_callbacks() {
    nghttp2_session_callbacks_new(&callbacks_);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks_,
        [](nghttp2_session* session, uint8_t, int32_t id, const uint8_t* data, size_t size, void* user) {
          if (Stream* s = stream_of(session, id))
            self(user).on_data(*s, {reinterpret_cast<const char*>(data), size});
          return 0;
        });
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks_, [](nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name,
                       size_t name_size, const uint8_t* value, size_t value_size, uint8_t, void*) {
          Stream* s = stream_of(session, frame->hd.stream_id);
          if (s != nullptr &&
              std::string_view(reinterpret_cast<const char*>(name), name_size) == "grpc-status")
            s->status_ok = std::string_view(reinterpret_cast<const char*>(value), value_size) == "0";
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks_, [](nghttp2_session* session, const nghttp2_frame* frame, void* user) {
          if (frame->hd.type == NGHTTP2_GOAWAY) ++self(user).totals_.goaways;
          if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
          if (frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS) return 0;
          if (Stream* s = stream_of(session, frame->hd.stream_id)) self(user).on_end(*s);
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks_, [](nghttp2_session* session, int32_t id, uint32_t, void* user) {
          if (Stream* s = stream_of(session, id)) self(user).on_close(*s);
          return 0;
        });
    nghttp2_session_callbacks_set_send_data_callback(
        callbacks_, [](nghttp2_session*, nghttp2_frame*, const uint8_t* head, size_t size,
                       nghttp2_data_source* source, void* user) {
          auto& s = *static_cast<Stream*>(source->ptr);
          if (s.connection->out.size() >= kEnough) return static_cast<int>(NGHTTP2_ERR_WOULDBLOCK);
          s.connection->out.append(reinterpret_cast<const char*>(head), 9);
          self(user).take(s, size);
          return 0;
        });
    nghttp2_option_new(&option_);
    nghttp2_option_set_no_http_messaging(option_, 1);  // a gRPC server that answers is all that matters
  }

  static ssize_t on_read(nghttp2_session*, int32_t, uint8_t*, size_t room, uint32_t* flags,
                         nghttp2_data_source* source, void* user) {
    const auto& s = *static_cast<Stream*>(source->ptr);
    if (s.next >= s.released) return NGHTTP2_ERR_DEFERRED;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    return static_cast<ssize_t>(std::min(room, self(user).message(s, s.next).size() - s.offset));
  }

  void take(Stream& s, size_t size) {
    const std::string_view whole = message(s, s.next);
    s.connection->out.append(whole.substr(s.offset, size));
    s.offset += size;
    if (s.offset < whole.size()) return;
    s.offset = 0;
    ++s.next;
  }

  // ---- connections
  void open(Connection& c) {
    c.fd = connect_to(options_.port);
    nghttp2_session_client_new2(&c.session, callbacks_, this, option_);
    // As Envoy with the windows its examples configure.
    const std::array<nghttp2_settings_entry, 3> settings{{{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                                          {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1024},
                                                          {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 65536}}};
    nghttp2_submit_settings(c.session, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
    nghttp2_session_set_local_window_size(c.session, NGHTTP2_FLAG_NONE, 0, 1048576);
    c.out.clear();
    c.sent = 0;
    c.watches_write = c.broken = false;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &c;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &event);
  }

  void reopen(Connection& c) {
    ++totals_.reconnects;
    if (totals_.reconnects > 100) {
      std::fprintf(stderr, "the server closes connections\n");
      std::exit(1);
    }
    nghttp2_session_del(c.session);  // does not report its streams
    close(c.fd);
    for (auto& s : streams_) {
      if (s->connection != &c) continue;
      ++totals_.failed;
      s->connection = nullptr;
      free_.push_back(s.get());
    }
    c.open = 0;
    c.responses.clear();
    open(c);
  }

  // Takes what the session wants to send; streams whose RST_STREAM goes out close here.
  void drain(Connection& c) {
    const uint8_t* data = nullptr;  // control frames; DATA goes through take()
    ssize_t n = 0;
    while (c.out.size() < kEnough && (n = nghttp2_session_mem_send(c.session, &data)) > 0)
      c.out.append(reinterpret_cast<const char*>(data), static_cast<size_t>(n));
    if (n < 0) c.broken = true;
  }

  void push(Connection& c) {
    drain(c);
    if (options_.rate == 0 && !options_.hold && fill(c)) drain(c);
    while (c.sent < c.out.size()) {
      const ssize_t n = send(c.fd, c.out.data() + c.sent, c.out.size() - c.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) break;
      c.sent += static_cast<size_t>(n);
      if (c.sent < c.out.size()) continue;
      c.out.clear();
      c.sent = 0;
      drain(c);
    }
    const bool write = c.sent < c.out.size();
    if (write == c.watches_write) return;
    epoll_event event{};
    event.events = write ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = &c;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event);
    c.watches_write = write;
  }

  void on_input(Connection& c) {
    const ssize_t n = recv(c.fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0 || nghttp2_session_mem_recv(c.session, buffer_.data(), static_cast<size_t>(n)) < 0) {
      c.broken = true;
      return;
    }
    // Only now: what ends the stream may have come right behind the answer.
    for (Stream* s : c.responses) {
      if (s->finished || s->failed) continue;
      release(*s, 1);
      if (options_.chunks > 1 && options_.gap_ns > 0) {
        paced_.push_back({now_ + options_.gap_ns, s, s->id});
      } else if (!options_.hold) {
        release(*s, response_.size() - 1);
      }
    }
    c.responses.clear();
  }

  void release(Stream& s, size_t count) {
    const size_t all = 1 + s.prompt->messages.size() + response_.size();
    s.released = std::min(all, s.released + count);
    nghttp2_session_resume_data(s.connection->session, s.id);
  }

  // ---- streams
  void begin(Connection& c, uint64_t due_ns) {
    if (free_.empty()) {
      streams_.push_back(std::make_unique<Stream>());
      free_.push_back(streams_.back().get());
    }
    Stream* s = free_.back();
    free_.pop_back();
    std::string head = std::move(s->head), partial = std::move(s->partial);
    *s = Stream();
    s->head = std::move(head);
    s->partial = std::move(partial);
    s->partial.clear();
    s->connection = &c;
    s->prompt = prompts_[next_prompt_++ % prompts_.size()];
    s->head = s->prompt->head;
    write_id(s->head.data() + s->prompt->id_at);
    s->due_ns = due_ns;
    s->measured = due_ns >= measure_ns_;
    s->released = 1 + s->prompt->messages.size();
    nghttp2_data_provider provider{{.ptr = s}, on_read};
    s->id = nghttp2_submit_request(c.session, nullptr, request_.data(), request_.size(), &provider, s);
    if (s->id < 0) {
      std::fprintf(stderr, "submit: %s\n", nghttp2_strerror(s->id));
      std::exit(1);
    }
    ++c.open;
  }

  // A UUID's shape; distinct.
  void write_id(char* out) {
    static constexpr char kHex[] = "0123456789abcdef";
    uint64_t value = ++next_id_ * 0x9e3779b97f4a7c15ULL;
    for (size_t i = 0; i < kIdSize; ++i) {
      const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
      out[i] = dash ? '-' : kHex[value & 15];
      value = dash ? value : value >> 4 | value << 60;
    }
  }

  void on_data(Stream& s, std::string_view data) {
    if (s.finished || s.failed) return;
    while (!data.empty()) {
      if (s.partial.empty() && data.size() >= 5 && data.size() >= 5 + frame_size(data)) {
        const size_t size = frame_size(data);
        on_message(s, data.substr(5, size));
        data.remove_prefix(5 + size);
      } else {
        size_t want = s.partial.size() < 5 ? 5 : 5 + frame_size(s.partial);
        const size_t take = std::min(want - s.partial.size(), data.size());
        s.partial.append(data.substr(0, take));
        data.remove_prefix(take);
        if (s.partial.size() < 5) continue;
        want = 5 + frame_size(s.partial);
        if (s.partial.size() < want) continue;
        on_message(s, std::string_view(s.partial).substr(5));
        s.partial.clear();
      }
      if (s.finished || s.failed) return;
    }
  }

  static size_t frame_size(std::string_view frame) {
    size_t size = 0;
    for (size_t i = 1; i < 5; ++i) size = size << 8 | static_cast<unsigned char>(frame[i]);
    return size;
  }

  void on_message(Stream& s, std::string_view text) {
    const extproc::Answer answer = extproc::read_answer(text);
    switch (answer.kind) {
      case Kind::kRequestHeaders:
        if (s.headers_answered) return fail(s, "request headers answered twice");
        if (answer.destination.empty()) return fail(s, "no destination header");
        s.headers_answered = true;
        return;
      case Kind::kRequestBody:
        if (!s.headers_answered) return fail(s, "body answered before headers");
        if (!echoes(s, answer, s.prompt->body, s.echoed, s.request_done)) return;
        if (!s.request_done) return;
        s.decided_ns = now_ns();
        s.connection->responses.push_back(&s);
        return;
      case Kind::kResponseHeaders:
        if (s.response_headers_answered) return fail(s, "response headers answered twice");
        s.response_headers_answered = true;
        if (options_.hold) {
          s.held = true;
          ++held_;
        }
        return;
      case Kind::kResponseBody: {
        if (!s.response_headers_answered) return fail(s, "response body answered before its headers");
        bool done = false;
        if (echoes(s, answer, response_body_, s.response_echoed, done) && done) finish(s, false);
        return;
      }
      case Kind::kImmediate:
        ++totals_.immediate;
        return fail(s,
                    "immediate response " + std::to_string(answer.status) + ": " + std::string(answer.body));
      case Kind::kOther:
      case Kind::kBroken:
        return fail(s, "an answer of no known kind");
    }
  }

  bool echoes(Stream& s, const extproc::Answer& answer, const std::string& body, size_t& at, bool& done) {
    if (!answer.streamed) {
      fail(s, "a body answer that is no streamed_response");
    } else if (answer.body.size() > body.size() - at ||
               std::string_view(body).substr(at, answer.body.size()) != answer.body) {
      fail(s, "the body came back changed");
    } else {
      at += answer.body.size();
      done = answer.end_of_stream;
      if (!done || at == body.size()) return true;
      fail(s, "the body came back cut");
    }
    return false;
  }

  void on_end(Stream& s) {
    if (s.finished || s.failed) return;
    if (s.status_ok && s.request_done && !s.response_headers_answered) return finish(s, true);
    fail(s, "the server ended the stream");
  }

  void finish(Stream& s, bool left_early) {
    s.finished = true;
    nghttp2_submit_rst_stream(s.connection->session, NGHTTP2_FLAG_NONE, s.id, NGHTTP2_INTERNAL_ERROR);
    const uint64_t now = now_ns();
    if (!s.measured || (!options_.hold && now > end_ns_)) return;
    ++totals_.requests;
    if (left_early) ++totals_.left_early;
    const float decision_us = static_cast<float>(s.decided_ns - s.due_ns) / 1e3F;
    totals_.decision_us.push_back(decision_us);
    const size_t window = (s.due_ns - start_ns_) / kWindowNs;
    if (totals_.decision_us_in.size() <= window) totals_.decision_us_in.resize(window + 1);
    totals_.decision_us_in[window].push_back(decision_us);
    totals_.exchange_us.push_back(static_cast<float>(now - s.due_ns) / 1e3F);
  }

  void fail(Stream& s, const std::string& why) {
    if (totals_.failed++ < 5) std::fprintf(stderr, "stream %d: %s\n", s.id, why.c_str());
    s.failed = true;
    nghttp2_submit_rst_stream(s.connection->session, NGHTTP2_FLAG_NONE, s.id, NGHTTP2_CANCEL);
  }

  void on_close(Stream& s) {
    if (!s.finished && !s.failed && totals_.failed++ < 5)
      std::fprintf(stderr, "stream %d: reset by the server\n", s.id);
    Connection& c = *s.connection;
    std::erase(c.responses, &s);
    --c.open;
    s.id = -1;
    s.connection = nullptr;
    free_.push_back(&s);
  }

  // ---- the run
  uint64_t due(uint64_t i) const {
    return start_ns_ + static_cast<uint64_t>(static_cast<double>(i) / options_.rate * 1e9);
  }

  // Closed loop: every connection has its streams.
  bool fill(Connection& c) {
    if (c.open >= options_.streams) return false;
    const uint64_t now = now_ns();
    while (c.open < options_.streams) begin(c, now);
    return true;
  }

  // Open loop: what is due, on the connections in turn. A connection that has all its streams in use is
  // passed over; the request still counts from its due time.
  void issue() {
    while (due(issued_) <= now_) {
      size_t tried = 0;
      while (tried < connections_.size() &&
             connections_[turn_ % connections_.size()].open >= options_.streams) {
        ++turn_;
        ++tried;
      }
      if (tried == connections_.size()) return;
      begin(connections_[turn_++ % connections_.size()], due(issued_++));
    }
  }

  void release_paced() {
    while (!paced_.empty() && paced_.front().at_ns <= now_) {
      const Paced one = paced_.front();
      paced_.pop_front();
      if (one.stream->connection == nullptr || one.stream->id != one.id || one.stream->failed) continue;
      const size_t all = 1 + one.stream->prompt->messages.size() + response_.size();
      // The last piece and the empty end go together.
      release(*one.stream, one.stream->released + 2 == all ? 2 : 1);
      if (one.stream->released < all) paced_.push_back({one.at_ns + options_.gap_ns, one.stream, one.id});
    }
  }

  template <typename Done>
  void turn_until(Done done) {
    std::array<epoll_event, 64> ready{};
    now_ = now_ns();
    while (!done()) {
      if (options_.rate > 0) issue();
      release_paced();
      for (Connection& c : connections_) {
        push(c);
        if (c.broken) reopen(c);
      }
      uint64_t wake = now_ + 100000000;
      if (end_ns_ > 0) wake = std::min(wake, end_ns_);
      if (options_.rate > 0) wake = std::min(wake, due(issued_));
      if (!paced_.empty()) wake = std::min(wake, paced_.front().at_ns);
      now_ = now_ns();
      const uint64_t wait_ns = wake > now_ ? wake - now_ : 0;
      const timespec wait{static_cast<time_t>(wait_ns / 1000000000), static_cast<long>(wait_ns % 1000000000)};
      const int n = epoll_pwait2(epoll_, ready.data(), static_cast<int>(ready.size()), &wait, nullptr);
      now_ = now_ns();
      for (int i = 0; i < n; ++i) {
        Connection& c = *static_cast<Connection*>(ready[static_cast<size_t>(i)].data.ptr);
        if ((ready[static_cast<size_t>(i)].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) on_input(c);
      }
    }
  }

  int hold() {
    end_ns_ = 0;
    const size_t all = connections_.size() * static_cast<size_t>(options_.streams);
    for (Connection& c : connections_) fill(c);
    turn_until([&] { return held_ + totals_.failed >= all; });
    std::printf("held %zu\n", held_);
    std::fflush(stdout);
    turn_until([] {
      pollfd input{0, POLLIN, 0};
      return poll(&input, 1, 0) != 0;
    });
    for (auto& s : streams_)
      if (s->held) release(*s, response_.size());
    turn_until([&] { return totals_.requests + totals_.failed >= all; });
    for (Connection& c : connections_) push(c);
    report(static_cast<double>(now_ - start_ns_) / 1e9);
    return totals_.failed == 0 ? 0 : 1;
  }

  // Where another process takes the core away for some milliseconds, every request then under way is late:
  // that is one window's p99, not the run's.
  double median_window_p99() {
    std::vector<double> each;
    for (auto& window : totals_.decision_us_in)
      if (!window.empty()) each.push_back(percentile(window, 0.99));
    return percentile(each, 0.5);
  }

  void report(double elapsed) {
    std::printf(
        "{\"requests\":%lu,\"rps\":%.1f,\"failed\":%lu,\"immediate\":%lu,\"left_early\":%lu,\"goaways\":%lu,"
        "\"reconnects\":%lu,\"decision_p50_us\":%.1f,\"decision_p90_us\":%.1f,\"decision_p99_us\":%.1f,"
        "\"decision_p99_window_us\":%.1f,"
        "\"decision_max_us\":%.1f,\"exchange_p50_us\":%.1f,\"exchange_p99_us\":%.1f,\"elapsed_s\":%.3f}\n",
        totals_.requests, static_cast<double>(totals_.requests) / elapsed, totals_.failed, totals_.immediate,
        totals_.left_early, totals_.goaways, totals_.reconnects, percentile(totals_.decision_us, 0.5),
        percentile(totals_.decision_us, 0.9), percentile(totals_.decision_us, 0.99), median_window_p99(),
        percentile(totals_.decision_us, 1), percentile(totals_.exchange_us, 0.5),
        percentile(totals_.exchange_us, 0.99), elapsed);
  }

  static constexpr uint64_t kWindowNs = 100'000'000;
  static constexpr size_t kEnough = 256 * 1024;  // bytes encoded ahead of the socket

  struct Paced {
    uint64_t at_ns;
    Stream* stream;
    int32_t id;
  };

  static nghttp2_nv field(std::string_view name, std::string_view value) {
    return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
            reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
            NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
  }

  Options options_;
  std::vector<std::unique_ptr<Prompt>> owned_;
  std::vector<Prompt*> prompts_;
  std::vector<std::string> response_;
  std::string response_body_;
  const std::array<nghttp2_nv, 8> request_{
      field(":method", "POST"),
      field(":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
      field(":authority", "epp"),
      field(":scheme", "http"),
      field("te", "trailers"),
      field("content-type", "application/grpc"),
      field("x-envoy-internal", "true"),
      field("x-forwarded-for", "127.0.0.1")};
  nghttp2_session_callbacks* callbacks_ = nullptr;
  nghttp2_option* option_ = nullptr;
  std::deque<Connection> connections_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Stream*> free_;
  std::deque<Paced> paced_;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(1 << 18);
  int epoll_ = epoll_create1(0);
  uint64_t now_ = 0, start_ns_ = 0, measure_ns_ = 0, end_ns_ = 0, issued_ = 0, turn_ = 0;
  uint64_t next_prompt_ = 0, next_id_ = 0;
  size_t held_ = 0;
  Totals totals_;
};

}  // namespace
}  // namespace penstock::load

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  // What is due is sent then: by default the kernel lets a sleeper be 50 µs late.
  prctl(PR_SET_TIMERSLACK, 1UL);
  penstock::load::Options options;
  int flag = 0;
  while ((flag = getopt(argc, argv, "p:b:c:m:r:k:z:g:s:d:w:n:H")) != -1) {
    switch (flag) {
      case 'p':
        options.port = std::atoi(optarg);
        break;
      case 'b':
        options.bodies = optarg;
        break;
      case 'c':
        options.connections = std::atoi(optarg);
        break;
      case 'm':
        options.streams = std::atoi(optarg);
        break;
      case 'r':
        options.rate = std::atof(optarg);
        break;
      case 'k':
        options.chunks = std::max(1, std::atoi(optarg));
        break;
      case 'z':
        options.chunk_bytes = static_cast<size_t>(std::atol(optarg));
        break;
      case 'g':
        options.gap_ns = static_cast<uint64_t>(std::atol(optarg)) * 1000;
        break;
      case 's':
        options.piece = static_cast<size_t>(std::max(1L, std::atol(optarg)));
        break;
      case 'd':
        options.seconds = std::atof(optarg);
        break;
      case 'w':
        options.warm_up = std::atof(optarg);
        break;
      case 'n':
        options.exchanges = std::strtoull(optarg, nullptr, 10);
        break;
      case 'H':
        options.hold = true;
        break;
      default:
        return 2;
    }
  }
  if (options.port == 0 || options.bodies.empty() || options.connections < 1 || options.streams < 1) {
    std::fprintf(
        stderr,
        "usage: extproc_generator -p PORT -b BODIES [-c N] [-m N] [-r N] [-k N] [-z N] [-g US] [-s N] "
        "[-d S] [-w S] [-n N] [-H]\n");
    return 2;
  }
  return penstock::load::Generator(options).run();
}
