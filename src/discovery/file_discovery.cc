#include "discovery/file_discovery.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "base/hash.h"
#include "base/strings.h"
#include "config/files.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

constexpr size_t kDumpedEndpoints = 100;

// What of a file changes when it does.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = -1;
  int64_t modified_ns = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

Identity identity_of(const std::string& path) {
  struct stat s{};
  if (stat(path.c_str(), &s) != 0) return {};
  return {s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec * 1000000000LL + s.st_mtim.tv_nsec};
}

int milliseconds(Duration d) {
  return static_cast<int>(std::max<int64_t>(1, d.count() / 1000000));
}

void drain(int fd) {
  alignas(inotify_event) std::array<char, 4096> buffer;
  while (read(fd, buffer.data(), buffer.size()) > 0) {
  }
}

// Watches the file's folder, or nothing where the system can't.
int open_watch(const std::string& path) {
  const int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (fd < 0) return -1;
  const std::string folder = config::folder_of(path);
  const uint32_t events = IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE;
  if (inotify_add_watch(fd, folder.empty() ? "." : folder.c_str(), events) < 0) {
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

FileDiscovery::FileDiscovery(FileDiscoveryOptions options, EndpointSink& sink)
    : options_(std::move(options)), source_("file " + options_.path), sink_(sink) {}

FileDiscovery::~FileDiscovery() {
  stop();
}

Status FileDiscovery::start() {
  if (Status status = load(true); !status.ok())
    return std::move(status).error().wrap("file-discovery: initial load failed");
  if (options_.watch) {
    stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd_ < 0) return Error{ErrorCode::kIo, "file-discovery: eventfd failed"};
    thread_ = std::thread([this] { watch_loop(); });
  }
  return {};
}

void FileDiscovery::stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof one);
    thread_.join();
  }
  if (stop_fd_ >= 0) close(stop_fd_);
  stop_fd_ = -1;
}

Status FileDiscovery::reload() {
  return load(false);
}

Status FileDiscovery::load(bool first) {
  const std::lock_guard lock(mutex_);
  const auto fail = [&](Error error) -> Status {
    if (error.message != last_error_) {
      ++stats_.failures;
      last_error_ = error.message;
      if (!first) {
        telemetry::log_error("endpoints file can't be used, the last good endpoints stay",
                             {{"path", options_.path}, {"endpoints", ids_.size()}, {"error", error.message}});
      }
    }
    return error;
  };
  auto text = config::read_file(options_.path, config::kMaxEndpointsFileBytes);
  if (!text.ok()) return fail(std::move(text).error());
  const uint64_t hash = hash_of(*text);
  if (loaded_ && hash == content_hash_) {
    last_error_.clear();
    return {};
  }
  auto file = config::decode_endpoints(*text, options_.path);
  if (!file.ok()) return fail(std::move(file).error());

  std::vector<DiscoveredEndpoint> endpoints;
  ids_.clear();
  for (const config::EndpointEntry& entry : file->endpoints) {
    endpoints.push_back(from_entry(entry));
    if (endpoints.back().tls) endpoints.back().tls_name = options_.tls_name;
    ids_.push_back(entry.id());
  }
  std::sort(ids_.begin(), ids_.end());
  constexpr size_t kMaxTold = 10;
  for (size_t i = 0; i < file->warnings.size() && i < kMaxTold; ++i)
    telemetry::log_warn("endpoints file", {{"path", options_.path}, {"warning", file->warnings[i]}});
  if (file->warnings.size() > kMaxTold) {
    telemetry::log_warn("endpoints file has more warnings",
                        {{"path", options_.path}, {"count", file->warnings.size() - kMaxTold}});
  }
  loaded_ = true;
  content_hash_ = hash;
  last_error_.clear();
  ++stats_.loads;
  telemetry::log_info("endpoints file loaded", {{"path", options_.path}, {"endpoints", ids_.size()}});
  sink_.endpoints(source_, endpoints);
  return {};
}

void FileDiscovery::watch_loop() {
  const int watch = open_watch(options_.path);
  if (watch < 0) {
    telemetry::log_warn("endpoints file can't be watched, polling it",
                        {{"path", options_.path}, {"interval", to_seconds(options_.poll_interval)}});
  }
  // The first look happens right away: the file may have changed since start() read it.
  Identity seen;
  bool unsettled = false;
  std::array<pollfd, 2> fds{{{stop_fd_, POLLIN, 0}, {watch, POLLIN, 0}}};
  const nfds_t count = watch < 0 ? 1 : 2;
  Duration timeout = Duration(1);
  while (true) {
    const int ready = poll(fds.data(), count, milliseconds(timeout));
    if (ready < 0 && errno != EINTR) break;
    if ((fds[0].revents & POLLIN) != 0) break;
    if (count == 2 && (fds[1].revents & (POLLIN | POLLERR)) != 0) drain(watch);
    const Identity now = identity_of(options_.path);
    if (now != seen) {
      seen = now;
      unsettled = true;
      timeout = options_.settle;
    } else {
      if (unsettled) (void)load(false);  // says itself what is wrong
      unsettled = false;
      timeout = options_.poll_interval;
    }
  }
  if (watch >= 0) close(watch);
}

FileDiscovery::Stats FileDiscovery::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string FileDiscovery::state_json() const {
  const std::lock_guard lock(mutex_);
  std::string out = "{\"endpoints\":[";
  for (size_t i = 0; i < std::min(ids_.size(), kDumpedEndpoints); ++i) {
    if (i > 0) out += ',';
    append_json_quoted(out, ids_[i]);
  }
  return out + fmt::format("],\"totalEndpoints\":{},\"maxEndpoints\":{}}}", ids_.size(), kDumpedEndpoints);
}

}  // namespace penstock::discovery
