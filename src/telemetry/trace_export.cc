#include <fmt/format.h>
#include <opentelemetry/proto/collector/trace/v1/trace_service.pb.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>

#include "base/strings.h"
#include "io/grpc.h"
#include "io/http_client.h"
#include "io/tls.h"
#include "telemetry/log.h"
#include "telemetry/tracer.h"

namespace penstock::telemetry {

namespace {

namespace otlp = opentelemetry::proto;
using Answer = SpanExporter::Answer;
using Outcome = SpanExporter::Outcome;

constexpr size_t kMaxAnswerBytes = 64UL << 10U;
constexpr std::string_view kGrpcPath = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

// --- encoding ---

// Protobuf's strings are UTF-8, and so is JSON; what a client sent need not be.
std::string utf8(std::string_view text) {
  std::string out(text);
  if (is_utf8(text)) return out;
  for (char& c : out)
    if ((static_cast<unsigned char>(c) & 0x80U) != 0) c = '?';
  return out;
}

void set_text(otlp::common::v1::KeyValue& pair, std::string_view key, std::string_view value) {
  pair.set_key(std::string(key));
  pair.mutable_value()->set_string_value(utf8(value));
}

void set_value(otlp::common::v1::AnyValue& out, const SpanValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    out.set_string_value(utf8(*text));
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    out.set_int_value(*integer);
  } else if (const auto* number = std::get_if<double>(&value)) {
    out.set_double_value(*number);
  } else if (const auto* boolean = std::get_if<bool>(&value)) {
    out.set_bool_value(*boolean);
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    auto& list = *out.mutable_array_value();
    for (const std::string& item : *texts) list.add_values()->set_string_value(utf8(item));
  } else if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
    auto& list = *out.mutable_array_value();
    for (const double item : *numbers) list.add_values()->set_double_value(item);
  }
}

template <size_t N>
std::string bytes_of(const std::array<uint8_t, N>& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

bool is_zero(const std::array<uint8_t, 8>& id) {
  return std::all_of(id.begin(), id.end(), [](uint8_t byte) { return byte == 0; });
}

uint64_t unix_nanos(WallTime time) {
  return static_cast<uint64_t>(std::max<int64_t>(0, time.time_since_epoch().count()));
}

void fill_span(otlp::trace::v1::Span& out, const SpanBatch& batch, const Span& span, bool first) {
  constexpr uint32_t kKnowsRemote = 0x100;
  constexpr uint32_t kRemoteParent = 0x200;
  out.set_trace_id(bytes_of(batch.trace_id));
  out.set_span_id(bytes_of(span.id));
  if (!is_zero(span.parent_id)) out.set_parent_span_id(bytes_of(span.parent_id));
  out.set_trace_state(batch.tracestate);
  out.set_flags(batch.flags | kKnowsRemote | (first && batch.remote_parent ? kRemoteParent : 0));
  out.set_name(utf8(span.name));
  out.set_kind(static_cast<otlp::trace::v1::Span::SpanKind>(span.kind));
  out.set_start_time_unix_nano(unix_nanos(span.start));
  out.set_end_time_unix_nano(unix_nanos(span.end));
  for (const SpanAttribute& attribute : span.attributes) {
    auto& pair = *out.add_attributes();
    pair.set_key(std::string(attribute.key));
    set_value(*pair.mutable_value(), attribute.value);
  }
  if (span.failed) {
    out.mutable_status()->set_code(otlp::trace::v1::Status::STATUS_CODE_ERROR);
    out.mutable_status()->set_message(utf8(span.error));
  }
}

// service.name, service.version, telemetry.sdk.*, then the configured ones, which win.
std::map<std::string, std::string> resource_of(const TracingOptions& options) {
  std::map<std::string, std::string> resource = {
      {"telemetry.sdk.language", "cpp"},
      {"telemetry.sdk.name", "penstock"},
      {"telemetry.sdk.version", options.service_version},
  };
  if (!options.service_version.empty()) resource["service.version"] = options.service_version;
  for (const auto& [key, value] : options.resource_attributes) resource[key] = value;
  resource["service.name"] = options.service_name;
  return resource;
}

template <size_t N>
std::string hex_of(const std::array<uint8_t, N>& id) {
  std::string out;
  for (const uint8_t byte : id) out += fmt::format("{:02x}", byte);
  return out;
}

std::string json_of(const SpanValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return json_quote(*text);
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  std::string out = "[";
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& item : *texts) out += (out.size() > 1 ? "," : "") + json_quote(item);
  } else if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
    for (const double item : *numbers) out += fmt::format("{}{}", out.size() > 1 ? "," : "", item);
  }
  return out + "]";
}

// RFC 3339 with nanoseconds, UTC.
std::string time_text(WallTime time) {
  const uint64_t nanos = unix_nanos(time);
  const auto seconds = static_cast<std::time_t>(nanos / 1'000'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, nanos % 1'000'000'000);
}

// --- exporters ---

class ConsoleExporter final : public SpanExporter {
 public:
  explicit ConsoleExporter(const TracingOptions& options) : options_(options) {}
  Answer send(std::span<const SpanBatch> batches, Duration) override {
    const std::string lines = encode_console(options_, batches);
    const bool written = std::fwrite(lines.data(), 1, lines.size(), stdout) == lines.size();
    if (std::fflush(stdout) == 0 && written) return {};
    return {Outcome::kRefused, Duration(0), "standard output takes nothing"};
  }

 private:
  const TracingOptions options_;
};

// What went wrong before there was an answer: another try may find the collector there.
Answer retry(const Error& error) {
  return {Outcome::kRetry, Duration(0), error.message};
}

void note_partial_success(std::string_view body) {
  otlp::collector::trace::v1::ExportTraceServiceResponse response;
  if (!response.ParseFromArray(body.data(), static_cast<int>(body.size()))) return;
  if (response.partial_success().rejected_spans() == 0) return;
  log_warn("the collector refused some spans", {{"spans", response.partial_success().rejected_spans()},
                                                {"error", response.partial_success().error_message()}});
}

// Over the house's own client, on a loop that runs only while a batch is sent.
class OtlpExporter final : public SpanExporter {
 public:
  OtlpExporter(const TracingOptions& options, io::HttpDestination destination, std::string target)
      : options_(options), destination_(std::move(destination)), target_(std::move(target)), client_(loop_) {
    for (const auto& [name, value] : options_.headers) fields_.push_back({name, value});
  }

  Answer send(std::span<const SpanBatch> batches, Duration timeout) override {
    const std::string body = encode_otlp(options_, batches);
    const bool grpc = options_.exporter == TracingOptions::Exporter::kOtlpGrpc;
    Answer answer = io::block_on(loop_, grpc ? send_grpc(body, timeout) : send_http(body, timeout));
    client_.drop_idle();
    return answer;
  }
  void interrupt() override {
    loop_.post([this] { interrupted_.cancel(); });
  }

 private:
  io::Task<Answer> send_http(std::string_view body, Duration timeout) {
    std::vector<io::HeaderField> fields = fields_;
    fields.push_back({"content-type", "application/x-protobuf"});
    io::HttpRequest request;
    request.method = "POST";
    request.target = target_;
    request.fields = fields;
    request.framing = io::BodyFraming::of_length(body.size());
    request.body = std::span<const std::string_view>(&body, 1);
    io::CancelSource expired;
    expired.follow(interrupted_.token());
    io::Timer timer(loop_);
    timer.arm(timeout, [](void* source) { static_cast<io::CancelSource*>(source)->cancel(); }, &expired);
    io::HttpCallOptions options;
    options.connect_timeout = timeout;
    options.first_byte_timeout = timeout;
    options.token = expired.token();
    Result<io::HttpCall> call = co_await client_.start(destination_, request, options);
    if (!call.ok()) co_return retry(call.error());
    Result<const io::ResponseHead*> head = co_await call->response();
    if (!head.ok()) co_return retry(head.error());
    const int status = (*head)->status;
    const std::optional<uint64_t> retry_after = parse_u64((*head)->fields.get("retry-after"));
    Result<std::span<char>> answer = co_await call->read_all(kMaxAnswerBytes);
    if (status >= 200 && status < 300) {
      if (answer.ok()) note_partial_success({answer->data(), answer->size()});
      co_return Answer{};
    }
    Answer refused;
    const bool again = status == 429 || (status >= 502 && status <= 504);
    refused.outcome = again ? Outcome::kRetry : Outcome::kRefused;
    refused.retry_after = std::chrono::seconds(std::min<uint64_t>(retry_after.value_or(0), 3600));
    refused.why = "HTTP status " + std::to_string(status);
    co_return refused;
  }

  io::Task<Answer> send_grpc(std::string_view body, Duration timeout) {
    io::GrpcCallOptions options;
    options.timeout = timeout;
    options.connect_timeout = timeout;
    options.metadata = fields_;
    options.token = interrupted_.token();
    const io::GrpcPieces message(&body, 1);
    const io::GrpcReply reply = co_await io::grpc_unary(client_, destination_, kGrpcPath, message, options);
    if (reply.status.ok()) {
      note_partial_success(reply.message);
      co_return Answer{};
    }
    Answer refused;
    switch (reply.status.code) {
      case io::GrpcCode::kCancelled:
      case io::GrpcCode::kDeadlineExceeded:
      case io::GrpcCode::kAborted:
      case io::GrpcCode::kOutOfRange:
      case io::GrpcCode::kUnavailable:
      case io::GrpcCode::kDataLoss:
        refused.outcome = Outcome::kRetry;
        break;
      default:
        refused.outcome = Outcome::kRefused;
    }
    refused.why = fmt::format("{}: {}", io::grpc_code_name(reply.status.code), reply.status.message);
    co_return refused;
  }

  const TracingOptions options_;
  const io::HttpDestination destination_;
  const std::string target_;
  std::vector<io::HeaderField> fields_;  // views into options_
  io::Loop loop_;
  io::HttpClient client_;
  io::CancelSource interrupted_;
};

}  // namespace

std::string encode_otlp(const TracingOptions& options, std::span<const SpanBatch> batches) {
  otlp::collector::trace::v1::ExportTraceServiceRequest request;
  otlp::trace::v1::ResourceSpans& all = *request.add_resource_spans();
  for (const auto& [key, value] : resource_of(options))
    set_text(*all.mutable_resource()->add_attributes(), key, value);
  std::map<std::string_view, otlp::trace::v1::ScopeSpans*> scopes;
  for (const SpanBatch& batch : batches) {
    for (const Span& span : batch.spans) {
      otlp::trace::v1::ScopeSpans*& scope = scopes[span.scope];
      if (scope == nullptr) {
        scope = all.add_scope_spans();
        scope->mutable_scope()->set_name(std::string(span.scope));
        scope->mutable_scope()->set_version(options.service_version);
        if (!options.commit.empty())
          set_text(*scope->mutable_scope()->add_attributes(), "commit-sha", options.commit);
      }
      fill_span(*scope->add_spans(), batch, span, &span == batch.spans.data());
    }
  }
  return request.SerializeAsString();
}

std::string encode_console(const TracingOptions& options, std::span<const SpanBatch> batches) {
  constexpr std::array<std::string_view, 4> kKinds = {"unspecified", "internal", "server", "client"};
  std::string out;
  for (const SpanBatch& batch : batches) {
    for (const Span& span : batch.spans) {
      out += fmt::format(
          "{{\"Name\":{},\"SpanContext\":{{\"TraceID\":\"{}\",\"SpanID\":\"{}\",\"TraceFlags\":\"{:02x}\","
          "\"TraceState\":{}}},\"ParentSpanID\":\"{}\",\"SpanKind\":\"{}\",\"StartTime\":\"{}\",\"EndTime\":"
          "\"{}\"",
          json_quote(span.name), hex_of(batch.trace_id), hex_of(span.id), batch.flags,
          json_quote(batch.tracestate), is_zero(span.parent_id) ? "" : hex_of(span.parent_id),
          kKinds[static_cast<size_t>(span.kind)], time_text(span.start), time_text(span.end));
      out += ",\"Attributes\":{";
      bool first = true;
      for (const SpanAttribute& attribute : span.attributes) {
        out += fmt::format("{}{}:{}", first ? "" : ",", json_quote(attribute.key), json_of(attribute.value));
        first = false;
      }
      out += fmt::format("}},\"Status\":{{\"Code\":\"{}\",\"Description\":{}}}",
                         span.failed ? "Error" : "Unset", json_quote(span.error));
      out += fmt::format(",\"Service\":{},\"Scope\":{}}}\n", json_quote(options.service_name),
                         json_quote(span.scope));
    }
  }
  return out;
}

Result<std::unique_ptr<SpanExporter>> make_span_exporter(const TracingOptions& options) {
  using Made = std::unique_ptr<SpanExporter>;
  switch (options.exporter) {
    case TracingOptions::Exporter::kNone:
      return Made();
    case TracingOptions::Exporter::kConsole:
      return Made(std::make_unique<ConsoleExporter>(options));
    case TracingOptions::Exporter::kOtlpGrpc:
    case TracingOptions::Exporter::kOtlpHttp:
      break;
  }
  const bool grpc = options.exporter == TracingOptions::Exporter::kOtlpGrpc;
  std::string endpoint = options.endpoint;
  if (endpoint.empty()) endpoint = grpc ? "http://localhost:4317" : "http://localhost:4318/v1/traces";
  Result<io::HttpUrl> url = io::parse_url(endpoint);
  if (!url.ok()) return invalid_config("endpoint '" + endpoint + "': " + url.error().message);
  io::HttpDestination destination(url->host, url->port);
  if (url->https) {
    io::TlsClientOptions tls;
    tls.ca_file = options.ca_file;
    tls.certificate_file = options.client_certificate_file;
    tls.key_file = options.client_key_file;
    tls.alpn = {grpc ? "h2" : "http/1.1"};
    auto context = io::TlsClientContext::create(std::move(tls));
    if (!context.ok()) return std::move(context).error();
    destination.tls = *std::move(context);
  }
  return Made(std::make_unique<OtlpExporter>(options, std::move(destination), url->target));
}

}  // namespace penstock::telemetry
