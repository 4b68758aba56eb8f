#include "config/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "config/node.h"

namespace penstock::config {

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  const auto io_error = [&] {
    return Error{ErrorCode::kIo, fmt::format("reading {}: {}", path, std::strerror(errno))};
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return io_error();
  std::string text;
  char block[16384];
  while (const size_t n = std::fread(block, 1, sizeof block, file.get())) {
    text.append(block, n);
    if (text.size() > max_bytes) {
      return invalid_config(fmt::format("{} exceeds the limit of {} bytes", path, max_bytes));
    }
  }
  if (std::ferror(file.get()) != 0) return io_error();
  return text;
}

Result<std::string> load_config_text(const std::string& path) {
  Result<std::string> text = read_file(path, ParseLimits{}.max_bytes);
  if (!text) return text.error().wrap(fmt::format("failed to load config from a file '{}'", path));
  return text;
}

std::string resolve_path(const std::string& folder, const std::string& path) {
  if (path.empty() || path.front() == '/' || folder.empty()) return path;
  return folder.back() == '/' ? folder + path : folder + "/" + path;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace penstock::config
