#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "inference/request.h"

// What is received of envoy.service.ext_proc.v3, read in place: a body is a view into the message it came in.
// Contract: external_processor.proto (src/proto/envoy/…). Of members that occur twice the last counts;
// unknown fields are skipped; text is taken as bytes.
namespace penstock::extproc {

// envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode.
enum class BodyMode : uint8_t {
  kNone = 0,
  kStreamed = 1,
  kBuffered = 2,
  kBufferedPartial = 3,
  kFullDuplexStreamed = 4,
};
inline constexpr size_t kBodyModes = 5;
std::string_view body_mode_name(BodyMode mode);

struct ProtocolConfig {
  uint64_t request_body_mode = 0;  // a BodyMode, or one this build doesn't know
  uint64_t response_body_mode = 0;
  bool send_body_without_waiting = false;
};

enum class Part : uint8_t {
  kNothing,  // no member of the oneof is set
  kRequestHeaders,
  kResponseHeaders,
  kRequestBody,
  kResponseBody,
  kRequestTrailers,
  kResponseTrailers,
};

// One ProcessingRequest. Views into the message.
struct Incoming {
  Part part = Part::kNothing;
  std::string_view content;   // of the part
  std::string_view metadata;  // of metadata_context
  std::optional<ProtocolConfig> protocol_config;
  bool observability_mode = false;
};
// False: no valid protobuf.
bool decode(std::string_view message, Incoming& out);

// HttpHeaders, appended to `fields`: the value is raw_value unless that is empty.
bool decode_headers(std::string_view content, std::vector<HeaderField>& fields, bool& end_of_stream);
// HttpBody.
bool decode_body(std::string_view content, std::string_view& body, bool& end_of_stream);

// A google.protobuf.Value inside filter_metadata[ns][key] of an envoy.config.core.v3.Metadata: its bytes.
// Nothing when absent or malformed.
std::optional<std::string_view> find_metadata(std::string_view metadata, std::string_view ns,
                                              std::string_view key);
// Whether there is anything of this namespace.
bool has_metadata(std::string_view metadata, std::string_view ns);
// attributes["envoy.filters.http.ext_proc"][key] of a ProcessingRequest.
std::optional<std::string_view> find_attribute(std::string_view message, std::string_view key);
// The text of a Value; nothing when it is something else.
std::optional<std::string_view> value_text(std::string_view value);
// Calls `each` for every text in a Value that is a list; false, and nothing is called, when it is no list.
bool each_text(std::string_view value, const std::function<void(std::string_view)>& each);

}  // namespace penstock::extproc
