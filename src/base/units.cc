#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/strings.h"

namespace penstock {

namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 8> kDurationUnits{{{"ns", 1.0},
                                              {"us", 1e3},
                                              {"\xC2\xB5s", 1e3},
                                              {"\xCE\xBCs", 1e3},
                                              {"ms", 1e6},
                                              {"s", 1e9},
                                              {"m", 60e9},
                                              {"h", 3600e9}}};

constexpr std::array<Unit, 16> kQuantityUnits{{{"", 1.0},
                                               {"n", 1e-9},
                                               {"u", 1e-6},
                                               {"m", 1e-3},
                                               {"k", 1e3},
                                               {"M", 1e6},
                                               {"G", 1e9},
                                               {"T", 1e12},
                                               {"P", 1e15},
                                               {"E", 1e18},
                                               {"Ki", 1024.0},
                                               {"Mi", 1048576.0},
                                               {"Gi", 1073741824.0},
                                               {"Ti", 1099511627776.0},
                                               {"Pi", 1125899906842624.0},
                                               {"Ei", 1152921504606846976.0}}};

// Length of the digits-and-point prefix.
size_t number_length(std::string_view text) {
  size_t i = 0;
  while (i < text.size() && ((text[i] >= '0' && text[i] <= '9') || text[i] == '.')) ++i;
  return i;
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  const auto fail = [&] { return invalid_config(fmt::format("invalid duration \"{}\"", text)); };
  std::string_view rest = text;
  bool negative = false;
  if (!rest.empty() && (rest.front() == '-' || rest.front() == '+')) {
    negative = rest.front() == '-';
    rest.remove_prefix(1);
  }
  if (rest == "0") return Duration(0);
  if (rest.empty()) return fail();
  double total = 0;
  while (!rest.empty()) {
    const size_t digits = number_length(rest);
    const auto number = parse_double(rest.substr(0, digits));
    if (!number) return fail();
    rest.remove_prefix(digits);
    size_t unit_length = 0;
    while (unit_length < rest.size() && rest[unit_length] != '.' &&
           (rest[unit_length] < '0' || rest[unit_length] > '9')) {
      ++unit_length;
    }
    const std::string_view name = rest.substr(0, unit_length);
    if (name.empty()) return invalid_config(fmt::format("missing unit in duration \"{}\"", text));
    const Unit* unit = nullptr;
    for (const Unit& candidate : kDurationUnits) {
      if (candidate.name == name) unit = &candidate;
    }
    if (unit == nullptr)
      return invalid_config(fmt::format("unknown unit \"{}\" in duration \"{}\"", name, text));
    total += *number * unit->factor;
    rest.remove_prefix(unit_length);
  }
  if (total >= static_cast<double>(std::numeric_limits<int64_t>::max())) return fail();
  const auto nanos = static_cast<int64_t>(std::llround(total));
  return Duration(negative ? -nanos : nanos);
}

std::string format_duration(Duration d) {
  const int64_t nanos = d.count();
  if (nanos == 0) return "0s";
  const std::string sign = nanos < 0 ? "-" : "";
  const uint64_t abs = nanos < 0 ? 0 - static_cast<uint64_t>(nanos) : static_cast<uint64_t>(nanos);
  // Digits after the point without trailing zeros.
  const auto fraction = [](uint64_t whole, uint64_t part, int width) {
    std::string out = fmt::format("{}.{:0{}}", whole, part, width);
    while (out.back() == '0') out.pop_back();
    if (out.back() == '.') out.pop_back();
    return out;
  };
  if (abs < 1000) return fmt::format("{}{}ns", sign, abs);
  if (abs < 1000000) return sign + fraction(abs / 1000, abs % 1000, 3) + "\xC2\xB5s";
  if (abs < 1000000000) return sign + fraction(abs / 1000000, abs % 1000000, 6) + "ms";
  const uint64_t seconds = abs / 1000000000;
  const std::string tail = fraction(seconds % 60, abs % 1000000000, 9) + "s";
  if (seconds < 60) return sign + tail;
  if (seconds < 3600) return fmt::format("{}{}m{}", sign, seconds / 60, tail);
  return fmt::format("{}{}h{}m{}", sign, seconds / 3600, seconds / 60 % 60, tail);
}

Result<int64_t> parse_quantity(std::string_view text) {
  const auto fail = [&] { return invalid_config(fmt::format("invalid quantity \"{}\"", text)); };
  std::string_view rest = text;
  bool negative = false;
  if (!rest.empty() && (rest.front() == '-' || rest.front() == '+')) {
    negative = rest.front() == '-';
    rest.remove_prefix(1);
  }
  const size_t digits = number_length(rest);
  if (digits == 0) return fail();
  std::string_view suffix = rest.substr(digits);
  double value = 0;
  // A decimal exponent ("1e3", "1E3") is the other suffix form; a lone "E" is exa.
  if (suffix.size() > 1 && (suffix.front() == 'e' || suffix.front() == 'E') && suffix != "Ei") {
    const auto number = parse_double(rest);
    if (!number) return fail();
    value = *number;
  } else {
    const auto number = parse_double(rest.substr(0, digits));
    const Unit* unit = nullptr;
    for (const Unit& candidate : kQuantityUnits) {
      if (candidate.name == suffix) unit = &candidate;
    }
    if (!number || unit == nullptr) return fail();
    if (suffix.empty()) {
      if (const auto whole = parse_i64(rest)) return negative ? -*whole : *whole;  // exact above 2^53
    }
    value = *number * unit->factor;
  }
  value = std::ceil(value);
  if (!(value < 9.2e18)) return invalid_config(fmt::format("quantity \"{}\" is too large", text));
  const auto whole = static_cast<int64_t>(value);
  return negative ? -whole : whole;
}

}  // namespace penstock
