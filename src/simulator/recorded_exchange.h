#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/source_path_testing.h"
#include "base/strings.h"

namespace penstock::simulator::recorded {

// Test support: one recorded exchange of the real engine, heads and bodies apart, chunks joined.
struct Exchange {
  std::string request_target;
  std::string request_body;
  int status = 0;
  std::string content_type;
  std::string body;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::string join_chunks(std::string_view framed) {
  std::string out;
  while (!framed.empty()) {
    const size_t line = framed.find("\r\n");
    const size_t size = std::stoul(std::string(framed.substr(0, line)), nullptr, 16);
    if (size == 0) break;
    out += framed.substr(line + 2, size);
    framed.remove_prefix(line + 2 + size + 2);
  }
  return out;
}

// `name` as in tests/vectors/vllm-0.32.0: "http/chat".
inline Exchange load(const std::string& name) {
  const std::string base = source_path("tests/vectors/vllm-0.32.0/") + name;
  Exchange out;
  const std::string request = read_file(base + ".request");
  const size_t request_end = request.find("\r\n\r\n");
  const size_t target = request.find(' ') + 1;
  out.request_target = request.substr(target, request.find(' ', target) - target);
  out.request_body = request.substr(request_end + 4);
  const std::string response = read_file(base + ".response");
  const size_t head_end = response.find("\r\n\r\n");
  out.status = std::stoi(response.substr(9, 3));
  const std::string head = ascii_lower(response.substr(0, head_end + 2));
  if (const size_t at = head.find("content-type: "); at != std::string::npos)
    out.content_type = head.substr(at + 14, head.find("\r\n", at) - at - 14);
  out.body = response.substr(head_end + 4);
  if (head.find("transfer-encoding: chunked") != std::string::npos) out.body = join_chunks(out.body);
  return out;
}

}  // namespace penstock::simulator::recorded
