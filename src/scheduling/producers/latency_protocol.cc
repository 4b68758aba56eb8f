#include "scheduling/producers/latency_protocol.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/strings.h"
#include "protocol/json_cursor.h"
#include "scheduling/number_text.h"

namespace penstock::scheduling {

namespace {

using protocol::JsonCursor;
using protocol::JsonKind;

double ratio(double value) {
  return value >= 0 ? std::min(value, 1.0) : 0.0;
}

// Without the closing bracket.
void append_row(std::string& out, const LatencyRow& row) {
  out += "{\"kv_cache_percentage\":";
  append_number(out, ratio(row.kv_usage));
  fmt::format_to(std::back_inserter(out),
                 ",\"input_token_length\":{},\"num_request_waiting\":{},\"num_request_running\":{},"
                 "\"num_tokens_generated\":{},\"prefix_cache_score\":",
                 row.input_tokens, row.waiting_requests, row.running_requests, row.generated_tokens);
  append_number(out, ratio(row.prefix_score));
  fmt::format_to(std::back_inserter(out), ",\"encoder_input_size\":{},\"encoder_matched_size\":{}",
                 row.encoder_items, std::min(row.encoder_items, row.encoder_items_matched));
  if (!row.role.empty()) {
    out += ",\"pod_type\":";
    append_json_quoted(out, row.role);
  }
  fmt::format_to(std::back_inserter(out), ",\"prefill_tokens_in_flight\":{},\"decode_tokens_in_flight\":{}",
                 row.prefill_tokens_in_flight, row.decode_tokens_in_flight);
}

Error wrong(std::string what) {
  return Error{ErrorCode::kBadGateway, "the latency predictor's answer " + std::move(what)};
}

// A finite number; other values are consumed.
bool read_number(JsonCursor& cursor, double& out) {
  std::string_view literal;
  if (cursor.kind() != JsonKind::kNumber || !cursor.number(literal)) {
    cursor.skip();
    return false;
  }
  const std::optional<double> value = parse_double(literal);
  if (!value || !std::isfinite(*value)) return false;
  out = *value;
  return true;
}

// False: a time is missing or is none.
bool read_prediction(JsonCursor& cursor, LatencyTimes& out) {
  bool ttft = false;
  bool tpot = false;
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    const std::string_view key = cursor.key();
    if (key == "ttft_ms") {
      ttft = read_number(cursor, out.ttft_ms);
    } else if (key == "tpot_ms") {
      tpot = read_number(cursor, out.tpot_ms);
    } else if (key == "ttft_uncertainty") {
      if (!read_number(cursor, out.ttft_error_ms)) out.ttft_error_ms = 0;
    } else if (key == "tpot_uncertainty") {
      if (!read_number(cursor, out.tpot_error_ms)) out.tpot_error_ms = 0;
    } else {
      cursor.skip();
    }
  }
  out.ttft_ms = std::max(0.0, out.ttft_ms);
  out.tpot_ms = std::max(0.0, out.tpot_ms);
  out.ttft_error_ms = std::max(0.0, out.ttft_error_ms);
  out.tpot_error_ms = std::max(0.0, out.tpot_error_ms);
  return ttft && tpot;
}

}  // namespace

std::string prediction_body(std::span<const LatencyRow> rows) {
  std::string out = "{\"requests\":[";
  for (const LatencyRow& row : rows) {
    if (out.back() == '}') out += ',';
    append_row(out, row);
    out += '}';
  }
  out += "]}";
  return out;
}

std::string training_body(std::span<const LatencySample> samples) {
  std::string out = "{\"entries\":[";
  for (const LatencySample& sample : samples) {
    if (out.back() == '}') out += ',';
    append_row(out, sample.row);
    out += ",\"actual_ttft_ms\":";
    append_number(out, sample.ttft_ms);
    out += ",\"actual_tpot_ms\":";
    append_number(out, sample.tpot_ms);
    const auto millis = std::chrono::floor<std::chrono::milliseconds>(sample.at);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(millis);
    fmt::format_to(std::back_inserter(out), ",\"timestamp\":\"{:%Y-%m-%dT%H:%M:%S}.{:03}Z\"}}",
                   fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), (millis - seconds).count());
  }
  out += "]}";
  return out;
}

Result<std::vector<LatencyTimes>> parse_predictions(std::string_view body, size_t rows) {
  JsonCursor cursor(body, nullptr);
  if (cursor.kind() != JsonKind::kObject) return wrong("is no JSON object");
  std::vector<LatencyTimes> out;
  bool found = false;
  bool whole = true;
  for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
    if (cursor.key() != "predictions") {
      cursor.skip();
      continue;
    }
    out.clear();
    whole = true;
    found = cursor.kind() == JsonKind::kArray;
    if (!found) {
      cursor.skip();
      continue;
    }
    size_t count = 0;
    for (bool next = cursor.enter_array(); next; next = cursor.next_element()) {
      LatencyTimes times;
      // Beyond what was asked for they are only counted.
      if (count++ >= rows || cursor.kind() != JsonKind::kObject) {
        whole = false;
        cursor.skip();
        continue;
      }
      whole = read_prediction(cursor, times) && whole;
      out.push_back(times);
    }
  }
  cursor.finish();
  if (cursor.failed()) return wrong("is broken: " + cursor.error_text());
  if (!found) return wrong("has no list \"predictions\"");
  if (!whole) return wrong("has a prediction without ttft_ms and tpot_ms, or too many");
  if (out.size() != rows) return wrong(fmt::format("has {} predictions for {} rows", out.size(), rows));
  return out;
}

SampleCounts stratified(SampleCounts have, size_t most) {
  const size_t all = have.ttft + have.tpot;
  if (all <= most) return have;
  SampleCounts out{have.ttft * most / all, have.tpot * most / all};
  (have.ttft > have.tpot ? out.ttft : out.tpot) += most - out.ttft - out.tpot;
  return out;
}

}  // namespace penstock::scheduling
