#include "extproc/wire.h"

#include <array>

namespace penstock::extproc {

namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Fields of one message, one after the other. https://protobuf.dev/programming-guides/encoding/
class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // The next field; false at the end and when the bytes are no field: ok() tells.
  bool next() {
    // Almost all are bytes with a tag and a length of one byte each.
    if (end_ - at_ >= 2) {
      const auto tag = static_cast<unsigned char>(at_[0]);
      const auto length = static_cast<unsigned char>(at_[1]);
      if ((tag & 0x87U) == kBytes && tag >= 8 && length < 0x80 && length <= end_ - at_ - 2) {
        field_ = tag >> 3U;
        type_ = kBytes;
        bytes_ = {at_ + 2, length};
        at_ += 2 + length;
        return true;
      }
    }
    return next_of_any();
  }
  // The next field, if it is these bytes with a tag and a length of one byte each; otherwise nothing happens.
  bool take(uint32_t field, std::string_view& out) {
    if (end_ - at_ < 2 || static_cast<unsigned char>(at_[0]) != (field << 3U | kBytes)) return false;
    const auto length = static_cast<unsigned char>(at_[1]);
    if (length >= 0x80 || length > end_ - at_ - 2) return false;
    out = {at_ + 2, length};
    at_ += 2 + length;
    return true;
  }
  bool at_end() const { return at_ == end_; }
  bool ok() const { return ok_; }
  // The field is this one, as bytes or as a varint.
  bool bytes(uint32_t field) const { return field_ == field && type_ == kBytes; }
  bool number(uint32_t field) const { return field_ == field && type_ == kVarint; }
  uint32_t field() const { return field_; }
  bool is_bytes() const { return type_ == kBytes; }
  std::string_view bytes() const { return bytes_; }
  uint64_t number() const { return number_; }

 private:
  bool next_of_any() {
    if (at_ == end_) return false;
    uint64_t tag = 0;
    if (!varint(tag) || tag >> 3U == 0 || tag >> 32U != 0) return fail();
    field_ = static_cast<uint32_t>(tag >> 3U);
    type_ = static_cast<uint32_t>(tag & 7U);
    switch (type_) {
      case kVarint:
        return varint(number_) || fail();
      case kFixed64:
        return skip(8) || fail();
      case kFixed32:
        return skip(4) || fail();
      case kBytes: {
        uint64_t length = 0;
        if (!varint(length) || length > static_cast<uint64_t>(end_ - at_)) return fail();
        bytes_ = {at_, static_cast<size_t>(length)};
        at_ += length;
        return true;
      }
      default:
        return fail();  // groups, which proto3 doesn't have
    }
  }
  bool fail() {
    ok_ = false;
    at_ = end_;
    return false;
  }
  bool skip(ptrdiff_t bytes) {
    if (end_ - at_ < bytes) return false;
    at_ += bytes;
    return true;
  }
  bool varint(uint64_t& out) {
    out = 0;
    for (uint32_t shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) return false;
      const auto byte = static_cast<unsigned char>(*at_++);
      if (shift < 64) out |= static_cast<uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  const char* at_;
  const char* end_;
  uint32_t field_ = 0;
  uint32_t type_ = 0;
  uint64_t number_ = 0;
  std::string_view bytes_;
  bool ok_ = true;
};

bool decode_protocol_config(std::string_view bytes, ProtocolConfig& out) {
  Reader in(bytes);
  while (in.next()) {
    if (in.number(1)) out.request_body_mode = in.number();
    if (in.number(2)) out.response_body_mode = in.number();
    if (in.number(3)) out.send_body_without_waiting = in.number() != 0;
  }
  return in.ok();
}

bool decode_header_value(std::string_view bytes, HeaderField& out) {
  // As data planes write it: a key and one of the two values.
  Reader usual(bytes);
  if (usual.take(1, out.name) && (usual.take(3, out.value) || usual.take(2, out.value)) && usual.at_end())
    return true;
  out = {};
  Reader in(bytes);
  std::string_view raw;
  while (in.next()) {
    if (in.bytes(1)) out.name = in.bytes();
    if (in.bytes(2)) out.value = in.bytes();
    if (in.bytes(3)) raw = in.bytes();
  }
  if (!raw.empty()) out.value = raw;
  return in.ok();
}

// The value of a key in a map field; of several entries the last one.
std::optional<std::string_view> map_value(std::string_view message, uint32_t field, std::string_view key) {
  std::optional<std::string_view> found;
  Reader in(message);
  while (in.next()) {
    if (!in.bytes(field)) continue;
    Reader entry(in.bytes());
    std::string_view entry_key;
    std::string_view entry_value;
    while (entry.next()) {
      if (entry.bytes(1)) entry_key = entry.bytes();
      if (entry.bytes(2)) entry_value = entry.bytes();
    }
    if (!entry.ok()) return std::nullopt;
    if (entry_key == key) found = entry_value;
  }
  if (!in.ok()) return std::nullopt;
  return found;
}

}  // namespace

std::string_view body_mode_name(BodyMode mode) {
  constexpr std::array<std::string_view, kBodyModes> kNames{"NONE", "STREAMED", "BUFFERED",
                                                            "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"};
  return kNames[static_cast<size_t>(mode)];
}

bool decode(std::string_view message, Incoming& out) {
  out = {};
  Reader in(message);
  while (in.next()) {
    if (in.is_bytes() && in.field() >= 2 && in.field() <= 7) {
      out.part = static_cast<Part>(in.field() - 1);
      out.content = in.bytes();
    } else if (in.bytes(8)) {
      out.metadata = in.bytes();
    } else if (in.number(10)) {
      out.observability_mode = in.number() != 0;
    } else if (in.bytes(11)) {
      if (!decode_protocol_config(in.bytes(), out.protocol_config.emplace())) return false;
    }
  }
  return in.ok();
}

bool decode_headers(std::string_view content, std::vector<HeaderField>& fields, bool& end_of_stream) {
  end_of_stream = false;
  Reader in(content);
  while (in.next()) {
    if (in.number(3)) end_of_stream = in.number() != 0;
    if (!in.bytes(1)) continue;
    Reader map(in.bytes());
    std::string_view entry;
    for (;;) {
      if (!map.take(1, entry)) {
        if (!map.next()) break;
        if (!map.bytes(1)) continue;
        entry = map.bytes();
      }
      if (!decode_header_value(entry, fields.emplace_back())) return false;
    }
    if (!map.ok()) return false;
  }
  return in.ok();
}

bool decode_body(std::string_view content, std::string_view& body, bool& end_of_stream) {
  body = {};
  end_of_stream = false;
  Reader in(content);
  while (in.next()) {
    if (in.bytes(1)) body = in.bytes();
    if (in.number(2)) end_of_stream = in.number() != 0;
  }
  return in.ok();
}

std::optional<std::string_view> find_metadata(std::string_view metadata, std::string_view ns,
                                              std::string_view key) {
  if (metadata.empty()) return std::nullopt;
  const auto fields = map_value(metadata, 1, ns);
  return fields ? map_value(*fields, 1, key) : std::nullopt;
}

bool has_metadata(std::string_view metadata, std::string_view ns) {
  return !metadata.empty() && map_value(metadata, 1, ns).has_value();
}

std::optional<std::string_view> find_attribute(std::string_view message, std::string_view key) {
  const auto fields = map_value(message, 9, "envoy.filters.http.ext_proc");
  return fields ? map_value(*fields, 1, key) : std::nullopt;
}

std::optional<std::string_view> value_text(std::string_view value) {
  std::optional<std::string_view> text;
  Reader in(value);
  while (in.next()) {
    if (in.field() < 1 || in.field() > 6) continue;
    text.reset();
    if (in.bytes(3)) text = in.bytes();
  }
  if (!in.ok()) return std::nullopt;
  return text;
}

bool each_text(std::string_view value, const std::function<void(std::string_view)>& each) {
  std::optional<std::string_view> list;
  Reader in(value);
  while (in.next()) {
    if (in.field() < 1 || in.field() > 6) continue;
    list.reset();
    if (in.bytes(6)) list = in.bytes();
  }
  if (!in.ok() || !list) return false;
  Reader items(*list);
  while (items.next()) {
    if (!items.bytes(1)) continue;
    if (const auto text = value_text(items.bytes())) each(*text);
  }
  return true;
}

}  // namespace penstock::extproc
