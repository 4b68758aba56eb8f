#include "sharing/resp.h"

#include <algorithm>
#include <optional>

#include "base/strings.h"

namespace penstock::sharing {

namespace {

constexpr size_t kMaxLine = 64 << 10;

class Parser {
 public:
  Parser(std::string_view bytes, const RespLimits& limits) : bytes_(bytes), limits_(limits) {}

  RespParsed run(RespReply& out) {
    const RespOutcome outcome = value(out, 0);
    if (outcome == RespOutcome::kComplete && at_ > limits_.bytes) return {RespOutcome::kTooLarge, 0};
    if (outcome == RespOutcome::kIncomplete) {
      const size_t least = std::max(needed_, bytes_.size() + 1);
      return {least > limits_.bytes ? RespOutcome::kTooLarge : RespOutcome::kIncomplete, least};
    }
    return {outcome, at_};
  }

 private:
  // The rest of the line; nothing: not all of it is there, or it is none (`outcome`).
  std::optional<std::string_view> line(RespOutcome& outcome) {
    const size_t end = bytes_.find('\r', at_);
    if (end == std::string_view::npos || end + 1 == bytes_.size()) {
      outcome = bytes_.size() - at_ > kMaxLine ? RespOutcome::kTooLarge : RespOutcome::kIncomplete;
      return std::nullopt;
    }
    if (bytes_[end + 1] != '\n') {
      outcome = RespOutcome::kMalformed;
      return std::nullopt;
    }
    const std::string_view text = bytes_.substr(at_, end - at_);
    at_ = end + 2;
    return text;
  }

  RespOutcome bulk(std::string_view length_text, RespReply& out) {
    if (length_text == "-1") return RespOutcome::kComplete;
    const auto length = parse_u64(length_text);
    if (!length) return RespOutcome::kMalformed;
    if (*length > limits_.bytes) return RespOutcome::kTooLarge;
    if (bytes_.size() - at_ < *length + 2) {
      needed_ = at_ + *length + 2;
      return RespOutcome::kIncomplete;
    }
    out.kind = RespReply::Kind::kText;
    out.text = bytes_.substr(at_, *length);
    at_ += *length;
    if (bytes_.substr(at_, 2) != "\r\n") return RespOutcome::kMalformed;
    at_ += 2;
    return RespOutcome::kComplete;
  }

  RespOutcome array(std::string_view count_text, RespReply& out, size_t depth) {
    if (count_text == "-1") return RespOutcome::kComplete;
    const auto count = parse_u64(count_text);
    if (!count) return RespOutcome::kMalformed;
    if (*count > limits_.items - items_ || depth >= limits_.depth) return RespOutcome::kTooLarge;
    items_ += *count;
    out.kind = RespReply::Kind::kArray;
    for (uint64_t i = 0; i < *count; ++i) {
      const RespOutcome outcome = value(out.items.emplace_back(), depth + 1);
      if (outcome != RespOutcome::kComplete) return outcome;
    }
    return RespOutcome::kComplete;
  }

  RespOutcome value(RespReply& out, size_t depth) {
    out = {};
    if (at_ >= bytes_.size()) return RespOutcome::kIncomplete;
    const char type = bytes_[at_++];
    RespOutcome outcome = RespOutcome::kComplete;
    const std::optional<std::string_view> rest = line(outcome);
    switch (type) {
      case '+':
      case '-':
        out.kind = type == '+' ? RespReply::Kind::kText : RespReply::Kind::kError;
        if (rest) out.text = *rest;
        return outcome;
      case ':': {
        out.kind = RespReply::Kind::kInteger;
        if (!rest) return outcome;
        const auto number = parse_i64(*rest);
        if (!number) return RespOutcome::kMalformed;
        out.integer = *number;
        return RespOutcome::kComplete;
      }
      case '$':
        return rest ? bulk(*rest, out) : outcome;
      case '*':
        return rest ? array(*rest, out, depth) : outcome;
      default:
        return RespOutcome::kMalformed;
    }
  }

  std::string_view bytes_;
  const RespLimits& limits_;
  size_t at_ = 0;
  size_t items_ = 0;
  size_t needed_ = 0;
};

}  // namespace

void append_command(std::string& out, std::initializer_list<std::string_view> arguments) {
  out += '*';
  out += std::to_string(arguments.size());
  out += "\r\n";
  for (const std::string_view argument : arguments) {
    out += '$';
    out += std::to_string(argument.size());
    out += "\r\n";
    out += argument;
    out += "\r\n";
  }
}

RespParsed parse_reply(std::string_view bytes, RespReply& out, const RespLimits& limits) {
  return Parser(bytes, limits).run(out);
}

}  // namespace penstock::sharing
