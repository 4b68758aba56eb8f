#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "discovery/file_watch.h"
#include "discovery/source.h"

namespace penstock::discovery {

struct FileDiscoveryOptions {
  std::string path;
  bool watch = true;
  Duration poll_interval = std::chrono::seconds(1);  // FileWatch's
  Duration settle = std::chrono::milliseconds(50);
  std::string tls_name;  // server name of https endpoints; "" the address
  // Labels metricsAddress and metricsPort say where an endpoint's metrics are; without the address the other
  // counts for nothing.
  bool metrics_labels = false;
};

// Endpoints from a file (config/endpoints_file.h), read again when it changes (file_watch.h).
//
// A change takes effect whole or not at all: unlike the reference, which lets one bad entry delete that
// endpoint, a file with an error - or one that is gone, or suddenly empty - leaves the last good set in
// place and is logged once with the entry and the line. Unchanged content is no change.
//
// Owns one thread while watching; the sink is called from start() and from that thread.
class FileDiscovery {
 public:
  // The sink outlives it.
  FileDiscovery(FileDiscoveryOptions options, EndpointSink& sink);
  ~FileDiscovery();  // stop()
  FileDiscovery(const FileDiscovery&) = delete;
  FileDiscovery& operator=(const FileDiscovery&) = delete;

  // Reads the file and tells the sink; an error is the first load's. Then watches, when asked to.
  Status start();
  void stop();
  // Reads the file now (SIGHUP); any thread. The error, if any, is logged as for a watched change.
  Status reload();

  struct Stats {
    uint64_t loads = 0;     // successful ones that changed something
    uint64_t failures = 0;  // changes that could not be taken
  };
  Stats stats() const;
  // The state dump of the reference: {"endpoints":[sorted ids, at most 100],"totalEndpoints":n,
  // "maxEndpoints":100}.
  std::string state_json() const;

 private:
  Status load(bool first);

  const FileDiscoveryOptions options_;
  const std::string source_;
  EndpointSink& sink_;

  mutable std::mutex mutex_;  // loading and everything below
  uint64_t content_hash_ = 0;
  bool loaded_ = false;
  std::string last_error_;
  std::vector<std::string> ids_;
  Stats stats_;

  FileWatch watch_;  // the last member: it calls load()
};

}  // namespace penstock::discovery
