#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "io/http_client.h"
#include "io/loop.h"
#include "kubernetes/cluster_config.h"
#include "kubernetes/credentials.h"
#include "kubernetes/failure.h"
#include "kubernetes/resource.h"
#include "kubernetes/watch_decoder.h"
#include "telemetry/metrics.h"

namespace penstock::kubernetes {

struct ApiClientOptions {
  Duration connect_timeout = std::chrono::seconds(10);
  Duration request_timeout = std::chrono::seconds(30);  // one whole call but a watch
  size_t max_body_bytes = 64 << 20;                     // of an answer; a page of a list is one
  // Of a watch's line. etcd holds objects of at most 1.5 MiB; as JSON in two versions they may be larger.
  size_t max_event_bytes = 8 << 20;
  std::string user_agent = "penstock";  // up to a slash it is the name of our writes' field manager
};

// What a call gave: the object (or list) as text, or why there is none.
struct Answer {
  Failure failure;
  std::string body;
  bool ok() const { return failure.ok(); }
};

struct ListQuery {
  std::string label_selector;
  std::string field_selector;
  std::string resource_version;  // "" the newest there is
  std::string match;             // resourceVersionMatch, where a version is given
  int64_t limit = 0;             // 0: all
  std::string continue_token;
  bool metadata_only = false;  // PartialObjectMetadataList: of each object its metadata
};

struct WatchQuery {
  std::string label_selector;
  std::string field_selector;
  std::string resource_version;
  // A streaming list: all that there is as ADDED events, then a bookmark that says so, then changes.
  bool send_initial_events = false;
  Duration server_timeout = std::chrono::minutes(5);  // after which the server ends it
  // Without a byte from the server: then it counts as stalled. Bookmarks come about once a minute.
  Duration silence = std::chrono::seconds(130);
};

// Told of a watch's events on the client's loop.
class WatchListener {
 public:
  virtual ~WatchListener() = default;
  // False ends the watch.
  virtual bool on_event(const WatchEvent& event) = 0;
  // After the events of one receive.
  virtual void on_batch_end() = 0;
  // The watch was accepted; bytes have come.
  virtual void on_heard() = 0;
};

// How an object is changed in part.
enum class PatchType : uint8_t {
  kMerge,  // RFC 7396
  kJson,   // RFC 6902
  kApply,  // server-side apply
};

// Client of one API server, over HTTP/1.1: a connection for each watch, and a few that other calls share.
// Lives on one loop; all calls are made there and must have ended before it is destroyed. Coroutines only: a
// watch costs no thread.
//
// Names of verbs and resources in failures are those that RBAC knows: a refused list of pods reads
// `forbidden: list pods in namespace "a": …`.
class ApiClient {
 public:
  // `metrics` outlives it. kInvalidConfig: certificates can't be used.
  static Result<std::unique_ptr<ApiClient>> create(io::Loop& loop, ClusterConfig config,
                                                   telemetry::MetricRegistry& metrics,
                                                   ApiClientOptions options = {});
  ~ApiClient();

  // --- reading ---
  io::Task<Answer> get(Resource resource, std::string ns, std::string name, io::CancelToken token = {});
  // One page of a list; `ns` "": of all namespaces. What is behind it: metadata.continue.
  io::Task<Answer> list(Resource resource, std::string ns, const ListQuery& query,
                        io::CancelToken token = {});
  // Any other document: "/version", "/apis/llm-d.ai/v1alpha2".
  io::Task<Answer> get_path(std::string path, io::CancelToken token = {});
  // Until it ends: kNone when the server ended it in order or the listener did, kExpired when the version is
  // too old, kTimeout when it was silent for too long.
  io::Task<Failure> watch(Resource resource, std::string ns, const WatchQuery& query, WatchListener& listener,
                          io::CancelToken token);

  // --- writing; `body` is JSON ---
  io::Task<Answer> create_object(Resource resource, std::string ns, std::string body,
                                 io::CancelToken token = {});
  // PUT: the body's resourceVersion decides about conflicts. `subresource` "" or "status".
  io::Task<Answer> replace(Resource resource, std::string ns, std::string name, std::string subresource,
                           std::string body, io::CancelToken token = {});
  // `field_manager` and `force` are for kApply only.
  io::Task<Answer> patch(Resource resource, std::string ns, std::string name, std::string subresource,
                         PatchType type, std::string body, std::string field_manager = {}, bool force = false,
                         io::CancelToken token = {});
  io::Task<Answer> remove(Resource resource, std::string ns, std::string name, io::CancelToken token = {});
  // Reads the object, lets `change` make the new one of it (nothing: it is as it should be), writes it back;
  // again while others were faster, at most five times.
  using Change = std::function<Result<std::string>(Json object)>;
  io::Task<Answer> update(Resource resource, std::string ns, std::string name, std::string subresource,
                          Change change, io::CancelToken token = {});

  io::Loop& loop() { return loop_; }
  const ClusterConfig& config() const { return config_; }
  const ApiClientOptions& options() const { return options_; }

 private:
  struct Call;
  ApiClient(io::Loop& loop, ClusterConfig config, telemetry::MetricRegistry& metrics,
            ApiClientOptions options);
  io::Task<Answer> exchange(Call call);
  io::Task<Answer> exchange_once(const Call& call);
  io::Task<Failure> watch_once(const Call& call, const WatchQuery& query, WatchListener& listener);
  io::HttpDestination destination() const;
  Failure described(Failure failure, const Call& call) const;
  void count(const Call& call, const Failure& failure);

  io::Loop& loop_;
  const ClusterConfig config_;
  const ApiClientOptions options_;
  std::unique_ptr<Credentials> credentials_;
  io::HttpClient http_;
  telemetry::Family<telemetry::Counter>& requests_;
};

}  // namespace penstock::kubernetes
