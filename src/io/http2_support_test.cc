#include <gtest/gtest.h>

#include <cstring>

#include "io/detail/http2_test_support.h"

namespace penstock::io::testing {

std::string number32(uint32_t value) {
  return {static_cast<char>(value >> 24U), static_cast<char>(value >> 16U), static_cast<char>(value >> 8U),
          static_cast<char>(value)};
}

uint32_t Http2Frame::number(size_t at) const {
  uint32_t value = 0;
  for (size_t i = at; i < at + 4 && i < payload.size(); ++i)
    value = (value << 8U) | static_cast<uint8_t>(payload[i]);
  return value;
}

std::string frame(uint8_t type, uint8_t flags, int32_t id, std::string_view payload) {
  std::string out = number32(static_cast<uint32_t>(payload.size())).substr(1);
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  out += number32(static_cast<uint32_t>(id));
  out += payload;
  return out;
}

Http2Wire::Http2Wire(RawClient socket) : socket_(std::move(socket)) {
  nghttp2_hd_deflate_new(&deflater_, 4096);
  nghttp2_hd_inflate_new(&inflater_);
}

Http2Wire::~Http2Wire() {
  nghttp2_hd_deflate_del(deflater_);
  nghttp2_hd_inflate_del(inflater_);
}

void Http2Wire::begin(std::vector<std::pair<uint16_t, uint32_t>> values) {
  send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  settings(std::move(values));
}

void Http2Wire::skip_preface() {
  constexpr size_t kPreface = 24;
  if (fill(kPreface)) read_ += kPreface;
}

void Http2Wire::settings(std::vector<std::pair<uint16_t, uint32_t>> values) {
  std::string payload;
  for (const auto& [id, value] : values) {
    payload.push_back(static_cast<char>(id >> 8U));
    payload.push_back(static_cast<char>(id));
    payload += number32(value);
  }
  send(frame(NGHTTP2_SETTINGS, 0, 0, payload));
}

Fields Http2Wire::request(std::string method, std::string target, Fields more) {
  Fields fields = {{":method", std::move(method)},
                   {":scheme", "http"},
                   {":authority", "test.example"},
                   {":path", std::move(target)}};
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

void Http2Wire::ping() {
  send(frame(NGHTTP2_PING, 0, 0, "12345678"));
  EXPECT_EQ(next(NGHTTP2_PING).type, NGHTTP2_PING);
}

std::string Http2Wire::header_block(const Fields& fields) {
  std::vector<nghttp2_nv> list;
  for (const auto& [name, value] : fields)
    list.push_back({reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                    reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
                    NGHTTP2_NV_FLAG_NONE});
  std::string block(nghttp2_hd_deflate_bound(deflater_, list.data(), list.size()), '\0');
  const ssize_t size = nghttp2_hd_deflate_hd(deflater_, reinterpret_cast<uint8_t*>(block.data()),
                                             block.size(), list.data(), list.size());
  block.resize(static_cast<size_t>(size));
  return block;
}

std::string Http2Wire::headers_frame(int32_t id, const Fields& fields, bool end_stream) {
  const std::string block = header_block(fields);
  constexpr size_t kFrame = 16384;
  std::string out;
  for (size_t at = 0; at == 0 || at < block.size(); at += kFrame) {
    uint8_t flags = at + kFrame >= block.size() ? NGHTTP2_FLAG_END_HEADERS : 0;
    if (at == 0 && end_stream) flags |= NGHTTP2_FLAG_END_STREAM;
    out += frame(at == 0 ? NGHTTP2_HEADERS : NGHTTP2_CONTINUATION, flags, id, block.substr(at, kFrame));
  }
  return out;
}

bool Http2Wire::fill(size_t bytes) {
  while (inbox_.size() - read_ < bytes) {
    inbox_.erase(0, read_);
    read_ = 0;
    const std::string more = socket_.receive();
    if (more.empty()) return false;
    inbox_ += more;
  }
  return true;
}

Http2Frame Http2Wire::next() {
  for (;;) {
    Http2Frame out;
    if (!fill(9)) return out;
    const auto byte = [&](size_t at) {
      return static_cast<uint32_t>(static_cast<uint8_t>(inbox_[read_ + at]));
    };
    const size_t size = (byte(0) << 16U) | (byte(1) << 8U) | byte(2);
    if (!fill(9 + size)) return out;
    out.type = static_cast<uint8_t>(byte(3));
    out.flags = static_cast<uint8_t>(byte(4));
    out.id = static_cast<int32_t>((byte(5) << 24U) | (byte(6) << 16U) | (byte(7) << 8U) | byte(8));
    out.payload = inbox_.substr(read_ + 9, size);
    read_ += 9 + size;
    const bool ack = (out.flags & NGHTTP2_FLAG_ACK) != 0;
    switch (out.type) {
      case NGHTTP2_SETTINGS:
        if (ack) continue;
        ++settings_seen;
        for (size_t at = 0; at + 6 <= size; at += 6)
          peer_settings[static_cast<uint16_t>((static_cast<uint8_t>(out.payload[at]) << 8U) |
                                              static_cast<uint8_t>(out.payload[at + 1]))] =
              out.number(at + 2);
        send(frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, ""));
        continue;
      case NGHTTP2_PING:
        if (ack || !answers_pings) return out;
        send(frame(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, out.payload));
        continue;
      case NGHTTP2_WINDOW_UPDATE:
        windows[out.id] += out.number();
        continue;
      case NGHTTP2_HEADERS: {
        std::string_view block = out.payload;
        for (;;) {
          nghttp2_nv field{};
          int flags = 0;
          const ssize_t used = nghttp2_hd_inflate_hd2(
              inflater_, &field, &flags, reinterpret_cast<const uint8_t*>(block.data()), block.size(), 1);
          if (used < 0) {
            ADD_FAILURE() << "bad header block";
            return out;
          }
          block.remove_prefix(static_cast<size_t>(used));
          if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0)
            out.fields.emplace_back(std::string(reinterpret_cast<char*>(field.name), field.namelen),
                                    std::string(reinterpret_cast<char*>(field.value), field.valuelen));
          if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) break;
        }
        nghttp2_hd_inflate_end_headers(inflater_);
        return out;
      }
      default:
        return out;
    }
  }
}

Http2Frame Http2Wire::next(uint8_t type) {
  for (;;) {
    Http2Frame out = next();
    if (out.type == type || out.type == Http2Frame::kEnd) return out;
  }
}

std::string Http2Wire::Answer::get(std::string_view name) const {
  for (const auto& [field, value] : fields)
    if (field == name) return value;
  return {};
}

Http2Wire::Answer Http2Wire::answer(int32_t id) {
  while (!done_[id]) {
    const Http2Frame got = next();
    if (got.type == Http2Frame::kEnd) {
      ADD_FAILURE() << "the connection ended before the answer on stream " << id;
      break;
    }
    if (got.id == 0) continue;
    Answer& answer = partial_[got.id];
    switch (got.type) {
      case NGHTTP2_HEADERS:
        if (answer.status >= 200) {
          answer.trailers = got.fields;
        } else {
          answer.fields = got.fields;
          answer.status = std::atoi(answer.get(":status").c_str());
        }
        break;
      case NGHTTP2_DATA:
        answer.body += got.payload;
        break;
      case NGHTTP2_RST_STREAM:
        if (!answer.whole) answer.reset_code = got.number();
        done_[got.id] = true;
        break;
      default:
        break;
    }
    if (got.type != NGHTTP2_RST_STREAM && got.end_stream()) {
      answer.whole = true;
      done_[got.id] = true;
    }
  }
  return partial_[id];
}

}  // namespace penstock::io::testing
