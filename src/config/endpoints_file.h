#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/node.h"

namespace penstock::config {

// One endpoint as a file or a command line names it. The reference's file-discovery format, and more:
//
//   endpoints:
//     - name: vllm-0            # default: "<address>-<port>"
//       namespace: ns1          # default "default"
//       address: "10.0.0.1"     # IPv4, IPv6 without brackets, or a host name
//       port: "8000"            # a string or a number; absent: the pool's targetPorts decide
//       labels: {llm-d.ai/role: decode}
//     - url: https://engine-1.example.com:8443   # instead of address and port
//       draining: true                           # gets no new work
struct EndpointEntry {
  std::string name;
  std::string ns = "default";
  std::string address;
  uint16_t port = 0;  // 0: not named
  bool tls = false;   // from an https url
  bool draining = false;
  std::map<std::string, std::string, std::less<>> labels;
  int line = 0;

  // "<namespace>/<name>"
  std::string id() const { return ns + "/" + name; }
  friend bool operator==(const EndpointEntry&, const EndpointEntry&) = default;
};

struct EndpointsFile {
  std::vector<EndpointEntry> endpoints;  // in the order of the file; ids are unique
  std::vector<std::string> warnings;     // unknown fields, ids given twice (the last one counts), no entry
};

// Upper bound of an endpoints file, as the reference has it.
inline constexpr size_t kMaxEndpointsFileBytes = 1 << 20;

// An IP literal without brackets, or a host name (RFC 1123; a name of digits and dots only is none).
bool is_address(const std::string& text);

// Decodes the text of an endpoints file, YAML or JSON. All or nothing: a file with one bad entry is an
// error that names every bad entry, so that a watcher keeps the last good set. A document without
// "endpoints", or with null there, is an error too: "endpoints: []" is how a file says that there are none.
Result<EndpointsFile> decode_endpoints(std::string_view text, std::string_view source);
Result<EndpointsFile> load_endpoints(const std::string& path);

// "http://127.0.0.1:8001", "https://engine.example.com", "127.0.0.1:8001", "[::1]:8000": what
// --model-server and discovery.static take. The port is the scheme's when absent. The name is
// "<host>-<port>" with characters a name can't hold replaced by '-'.
Result<EndpointEntry> parse_endpoint_url(std::string_view url);

}  // namespace penstock::config
