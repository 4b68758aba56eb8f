#include "kubernetes/timestamps.h"

#include <fmt/format.h>

namespace penstock::kubernetes {

namespace {

// Days since 1970 of a date of the Gregorian calendar, and back (std::chrono's calendar).
std::chrono::sys_days days_of(int year, unsigned month, unsigned day, bool& valid) {
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  valid = date.ok();
  return valid ? std::chrono::sys_days(date) : std::chrono::sys_days();
}

// `count` decimal digits at `at`, or -1.
int digits(std::string_view text, size_t at, size_t count) {
  if (at + count > text.size()) return -1;
  int out = 0;
  for (size_t i = at; i < at + count; ++i) {
    if (text[i] < '0' || text[i] > '9') return -1;
    out = out * 10 + (text[i] - '0');
  }
  return out;
}

bool has(std::string_view text, size_t at, std::string_view any_of) {
  return at < text.size() && any_of.find(text[at]) != std::string_view::npos;
}

// The fraction at `at` (a dot) in nanoseconds; `at` moves behind it. -1: no digit, or more than nine.
int64_t fraction(std::string_view text, size_t& at) {
  int64_t out = 0;
  size_t count = 0;
  for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at, ++count)
    out = count < 9 ? out * 10 + (text[at] - '0') : out;
  if (count == 0 || count > 9) return -1;
  for (; count < 9; ++count) out *= 10;
  return out;
}

std::string seconds_of(WallTime time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto days = std::chrono::floor<std::chrono::days>(seconds);
  const std::chrono::year_month_day date(days);
  const std::chrono::hh_mm_ss clock(seconds - days);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

}  // namespace

std::optional<WallTime> parse_time(std::string_view text) {
  if (!has(text, 4, "-") || !has(text, 7, "-") || !has(text, 10, "Tt") || !has(text, 13, ":") ||
      !has(text, 16, ":")) {
    return std::nullopt;
  }
  const int year = digits(text, 0, 4);
  const int month = digits(text, 5, 2);
  const int day = digits(text, 8, 2);
  const int hour = digits(text, 11, 2);
  const int minute = digits(text, 14, 2);
  const int second = digits(text, 17, 2);
  if (year < 1970 || year > 2200 || month < 1 || day < 1 || hour < 0 || hour > 23 || minute < 0 ||
      minute > 59 || second < 0 || second > 60) {
    return std::nullopt;
  }
  bool valid = false;
  const auto days = days_of(year, static_cast<unsigned>(month), static_cast<unsigned>(day), valid);
  size_t at = 19;
  int64_t nanoseconds = 0;
  if (has(text, at, ".")) nanoseconds = fraction(text, at);
  std::chrono::minutes offset(0);
  if (has(text, at, "Zz")) {
    ++at;
  } else if (has(text, at, "+-")) {
    const int hours = digits(text, at + 1, 2);
    const int minutes = digits(text, at + 4, 2);
    if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59 || !has(text, at + 3, ":"))
      return std::nullopt;
    offset = std::chrono::minutes(hours * 60 + minutes) * (text[at] == '-' ? -1 : 1);
    at += 6;
  } else {
    return std::nullopt;
  }
  if (!valid || nanoseconds < 0 || at != text.size()) return std::nullopt;
  return WallTime(days.time_since_epoch() + std::chrono::hours(hour) + std::chrono::minutes(minute) +
                  std::chrono::seconds(second) + Duration(nanoseconds) - offset);
}

std::string format_time(WallTime time) {
  return seconds_of(time) + "Z";
}

std::string format_micro_time(WallTime time) {
  const auto within = time - std::chrono::floor<std::chrono::seconds>(time);
  return fmt::format("{}.{:06}Z", seconds_of(time),
                     std::chrono::duration_cast<std::chrono::microseconds>(within).count());
}

}  // namespace penstock::kubernetes
