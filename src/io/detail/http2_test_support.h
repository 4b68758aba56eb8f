#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/detail/test_support.h"

namespace penstock::io::testing {

using Fields = std::vector<std::pair<std::string, std::string>>;

struct Http2Frame {
  static constexpr uint8_t kEnd = 255;  // the connection has ended
  uint8_t type = kEnd;
  uint8_t flags = 0;
  int32_t id = 0;
  std::string payload;
  Fields fields;  // of HEADERS, decoded

  bool end_stream() const { return (flags & NGHTTP2_FLAG_END_STREAM) != 0; }
  // The 32-bit number at `at` of the payload.
  uint32_t number(size_t at = 0) const;
};

// A frame's bytes.
std::string frame(uint8_t type, uint8_t flags, int32_t id, std::string_view payload);
std::string number32(uint32_t value);

// One end of an HTTP/2 connection on a blocking socket that says exactly which frames go when. SETTINGS and
// PING are answered, nothing else happens by itself: windows are opened by hand.
class Http2Wire {
 public:
  explicit Http2Wire(const SocketAddress& address) : Http2Wire(RawClient(address)) {}
  explicit Http2Wire(RawClient socket);
  ~Http2Wire();
  Http2Wire(const Http2Wire&) = delete;
  Http2Wire& operator=(const Http2Wire&) = delete;

  // As a client: preface and SETTINGS (id, value pairs).
  void begin(std::vector<std::pair<uint16_t, uint32_t>> settings = {});
  // As a server: past the client's preface.
  void skip_preface();
  void settings(std::vector<std::pair<uint16_t, uint32_t>> settings);
  std::string header_block(const Fields& fields);
  // Request fields: the pseudo ones come from `target`, `method`.
  static Fields request(std::string method, std::string target, Fields more = {});
  std::string headers_frame(int32_t id, const Fields& fields, bool end_stream);
  void headers(int32_t id, const Fields& fields, bool end_stream) {
    send(headers_frame(id, fields, end_stream));
  }
  static std::string data_frame(int32_t id, std::string_view bytes, bool end_stream) {
    return frame(NGHTTP2_DATA, end_stream ? NGHTTP2_FLAG_END_STREAM : 0, id, bytes);
  }
  void data(int32_t id, std::string_view bytes, bool end_stream) { send(data_frame(id, bytes, end_stream)); }
  static std::string reset_frame(int32_t id, uint32_t code) {
    return frame(NGHTTP2_RST_STREAM, 0, id, number32(code));
  }
  static std::string window_frame(int32_t id, uint32_t more) {
    return frame(NGHTTP2_WINDOW_UPDATE, 0, id, number32(more));
  }
  // Until the peer has seen everything sent before.
  void ping();
  void send(std::string_view bytes) const { socket_.send(bytes); }

  // The next frame, but for SETTINGS, WINDOW_UPDATE and PING, which are seen to and counted.
  Http2Frame next();
  // The next frame of that type; those before it are forgotten.
  Http2Frame next(uint8_t type);

  struct Answer {
    int status = 0;
    Fields fields;
    std::string body;
    Fields trailers;
    bool whole = false;       // ended with END_STREAM
    uint32_t reset_code = 0;  // when not whole
    std::string get(std::string_view name) const;
  };
  // Everything up to the end of the stream. Frames of others are kept for their own answer().
  Answer answer(int32_t id);

  std::map<int32_t, uint64_t> windows;  // WINDOW_UPDATEs seen, by stream
  uint64_t settings_seen = 0;
  bool answers_pings = true;  // else next() returns them
  std::map<uint16_t, uint32_t> peer_settings;
  RawClient& socket() { return socket_; }

 private:
  bool fill(size_t bytes);
  RawClient socket_;
  std::string inbox_;
  size_t read_ = 0;  // of it
  std::map<int32_t, Answer> partial_;
  std::map<int32_t, bool> done_;
  nghttp2_hd_deflater* deflater_ = nullptr;
  nghttp2_hd_inflater* inflater_ = nullptr;
};

}  // namespace penstock::io::testing
