#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"

namespace penstock::discovery {

// Tells when a file may have changed: written in place, replaced by rename, or swapped behind a symbolic link
// as Kubernetes mounts do (inotify on the folder, and a look at the file's identity, size and time every
// poll_interval). Also once soon after start(): it may have changed since it was read.
class FileWatch {
 public:
  struct Options {
    std::string path;
    Duration poll_interval = std::chrono::seconds(1);  // where the system can't tell, and beside it
    // A change is told once the file was left alone for so long, so that a half-written one is not read.
    Duration settle = std::chrono::milliseconds(50);
  };
  // `changed` is called on the watch's own thread.
  FileWatch(Options options, std::function<void()> changed)
      : options_(std::move(options)), changed_(std::move(changed)) {}
  ~FileWatch() { stop(); }
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  Status start();
  // `changed` is not called any more; waits for a call that runs.
  void stop();

 private:
  void run();

  const Options options_;
  const std::function<void()> changed_;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace penstock::discovery
