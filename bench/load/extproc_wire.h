#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::load {

// The ext-proc messages of bench/load/extproc_generator.cc, written and read by hand so that the yardstick
// owes nothing to the code it measures. Field numbers: envoy/service/ext_proc/v3/external_processor.proto.
namespace wire {

inline void varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

inline void bytes(std::string& out, int field, std::string_view value) {
  varint(out, static_cast<uint64_t>(field) << 3 | 2);
  varint(out, value.size());
  out += value;
}

inline void number(std::string& out, int field, uint64_t value) {
  varint(out, static_cast<uint64_t>(field) << 3);
  varint(out, value);
}

// A gRPC frame: flag 0, four bytes of length, the message.
inline std::string frame(std::string_view message) {
  std::string out(5, '\0');
  for (int i = 0; i < 4; ++i)
    out[static_cast<size_t>(i) + 1] = static_cast<char>(message.size() >> (24 - 8 * i));
  return out.append(message);
}

// One field after the other of a message; stops at its end or at what can't be a field.
class Reader {
 public:
  explicit Reader(std::string_view message) : rest_(message) {}

  bool next() {
    uint64_t tag = 0;
    if (rest_.empty() || !read(tag)) return false;
    field_ = static_cast<int>(tag >> 3);
    value_ = 0;
    bytes_ = {};
    switch (tag & 7) {
      case 0:
        return read(value_);
      case 2: {
        uint64_t size = 0;
        if (!read(size) || size > rest_.size()) return broken();
        bytes_ = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 1:
      case 5: {
        const size_t size = (tag & 7) == 1 ? 8 : 4;
        if (rest_.size() < size) return broken();
        rest_.remove_prefix(size);
        return true;
      }
      default:
        return broken();
    }
  }
  int field() const { return field_; }
  uint64_t value() const { return value_; }
  std::string_view bytes() const { return bytes_; }
  bool ok() const { return ok_; }

 private:
  bool broken() {
    ok_ = false;
    rest_ = {};
    return false;
  }
  bool read(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return broken();
  }

  std::string_view rest_;
  std::string_view bytes_;
  uint64_t value_ = 0;
  int field_ = 0;
  bool ok_ = true;
};

// The bytes at a path of fields, the first of each; empty where there are none.
template <typename... Fields>
std::string_view at(std::string_view message, int field, Fields... deeper) {
  Reader reader(message);
  while (reader.next()) {
    if (reader.field() != field) continue;
    if constexpr (sizeof...(deeper) == 0) {
      return reader.bytes();
    } else {
      return at(reader.bytes(), deeper...);
    }
  }
  return {};
}

}  // namespace wire

// Messages that Envoy sends, framed.
namespace extproc {

inline void header(std::string& map, std::string_view key, std::string_view value) {
  std::string one;
  wire::bytes(one, 1, key);
  wire::bytes(one, 3, value);  // raw_value, as Envoy always does
  wire::bytes(map, 1, one);
}

inline std::string headers_message(int field, std::string_view map, bool end_of_stream,
                                   bool protocol_config) {
  std::string headers;
  wire::bytes(headers, 1, map);
  if (end_of_stream) wire::number(headers, 3, 1);
  std::string message;
  wire::bytes(message, field, headers);
  wire::bytes(message, 8, {});  // metadata_context, empty
  if (protocol_config) {
    std::string config;
    wire::number(config, 1, 4);  // FULL_DUPLEX_STREAMED both ways
    wire::number(config, 2, 4);
    wire::bytes(message, 11, config);
  }
  return wire::frame(message);
}

inline std::string body_message(int field, std::string_view body, bool end_of_stream) {
  std::string content;
  if (!body.empty()) wire::bytes(content, 1, body);
  if (end_of_stream) wire::number(content, 2, 1);
  std::string message;
  wire::bytes(message, field, content);
  wire::bytes(message, 8, {});
  return wire::frame(message);
}

// What a ProcessingResponse says, as far as the generator checks it.
struct Answer {
  enum class Kind : uint8_t {
    kRequestHeaders,
    kResponseHeaders,
    kRequestBody,
    kResponseBody,
    kImmediate,
    kOther,
    kBroken
  };
  Kind kind = Kind::kOther;
  std::string_view destination;  // of a headers answer
  std::string_view body;         // of a body answer, or of an immediate response
  bool end_of_stream = false;
  bool streamed = false;
  uint64_t status = 0;  // of an immediate response
};

inline Answer read_answer(std::string_view message) {
  Answer out;
  wire::Reader reader(message);
  while (reader.next()) {
    const std::string_view content = reader.bytes();
    switch (reader.field()) {
      case 1: {
        out.kind = Answer::Kind::kRequestHeaders;
        wire::Reader options(wire::at(content, 1, 2));
        while (options.next()) {
          if (options.field() != 1) continue;
          const std::string_view header = wire::at(options.bytes(), 1);
          if (wire::at(header, 1) == "x-gateway-destination-endpoint") {
            out.destination = wire::at(header, 3);
            break;
          }
        }
        break;
      }
      case 2:
        out.kind = Answer::Kind::kResponseHeaders;
        break;
      case 3:
      case 4: {
        out.kind = reader.field() == 3 ? Answer::Kind::kRequestBody : Answer::Kind::kResponseBody;
        wire::Reader mutation(wire::at(content, 1, 3));
        while (mutation.next()) {
          if (mutation.field() != 3) continue;
          out.streamed = true;
          wire::Reader piece(mutation.bytes());
          while (piece.next()) {
            if (piece.field() == 1) out.body = piece.bytes();
            if (piece.field() == 2) out.end_of_stream = piece.value() != 0;
          }
        }
        break;
      }
      case 7: {
        out.kind = Answer::Kind::kImmediate;
        out.body = wire::at(content, 3);
        wire::Reader status(wire::at(content, 1));
        while (status.next()) out.status = status.value();
        break;
      }
      default:
        break;
    }
  }
  if (!reader.ok()) out.kind = Answer::Kind::kBroken;
  return out;
}

}  // namespace extproc
}  // namespace penstock::load
