#include "protocol/prompt_estimate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/hash.h"
#include "base/strings.h"

namespace penstock::protocol {
namespace {

static_assert(std::endian::native == std::endian::little, "pseudo-tokens are little-endian words");

std::string_view hex_of(uint64_t hash, Arena& arena) {
  static constexpr char kHex[] = "0123456789abcdef";
  char text[16];
  size_t at = sizeof(text);
  do {
    text[--at] = kHex[hash & 0xFU];
    hash >>= 4U;
  } while (hash != 0);
  return arena.copy({text + at, sizeof(text) - at});
}

constexpr std::array<int8_t, 256> make_base64_values() {
  std::array<int8_t, 256> table{};
  for (auto& value : table) value = -1;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  return table;
}
constexpr std::array<int8_t, 256> kBase64Values = make_base64_values();

// Single bytes of what a base64 text stands for, without decoding the rest. -1: beyond its end or broken.
class Base64Bytes {
 public:
  explicit Base64Bytes(std::string_view text) : text_(text) {}
  int at(size_t index) const {
    const size_t group = index / 3 * 4;
    const size_t first = group + index % 3;
    if (first + 1 >= text_.size()) return -1;
    const int high = kBase64Values[static_cast<unsigned char>(text_[first])];
    const int low = kBase64Values[static_cast<unsigned char>(text_[first + 1])];
    if (high < 0 || low < 0) return -1;
    switch (index % 3) {
      case 0:
        return (high << 2) | (low >> 4);
      case 1:
        return ((high & 0xF) << 4) | (low >> 2);
      default:
        return ((high & 0x3) << 6) | low;
    }
  }
  // Big-endian number of `bytes` bytes, or -1.
  int64_t big(size_t index, size_t bytes) const {
    int64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      const int byte = at(index + i);
      if (byte < 0) return -1;
      value = value * 256 + byte;
    }
    return value;
  }

 private:
  std::string_view text_;
};

struct Size {
  int64_t width = 0;
  int64_t height = 0;
};

// Segments of a JPEG up to the frame header (ITU-T T.81, B.1.1.3). At most 1,000 segments are looked at.
Size jpeg_size(const Base64Bytes& bytes) {
  size_t at = 2;
  for (int segments = 0; segments < 1000; ++segments) {
    if (bytes.at(at) != 0xFF) return {};
    const int marker = bytes.at(at + 1);
    if (marker == 0xFF) {
      ++at;
      continue;
    }
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) {
      at += 2;
      continue;
    }
    const bool frame_header =
        marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (frame_header) return {bytes.big(at + 7, 2), bytes.big(at + 5, 2)};
    const int64_t length = bytes.big(at + 2, 2);
    if (length < 2) return {};
    at += 2 + static_cast<size_t>(length);
  }
  return {};
}

Size picture_size(const Base64Bytes& bytes) {
  switch (bytes.big(0, 3)) {
    case 0x89504E:  // PNG: IHDR is the first chunk
      return {bytes.big(16, 4), bytes.big(20, 4)};
    case 0x474946:  // GIF: little-endian
      return {bytes.at(6) + 256 * bytes.at(7), bytes.at(8) + 256 * bytes.at(9)};
    case 0xFFD8FF:
      return jpeg_size(bytes);
    default:
      return {};
  }
}

uint32_t bounded_tokens(double tokens) {
  if (!(tokens >= 1)) return 1;
  return tokens >= kMaxMediaTokens ? kMaxMediaTokens : static_cast<uint32_t>(tokens);
}

}  // namespace

TokenizedPrompt PromptStream::assemble(std::span<const PromptStream* const> parts, Arena& arena) {
  size_t bytes = 0;
  size_t items = 0;
  uint32_t media_tokens = 0;
  const auto granted = [](uint32_t wanted, uint32_t& used) {
    const uint32_t tokens = used + wanted > kMaxMediaTokensPerRequest ? 1 : wanted;
    used += tokens;
    return tokens;
  };
  for (const PromptStream* part : parts) {
    for (const Piece& piece : part->pieces_.view()) {
      if (piece.data != nullptr) {
        bytes += piece.size;
      } else {
        bytes += 4 + 4 * size_t{granted(part->media_.view()[piece.size].tokens, media_tokens)};
        ++items;
      }
    }
  }
  std::span<uint32_t> tokens = arena.make_span<uint32_t>((bytes + 3) / 4);
  std::span<MultiModalFeature> features = arena.make_span<MultiModalFeature>(items);
  char* const begin = reinterpret_cast<char*>(tokens.data());
  char* out = begin;
  const auto pad = [&] {
    while ((out - begin) % 4 != 0) *out++ = 0;
  };
  media_tokens = 0;
  items = 0;
  for (const PromptStream* part : parts) {
    for (const Piece& piece : part->pieces_.view()) {
      if (piece.data != nullptr) {
        if (piece.size != 0) std::memcpy(out, piece.data, piece.size);
        out += piece.size;
        continue;
      }
      const Media& item = part->media_.view()[piece.size];
      pad();
      const uint32_t count = granted(item.tokens, media_tokens);
      new (&features[items++]) MultiModalFeature{item.modality, hex_of(item.hash, arena),
                                                 static_cast<uint32_t>((out - begin) / 4), count};
      const auto word = static_cast<uint32_t>(item.hash);
      for (uint32_t i = 0; i < count; ++i, out += 4) std::memcpy(out, &word, 4);
    }
  }
  pad();
  return {tokens.first(static_cast<size_t>(out - begin) / 4), features};
}

uint32_t image_tokens_base64(std::string_view base64) {
  const Size size = picture_size(Base64Bytes(base64));
  if (size.width <= 0 || size.height <= 0) return kDefaultImageTokens;
  return bounded_tokens(static_cast<double>(size.width) * static_cast<double>(size.height) / kPixelsPerToken);
}

uint32_t image_tokens(std::string_view url) {
  if (!url.starts_with("data:image/")) return kDefaultImageTokens;
  const std::string_view head = url.substr(0, 128);
  const size_t comma = head.find(',');
  if (comma == std::string_view::npos || !head.substr(0, comma).ends_with(";base64"))
    return kDefaultImageTokens;
  return image_tokens_base64(url.substr(comma + 1));
}

uint32_t video_tokens(std::span<const HeaderField> headers) {
  const auto positive = [&](std::string_view name, double fallback) {
    const auto text = find_header(headers, name);
    const auto value = text ? parse_double(trim(*text)) : std::nullopt;
    return value && *value > 0 ? *value : fallback;
  };
  const double frames = positive("x-llm-d-video-duration-seconds", 10) * positive("x-llm-d-video-fps", 2);
  double frame_tokens = kDefaultImageTokens;
  if (const auto text = find_header(headers, "x-llm-d-video-resolution")) {
    const size_t by = text->find_first_of("xX");
    if (by != std::string_view::npos) {
      const auto width = parse_u64(trim(text->substr(0, by)));
      const auto height = parse_u64(trim(text->substr(by + 1)));
      if (width && height && *width > 0 && *height > 0) {
        frame_tokens =
            bounded_tokens(static_cast<double>(*width) * static_cast<double>(*height) / kPixelsPerToken);
      }
    }
  }
  return bounded_tokens(static_cast<double>(static_cast<uint64_t>(std::min(frames, 1e9))) * frame_tokens);
}

uint32_t audio_tokens(size_t content_bytes) {
  return bounded_tokens(static_cast<double>((content_bytes + 3) / 4));
}

}  // namespace penstock::protocol
