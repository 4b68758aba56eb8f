#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "discovery/file_watch.h"
#include "discovery/object_feed.h"
#include "inference/notifications.h"

namespace penstock::discovery {

// The objects of one kind out of a file (config/objects_file.h), followed as it changes. As with endpoints, a
// change takes effect whole or not at all: a file with an error leaves the last good objects in place and is
// logged once. Objects of other kinds are left out.
class ObjectFile final : public ObjectFeed {
 public:
  struct Options {
    std::string path;
    ObjectKind kind;
    Duration poll_interval = std::chrono::seconds(1);
    Duration settle = std::chrono::milliseconds(50);
  };
  // `changed` is called on the watch's thread or reload()'s, after objects() gives the new ones.
  ObjectFile(Options options, std::function<void()> changed);

  const std::string& path() const { return options_.path; }
  const ObjectKind& kind() const { return options_.kind; }

  // Reads the file, and tells nobody. The first time an error is only returned.
  Status load();
  // Watches from now on. REQUIRES: load() has succeeded.
  Status start() { return watch_.start(); }
  void stop() { watch_.stop(); }
  // load(), and tells of what changed.
  Status reload();
  // Never null.
  std::shared_ptr<const NotifiedObjects> objects() const override;
  // {"path","state","objects","error"}: followed, stale (it can't be used as it is now) or unknown.
  std::string state_json() const override;

 private:
  Result<bool> read();  // true: there are others than before

  const Options options_;
  const std::function<void()> changed_;
  mutable std::mutex mutex_;
  bool loaded_ = false;
  uint64_t content_hash_ = 0;
  std::string last_error_;
  std::shared_ptr<const NotifiedObjects> objects_ = std::make_shared<NotifiedObjects>();
  FileWatch watch_;  // the last member: it calls reload()
};

}  // namespace penstock::discovery
