#include "discovery/file_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "config/files.h"
#include "telemetry/log.h"

namespace penstock::discovery {

namespace {

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

Status FileWatch::start() {
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0) return Error{ErrorCode::kIo, "watching " + options_.path + ": eventfd failed"};
  thread_ = std::thread([this] { run(); });
  return {};
}

void FileWatch::stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof one);
    thread_.join();
  }
  if (stop_fd_ >= 0) close(stop_fd_);
  stop_fd_ = -1;
}

void FileWatch::run() {
  const int watch = open_watch(options_.path);
  if (watch < 0) {
    telemetry::log_warn("a file can't be watched, polling it",
                        {{"path", options_.path}, {"interval", to_seconds(options_.poll_interval)}});
  }
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
      if (unsettled) changed_();
      unsettled = false;
      timeout = options_.poll_interval;
    }
  }
  if (watch >= 0) close(watch);
}

}  // namespace penstock::discovery
