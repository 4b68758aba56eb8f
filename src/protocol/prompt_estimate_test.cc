#include "protocol/prompt_estimate.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock::protocol {
namespace {

std::string base64(const std::string& bytes) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kAlphabet[word >> (18 - 6 * k) & 63];
  }
  return out;
}

std::string be(uint32_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
  return out;
}

std::string png(uint32_t width, uint32_t height) {
  return "\x89PNG\r\n\x1a\n" + be(13, 4) + "IHDR" + be(width, 4) + be(height, 4) + be(0, 4);
}

TEST(ImageTokens, AreReadFromThePictureInADataUrl) {
  const std::string png_url = "data:image/png;base64,";
  EXPECT_EQ(image_tokens(png_url + base64(png(1024, 768))), 768U);
  EXPECT_EQ(image_tokens(png_url + base64(png(16, 16))), 1U);
  EXPECT_EQ(image_tokens(png_url + base64(png(0xFFFFFFFF, 0xFFFFFFFF))), kMaxMediaTokens);
  EXPECT_EQ(image_tokens_base64(base64("GIF89a" + std::string("\x80\x02\x68\x01", 4) + "...")), 225U);
  const std::string jpeg = "\xFF\xD8\xFF\xE1" + be(40, 2) + std::string(38, 'x') + "\xFF\xC2" + be(17, 2) +
                           "\x08" + be(480, 2) + be(640, 2) + std::string(20, 'y');
  EXPECT_EQ(image_tokens("data:image/jpeg;base64," + base64(jpeg)), 300U);
}

TEST(ImageTokens, FallBackToTheDefaultPicture) {
  for (const std::string url :
       {"http://x/a.png", "", "data:image/png;base64,", "data:image/png;base64,!!!!", "data:image/png,raw",
        "data:text/plain;base64,AAAA", "data:image/webp;base64,UklGRg=="})
    EXPECT_EQ(image_tokens(url), kDefaultImageTokens) << url;
  EXPECT_EQ(image_tokens("data:image/png;base64," + base64(png(0, 5))), kDefaultImageTokens);
}

TEST(VideoTokens, FollowTheHints) {
  const auto tokens = [](std::vector<HeaderField> headers) { return video_tokens(headers); };
  EXPECT_EQ(tokens({}), 4500U);
  EXPECT_EQ(tokens({{"x-llm-d-video-fps", "1"}, {"x-llm-d-video-duration-seconds", "4"}}), 900U);
  EXPECT_EQ(tokens({{"x-llm-d-video-resolution", "1280X720"}}), 20U * 900);
  EXPECT_EQ(tokens({{"x-llm-d-video-fps", "nan"}, {"x-llm-d-video-resolution", "ax1"}}), 4500U);
  EXPECT_EQ(tokens({{"x-llm-d-video-duration-seconds", "1e300"}}), kMaxMediaTokens);
}

TEST(PromptStream, ReservedTextThatTurnsOutEmptyIsNoMediaItem) {
  Arena arena;
  PromptStream stream(arena);
  const size_t place = stream.reserve_text();
  stream.text("user");
  stream.set_text(place, {});
  const PromptStream* const parts[] = {&stream};
  const TokenizedPrompt prompt = PromptStream::assemble(parts, arena);
  EXPECT_EQ(prompt.token_ids.size(), 1U);
  EXPECT_TRUE(prompt.features.empty());
}

TEST(PromptStream, BoundsThePlaceholdersOfOneRequest) {
  Arena arena;
  PromptStream stream(arena);
  for (int i = 0; i < 100; ++i) stream.media("image", 7, kMaxMediaTokens);
  const PromptStream* const parts[] = {&stream};
  const TokenizedPrompt prompt = PromptStream::assemble(parts, arena);
  EXPECT_EQ(prompt.features.size(), 100U);
  EXPECT_LE(prompt.token_ids.size(), kMaxMediaTokensPerRequest + 100U);
}

TEST(PromptStream, WritesTheHashWithoutLeadingZeros) {
  Arena arena;
  PromptStream stream(arena);
  stream.text("a");
  stream.media("audio", 0x0000000000000abcULL, 2);
  stream.text("b");
  const PromptStream* const parts[] = {&stream};
  const TokenizedPrompt prompt = PromptStream::assemble(parts, arena);
  ASSERT_EQ(prompt.token_ids.size(), 4U);
  EXPECT_EQ(prompt.token_ids[0], 'a');
  EXPECT_EQ(prompt.token_ids[1], 0xabcU);
  EXPECT_EQ(prompt.token_ids[3], 'b');
  EXPECT_EQ(prompt.features[0].hash, "abc");
  EXPECT_EQ(prompt.features[0].offset_tokens, 1U);
}

}  // namespace
}  // namespace penstock::protocol
