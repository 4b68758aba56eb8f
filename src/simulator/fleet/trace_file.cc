#include "simulator/fleet/trace_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <tuple>

#include "base/strings.h"
#include "config/files.h"

namespace penstock::simulator {

namespace {

constexpr int64_t kBlockTokens = 512;

// One line's members as far as they are right; what is wrong is said once.
class Line {
 public:
  Line(simdjson::dom::object object, std::string_view source, size_t number)
      : object_(object), source_(source), number_(number) {}

  int64_t integer(std::string_view name, int64_t low, int64_t high) {
    const double value = number(name);
    if (failed()) return low;
    if (value < static_cast<double>(low) || value > static_cast<double>(high)) {
      fail(name, fmt::format("{} is not between {} and {}", value, low, high));
    } else if (value != std::trunc(value)) {
      fail(name, fmt::format("{} is not a whole number", value));
    }
    return failed() ? low : static_cast<int64_t>(value);
  }

  double number(std::string_view name) {
    simdjson::dom::element element;
    if (object_[name].get(element) != simdjson::SUCCESS) {
      fail(name, "is missing");
      return 0;
    }
    double value = 0;
    if (element.get(value) == simdjson::SUCCESS) return value;
    fail(name, "is not a number");
    return 0;
  }

  std::optional<simdjson::dom::array> list(std::string_view name) {
    simdjson::dom::element element;
    simdjson::dom::array array;
    if (object_[name].get(element) != simdjson::SUCCESS) {
      fail(name, "is missing");
    } else if (element.get(array) != simdjson::SUCCESS) {
      fail(name, "is not a list");
    } else {
      return array;
    }
    return std::nullopt;
  }

  void fail(std::string_view member, std::string_view problem) {
    if (failed()) return;
    error_ = invalid_config(fmt::format("{}:{}: {}: {}", source_, number_, member, problem));
  }
  bool failed() const { return error_.has_value(); }
  Error error() const { return *error_; }

 private:
  simdjson::dom::object object_;
  std::string_view source_;
  size_t number_;
  std::optional<Error> error_;
};

Status take_line(Line& line, Workload& out) {
  FleetRequest request;
  const double millis = line.number("timestamp");
  if (!(millis >= 0 && millis <= kMaxTraceMillis))
    line.fail("timestamp", fmt::format("{} is not between 0 and {:.0f}", millis, kMaxTraceMillis));
  const int64_t input = line.integer("input_length", 1, kMaxTraceTokens);
  const int64_t output = line.integer("output_length", 0, kMaxTraceTokens);
  const std::optional<simdjson::dom::array> ids = line.list("hash_ids");
  if (line.failed()) return line.error();

  request.at = Duration(static_cast<int64_t>(millis * 1e6));
  request.output_tokens = static_cast<uint32_t>(std::max<int64_t>(output, 1));
  out.requests.push_back(request);
  const auto wanted = static_cast<size_t>((input + kBlockTokens - 1) / kBlockTokens);
  if (ids->size() != wanted) {
    line.fail("hash_ids", fmt::format("{} ids of {} tokens do not make input_length {}, which needs {}",
                                      ids->size(), kBlockTokens, input, wanted));
    return line.error();
  }
  if (out.pieces.size() + wanted > kMaxTracePieces) {
    line.fail("hash_ids", fmt::format("more than {} in all", kMaxTracePieces));
    return line.error();
  }
  int64_t left = input;
  for (const simdjson::dom::element id : *ids) {
    uint64_t value = 0;
    if (id.get(value) != simdjson::SUCCESS || value > UINT32_MAX) {
      line.fail("hash_ids", fmt::format("an id is not a whole number between 0 and {}", UINT32_MAX));
      return line.error();
    }
    const int64_t tokens = std::min(left, kBlockTokens);
    out.add_piece({value, static_cast<uint32_t>(tokens)});
    left -= tokens;
  }
  return {};
}

// REQUIRES: sorted by time.
void spread_batches(std::vector<FleetRequest>& requests) {
  for (size_t begin = 0; begin < requests.size();) {
    size_t end = begin;
    while (end < requests.size() && requests[end].at == requests[begin].at) ++end;
    if (end < requests.size()) {
      const Duration step = (requests[end].at - requests[begin].at) / static_cast<int64_t>(end - begin);
      for (size_t i = begin + 1; i < end; ++i) requests[i].at += step * static_cast<int64_t>(i - begin);
    }
    begin = end;
  }
}

}  // namespace

Result<Workload> parse_trace(std::string_view text, std::string_view source, bool spread) {
  Workload out;
  simdjson::dom::parser parser;
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string_view content = trim(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (content.empty()) continue;
    if (out.requests.size() == kMaxTraceRequests)
      return invalid_config(fmt::format("{}:{}: more than {} requests", source, number, kMaxTraceRequests));
    simdjson::dom::object object;
    if (const auto problem = parser.parse(content.data(), content.size()).get(object);
        problem != simdjson::SUCCESS) {
      return invalid_config(
          fmt::format("{}:{}: not a JSON object: {}", source, number, simdjson::error_message(problem)));
    }
    Line line(object, source, number);
    if (Status status = take_line(line, out); !status.ok()) return std::move(status).error();
  }
  if (out.requests.empty()) return invalid_config(fmt::format("{}: no request in it", source));
  // Pieces are numbered in order of the lines.
  std::sort(out.requests.begin(), out.requests.end(), [](const FleetRequest& a, const FleetRequest& b) {
    return std::tie(a.at, a.first_piece) < std::tie(b.at, b.first_piece);
  });
  if (spread) spread_batches(out.requests);
  return out;
}

Result<Workload> read_trace(const std::string& path, bool spread) {
  const Result<std::string> text = config::read_file(path, kMaxTraceBytes);
  if (!text.ok()) return text.error();
  Result<Workload> out = parse_trace(*text, path, spread);
  if (out.ok()) out->name = std::filesystem::path(path).stem().string();
  return out;
}

}  // namespace penstock::simulator
