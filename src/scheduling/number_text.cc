#include "scheduling/number_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace penstock::scheduling {

namespace {

template <typename T>
void append(std::string& out, T value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  out.append(text.data(), end);
}

}  // namespace

void append_number(std::string& out, double value) {
  append(out, value);
}

void append_number(std::string& out, uint64_t value) {
  append(out, value);
}

void append_rounded(std::string& out, double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  append(out, std::isfinite(value) ? std::round(value * scale) / scale + 0.0 : value);
}

void append_millis(std::string& out, Duration duration) {
  append(out, std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
  out += " ms";
}

}  // namespace penstock::scheduling
