#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "discovery/object_feed.h"
#include "io/task.h"
#include "kubernetes/api_client.h"
#include "kubernetes/reflector.h"
#include "telemetry/metrics.h"

namespace penstock::discovery {

// The label of series that belong to objects which plugins are told of: "v1/Pod in <namespace>",
// "apps/v1/Deployment" of all.
inline constexpr std::string_view kSourceLabel = "notification_source";

// Objects of any kind that an API server has, for plugins. Equal queries are one watch, however many pools
// and policy epochs ask, for as long as one of them does. The resource's name is found by discovery, and
// looked for again where it is not there; who may not read it is told so by state and log, and tries again.
//
// What is kept of an object are the fields that were asked for; a change in others is none. What is told is
// the whole picture; changes that come within `gather` are one, and telling takes no more than a tenth of the
// thread. Nothing that happens to the server clears a picture.
//
// Made before the client's loop runs, ends after it. Feeds may be had and end on any thread but the loop's.
class KubernetesObjects final : public ObjectFollower {
 public:
  struct Options {
    kubernetes::ReflectorOptions watch;  // times
    Duration look_again = std::chrono::seconds(60);
    Duration gather = std::chrono::milliseconds(20);
  };
  // `registry` is the process's. `state_changed`: on the loop, when state_json() says more than other times.
  KubernetesObjects(kubernetes::ApiClient& api, telemetry::MetricRegistry& registry, Options options,
                    std::function<void()> state_changed);
  ~KubernetesObjects() override;
  KubernetesObjects(const KubernetesObjects&) = delete;
  KubernetesObjects& operator=(const KubernetesObjects&) = delete;

  std::unique_ptr<ObjectFeed> follow(ObjectQuery query, std::function<void()> changed) override;

  // --- any thread ---
  // Of each it is known what there is, or that it can't be known. What is asked for after it was true for the
  // first time does not count.
  bool settled() const;
  // Objects of JSON with commas between them: "source", as kSourceLabel, and what resource_json() says.
  std::string state_json() const;

 private:
  struct Watched;
  struct Listener;
  class Feed;

  std::string label_of(const ObjectQuery& query) const;  // under mutex_
  void begin(Watched& watched);
  void leave(Watched& watched, const std::shared_ptr<Listener>& listener);
  io::Task<void> bury(Watched& watched);
  void tell(Watched& watched);

  kubernetes::ApiClient& api_;
  telemetry::MetricRegistry& registry_;
  const Options options_;
  const std::function<void()> state_changed_;
  mutable std::atomic<bool> settled_{false};
  mutable std::mutex mutex_;  // of what follows, and of listeners
  std::vector<std::unique_ptr<Watched>> watched_;
  std::vector<std::unique_ptr<Watched>> ended_;  // until their tasks have ended
};

}  // namespace penstock::discovery
