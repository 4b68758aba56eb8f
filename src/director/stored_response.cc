#include "director/stored_response.h"

namespace penstock::director {

std::string_view stored_response_id(std::string_view method, std::string_view path) {
  constexpr std::string_view kBefore = "/v1/responses/";
  const size_t at = path.find(kBefore);
  if (at == std::string_view::npos) return {};
  std::string_view rest = path.substr(at + kBefore.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t slash = rest.find('/');
  const std::string_view id = rest.substr(0, slash);
  const std::string_view tail = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  const bool reads = method == "GET" || method == "HEAD";
  if (tail.empty() && (reads || method == "DELETE")) return id;
  if (tail == "input_items" && reads) return id;
  if (tail == "cancel" && method == "POST") return id;
  return {};
}

}  // namespace penstock::director
