#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/arena.h"
#include "inference/request.h"
#include "protocol/arena_list.h"

namespace penstock::protocol {

// Placeholder tokens of media the estimate knows nothing about: a picture of 640x360, ten seconds of it at
// two frames a second.
inline constexpr uint32_t kDefaultImageTokens = 225;
inline constexpr uint32_t kDefaultVideoTokens = 4500;
inline constexpr uint32_t kPixelsPerToken = 1024;
// Bounds: what a header of a picture or a video hint may claim, of one item and of one request. An item
// beyond the second counts as one token.
inline constexpr uint32_t kMaxMediaTokens = 65536;
inline constexpr uint32_t kMaxMediaTokensPerRequest = 1 << 20;

// The bytes of one prompt in order, collected as views while the body is walked and written once, at the
// end, as pseudo-tokens: 4 bytes each, little-endian, the tail padded with zeros. An item of media begins on
// a token and is `tokens` copies of the low half of its content's xxhash64. Lives in the arena.
class PromptStream {
 public:
  explicit PromptStream(Arena& arena) : pieces_(arena), media_(arena) {}

  struct Mark {
    size_t pieces = 0;
    size_t media = 0;
  };
  Mark mark() const { return {pieces_.size(), media_.size()}; }
  void rewind(const Mark& mark) {
    pieces_.truncate(mark.pieces);
    media_.truncate(mark.media);
  }

  // `bytes` outlive the stream.
  void text(std::string_view bytes) {
    if (!bytes.empty()) pieces_.push_back({bytes.data(), bytes.size()});
  }
  // Room for text that is known later.
  size_t reserve_text() {
    pieces_.push_back({"", 0});
    return pieces_.size() - 1;
  }
  void set_text(size_t place, std::string_view bytes) {
    pieces_[place] = {bytes.empty() ? "" : bytes.data(), bytes.size()};
  }
  // An image, video or audio item whose content hashes to `hash`. `modality` is a literal.
  void media(std::string_view modality, uint64_t hash, uint32_t tokens) {
    pieces_.push_back({nullptr, media_.size()});
    media_.push_back({modality, hash, tokens});
  }

  // The streams one after the other as one prompt.
  static TokenizedPrompt assemble(std::span<const PromptStream* const> parts, Arena& arena);

 private:
  struct Piece {
    const char* data;  // nullptr: media_[size]
    size_t size;
  };
  struct Media {
    std::string_view modality;
    uint64_t hash;
    uint32_t tokens;
  };
  ArenaList<Piece> pieces_;
  ArenaList<Media> media_;
};

// Placeholder tokens of a picture given by URL: width x height / 1024, at least 1, with the size read from a
// "data:image/...;base64," URL (PNG, JPEG, GIF); any other counts 225.
uint32_t image_tokens(std::string_view url);
// The same for a base64 text without the URL around it.
uint32_t image_tokens_base64(std::string_view base64);
// From the x-llm-d-video-* headers: duration x frames per second x tokens a frame; defaults 10 s, 2, 640x360.
uint32_t video_tokens(std::span<const HeaderField> headers);
// A token for 4 bytes of content, rounded up, at least 1.
uint32_t audio_tokens(size_t content_bytes);

}  // namespace penstock::protocol
