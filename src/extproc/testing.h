#pragma once

// What tests of the ext-proc door build streams from: scripted ProcessingRequests, answers as protobuf, and a
// door without sockets.

#include <envoy/service/ext_proc/v3/external_processor.pb.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "director/testing.h"
#include "extproc/core.h"
#include "extproc/processor.h"

namespace penstock::extproc::testing {

namespace pb = envoy::service::ext_proc::v3;
using Mode = envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
using Fields = std::vector<std::pair<std::string, std::string>>;

inline void fill(envoy::config::core::v3::HeaderMap& map, const Fields& fields) {
  for (const auto& [name, value] : fields) {
    auto* header = map.add_headers();
    header->set_key(name);
    header->set_raw_value(value);
  }
}
inline pb::ProcessingRequest request_headers(const Fields& fields, bool end_of_stream = false) {
  pb::ProcessingRequest out;
  fill(*out.mutable_request_headers()->mutable_headers(), fields);
  out.mutable_request_headers()->set_end_of_stream(end_of_stream);
  out.mutable_metadata_context();
  return out;
}
// What Envoy sends for `curl -d`.
inline Fields post_fields(const std::string& path = "/v1/completions") {
  return {{":authority", "gw"},  {":path", path},          {":method", "POST"},
          {":scheme", "http"},   {"user-agent", "curl/8"}, {"content-type", "application/json"},
          {"x-request-id", "r1"}};
}
inline pb::ProcessingRequest with_modes(pb::ProcessingRequest request, Mode::BodySendMode request_mode,
                                        Mode::BodySendMode response_mode, bool without_waiting = false) {
  auto* config = request.mutable_protocol_config();
  config->set_request_body_mode(request_mode);
  config->set_response_body_mode(response_mode);
  config->set_send_body_without_waiting_for_header_response(without_waiting);
  return request;
}
inline pb::ProcessingRequest full_duplex(pb::ProcessingRequest request) {
  return with_modes(std::move(request), Mode::FULL_DUPLEX_STREAMED, Mode::FULL_DUPLEX_STREAMED);
}
inline pb::ProcessingRequest request_body(std::string_view body, bool end_of_stream) {
  pb::ProcessingRequest out;
  out.mutable_request_body()->set_body(std::string(body));
  out.mutable_request_body()->set_end_of_stream(end_of_stream);
  out.mutable_metadata_context();
  return out;
}
inline pb::ProcessingRequest request_trailers() {
  pb::ProcessingRequest out;
  fill(*out.mutable_request_trailers()->mutable_trailers(), {{"x-trailer", "1"}});
  return out;
}
inline pb::ProcessingRequest response_headers(const Fields& fields, bool end_of_stream = false) {
  pb::ProcessingRequest out;
  fill(*out.mutable_response_headers()->mutable_headers(), fields);
  out.mutable_response_headers()->set_end_of_stream(end_of_stream);
  return out;
}
inline Fields engine_fields(const std::string& type = "application/json", const std::string& status = "200") {
  return {{":status", status}, {"date", "today"}, {"server", "uvicorn"}, {"content-type", type}};
}
inline pb::ProcessingRequest response_body(std::string_view body, bool end_of_stream) {
  pb::ProcessingRequest out;
  out.mutable_response_body()->set_body(std::string(body));
  out.mutable_response_body()->set_end_of_stream(end_of_stream);
  return out;
}
inline pb::ProcessingRequest response_trailers() {
  pb::ProcessingRequest out;
  fill(*out.mutable_response_trailers()->mutable_trailers(), {{"grpc-status", "0"}});
  return out;
}
inline void set_subset(pb::ProcessingRequest& request, const std::vector<std::string>& entries) {
  auto& metadata = *request.mutable_metadata_context()->mutable_filter_metadata();
  auto& fields = *metadata["envoy.lb.subset_hint"].mutable_fields();
  auto* list = fields["x-gateway-destination-endpoint-subset"].mutable_list_value();
  for (const std::string& entry : entries) list->add_values()->set_string_value(entry);
}

// A pool, a director and a door's parts for one loop, on a clock that tests move.
struct DoorBench {
  explicit DoorBench(DoorOptions opts = {}) : options(opts) { pool.policy.publish(policy.policy); }

  // Outlier detection with its defaults, but for the floor: pools of tests are small.
  void watch_health() {
    config::OutlierDetectionSettings settings;
    settings.enabled = true;
    settings.max_ejected_percent = 100;
    pool.health.configure(settings);
  }
  void add_endpoints(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      auto endpoint =
          director::testing::make_endpoint(static_cast<EndpointSlot>(endpoints.size()),
                                           std::string(1, static_cast<char>('a' + endpoints.size())),
                                           static_cast<uint16_t>(9000 + endpoints.size()));
      endpoints.push_back(endpoint);
      pictures.add(endpoint);
    }
    scrape();
  }
  // Every endpoint's signals are fresh; `best` has the shortest queue.
  void scrape(Candidate best = 0) {
    for (Candidate c = 0; c < endpoints.size(); ++c) {
      for (const Signal s : {Signal::kWaitingRequests, Signal::kRunningRequests, Signal::kKvUsage}) {
        pictures.set(s, c, s == Signal::kWaitingRequests && c != best ? 5 : 0, clock.now());
      }
    }
  }
  PoolPart& part() {
    if (part_ == nullptr) {
      options.seed = 7;
      core = std::make_unique<Core>(registry, clock, access_log, options);
      loop_part_ = std::make_unique<LoopPart>(*core, nullptr, 0);
      part_ = std::make_unique<PoolPart>(*loop_part_, pool, DoorPool().freshness_budget, nullptr,
                                         std::make_unique<director::testing::BorrowedPictures>(pictures));
    }
    return *part_;
  }
  uint64_t load(size_t endpoint) const { return EndpointLive::requests_of(endpoints[endpoint]->live->load); }
  uint64_t all_load() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < endpoints.size(); ++i) sum += load(i);
    return sum;
  }

  DoorOptions options;
  director::AccessLog* access_log = nullptr;
  ManualClock clock;
  telemetry::MetricRegistry registry;
  director::RequestMetrics metrics{registry};
  director::Pool pool{"pool", "default", metrics, {1, 64}};
  director::testing::TestPolicy policy;
  director::testing::FixedPictures pictures;
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  std::unique_ptr<Core> core;

 private:
  std::unique_ptr<LoopPart> loop_part_;
  std::unique_ptr<PoolPart> part_;
};

// One stream as the data plane sees it.
class Stream {
 public:
  explicit Stream(DoorBench& bench) : processor_(std::make_unique<Processor>(bench.part())) {}

  // The answers to one message.
  std::vector<pb::ProcessingResponse> send(const pb::ProcessingRequest& request) {
    return send_bytes(request.SerializeAsString());
  }
  std::vector<pb::ProcessingResponse> send_bytes(const std::string& bytes) {
    answers_.clear();
    next = processor_->message(bytes, answers_);
    return take();
  }
  std::vector<pb::ProcessingResponse> overdue() {
    answers_.clear();
    next = processor_->overdue(answers_);
    return take();
  }
  // Half-closed or reset.
  void end() {
    processor_->ended();
    processor_.reset();
  }
  void end(const Error& error) {
    processor_->ended(error);
    processor_.reset();
  }
  Processor& processor() { return *processor_; }

  Processor::Next next = Processor::Next::kRead;

 private:
  std::vector<pb::ProcessingResponse> take() {
    std::vector<pb::ProcessingResponse> out;
    for (const auto message : answers_.messages()) {
      std::string bytes;
      for (const std::string_view piece : message) bytes += piece;
      pb::ProcessingResponse& response = out.emplace_back();
      if (!response.ParseFromString(bytes)) out.pop_back();
    }
    processor_->sent();
    return out;
  }
  std::unique_ptr<Processor> processor_;
  Answers answers_;
};

}  // namespace penstock::extproc::testing
