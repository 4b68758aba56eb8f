#pragma once

// For this room's tests, benchmarks and fuzz targets only.

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "protocol/parser.h"

namespace penstock::protocol {

// A body with the padding parsers may read.
class PaddedCopy {
 public:
  explicit PaddedCopy(std::string_view text) : bytes_(text), size_(text.size()) {
    bytes_.append(kBodyPadding, '\0');
  }
  PaddedBody padded() const { return {bytes_.data(), size_}; }

 private:
  std::string bytes_;
  size_t size_;
};

// One body parsed; views in `result` live as long as this.
struct TestParse {
  PaddedCopy body;
  Arena arena;
  Result<ParsedBody> result;

  TestParse(const RequestParser& parser, std::string_view path, std::string_view text,
            std::vector<HeaderField> headers = {})
      : body(text), result(parser.parse(path, headers, body.padded(), arena)) {}

  bool ok() const { return result.ok(); }
  const ParsedBody* operator->() const { return &result.value(); }
  std::string error() const { return result.ok() ? std::string() : result.error().message; }
  // The pseudo-tokens of a prompt as the bytes they stand for.
  std::string bytes(size_t prompt = 0) const {
    const auto ids = result.value().prompts[prompt].token_ids;
    return {reinterpret_cast<const char*>(ids.data()), ids.size() * 4};
  }
  std::string rewritten(std::string_view target) {
    const RewrittenBody out = rewrite_model(body.padded(), result.value(), target, arena);
    std::string text;
    for (const std::string_view piece : out.pieces) text += piece;
    return text.size() == out.size ? text : "size does not match";
  }
};

inline std::string read_whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A recorded HTTP message in parts; a chunked body is joined, its chunks kept in `chunks`.
struct RecordedMessage {
  std::string start_line;
  std::string head;  // lower-case header lines
  std::string body;
  std::vector<std::string> chunks;

  std::string header(std::string_view name) const {
    const std::string wanted = "\n" + std::string(name) + ": ";
    const size_t at = head.find(wanted);
    if (at == std::string::npos) return {};
    return head.substr(at + wanted.size(), head.find('\r', at) - at - wanted.size());
  }
};

inline RecordedMessage read_recorded(const std::string& path) {
  RecordedMessage out;
  const std::string all = read_whole_file(path);
  const size_t end = all.find("\r\n\r\n");
  if (end == std::string::npos) return out;
  out.start_line = all.substr(0, all.find("\r\n"));
  out.head = "\n";
  for (size_t i = all.find("\r\n") + 2; i < end + 2; ++i) out.head += ascii_lower(all[i]);
  std::string rest = all.substr(end + 4);
  if (out.head.find("\ntransfer-encoding: chunked") == std::string::npos) {
    out.body = rest;
    out.chunks.push_back(rest);
    return out;
  }
  size_t at = 0;
  while (at < rest.size()) {
    const size_t size = std::stoul(rest.substr(at, rest.find("\r\n", at) - at), nullptr, 16);
    if (size == 0) break;
    at = rest.find("\r\n", at) + 2;
    out.chunks.push_back(rest.substr(at, size));
    out.body += out.chunks.back();
    at += size + 2;
  }
  return out;
}

}  // namespace penstock::protocol
