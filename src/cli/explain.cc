#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/strings.h"
#include "cli/commands.h"
#include "io/http_client.h"

namespace penstock::cli {

namespace {

struct ExplainFlags {
  std::string admin = "http://127.0.0.1:9090";
  std::string body_file;
  std::string path = "/v1/chat/completions";
  std::vector<std::string> headers;
};

std::string percent_encode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '/' || c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kHex[static_cast<unsigned char>(c) >> 4U];
      out += kHex[static_cast<unsigned char>(c) & 0xFU];
    }
  }
  return out;
}

int explain(const ExplainFlags& flags) {
  std::string body;
  if (flags.body_file == "-") {
    body.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    std::ifstream file(flags.body_file, std::ios::binary);
    if (!file) {
      complain("cannot read --body '" + flags.body_file + "'");
      return kFailed;
    }
    body.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::vector<std::pair<std::string, std::string>> owned{{"content-type", "application/json"}};
  for (const std::string& header : flags.headers) {
    const size_t colon = header.find(':');
    if (colon == std::string::npos || colon == 0) {
      complain("--header '" + header + "': wanted 'name: value'");
      return kUsage;
    }
    owned.emplace_back(ascii_lower(trim(std::string_view(header).substr(0, colon))),
                       trim(std::string_view(header).substr(colon + 1)));
  }
  std::vector<io::HeaderField> fields;
  for (const auto& [name, value] : owned) fields.push_back({name, value});
  std::string base = flags.admin;
  if (base.find("://") == std::string::npos) base = "http://" + base;
  while (base.ends_with('/')) base.pop_back();
  const std::string url = base + "/debug/explain?path=" + percent_encode(flags.path);
  const auto answer = io::http_request_blocking("POST", url, body, fields);
  if (!answer.ok()) {
    complain(base + ": " + answer.error().message);
    return kFailed;
  }
  std::fwrite(answer->body.data(), 1, answer->body.size(), answer->status == 200 ? stdout : stderr);
  if (!answer->body.ends_with('\n')) std::fputc('\n', answer->status == 200 ? stdout : stderr);
  return answer->status == 200 ? kOk : kFailed;
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("explain",
                                     "Ask a running penstock where a body would go, without sending it on: "
                                     "candidates, filters, each score with "
                                     "its inputs, units and ages, and the winner.");
  auto flags = std::make_shared<ExplainFlags>();
  command->add_option("--admin", flags->admin, "Admin address of the running process")->capture_default_str();
  command->add_option("--body", flags->body_file, "File with the request body, '-' for standard input")
      ->required();
  command->add_option("--path", flags->path, "Path the request would be sent to")->capture_default_str();
  command->add_option("--header", flags->headers, "Header of the request, 'name: value'; repeatable");
  command->footer("Example: penstock explain --admin http://127.0.0.1:9090 --body request.json");
  command->callback([flags, &exit_code] { exit_code = explain(*flags); });
}

}  // namespace penstock::cli
