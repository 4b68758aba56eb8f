#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "signals/exposition_scanner.h"

// The first bytes say where the page is cut. Whatever the cuts, the same samples are found, and the bounds
// hold.
namespace {

using namespace penstock::signals;

class Collector final : public SampleSink {
 public:
  void sample(const Sample& s) override {
    text += std::to_string(s.name);
    for (const SampleLabel& label : s.labels) {
      text.append(label.name).append("=").append(label.value).append(";");
    }
    uint64_t bits = 0;
    std::memcpy(&bits, &s.value, sizeof bits);
    text += std::to_string(bits) + "@" + std::to_string(s.timestamp_ms) + "\n";
  }
  std::string text;
};

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const NameSet names({"m", "m:a", "m:ab", "vllm:num_requests_waiting", "vllm:lora_requests_info"});
  constexpr size_t kCuts = 4;
  if (size < kCuts) return 0;
  const std::string_view page(reinterpret_cast<const char*>(data) + kCuts, size - kCuts);
  const ExpositionScanner::Options options{.max_line_bytes = 200, .max_page_bytes = 4000, .max_labels = 8};

  Collector whole;
  ExpositionScanner one(names, whole, options);
  one.feed(page);
  one.finish();

  Collector pieces;
  ExpositionScanner many(names, pieces, options);
  size_t at = 0;
  for (size_t i = 0; at < page.size(); ++i) {
    // Copied to the heap, so that the sanitizer sees a read past a piece.
    const size_t length = std::min<size_t>(page.size() - at, 1 + data[i % kCuts]);
    const std::vector<char> piece(page.begin() + static_cast<ptrdiff_t>(at),
                                  page.begin() + static_cast<ptrdiff_t>(at + length));
    if (!many.feed({piece.data(), piece.size()})) break;
    at += length;
  }
  many.finish();

  require(whole.text == pieces.text);
  require(one.stats().lines == many.stats().lines);
  require(one.stats().malformed == many.stats().malformed);
  require(one.stats().overlong == many.stats().overlong);
  require(one.stats().page_too_large == many.stats().page_too_large);
  return 0;
}
