#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "discovery/object_feed.h"
#include "discovery/object_file.h"
#include "discovery/plugins.h"
#include "inference/notifications.h"

namespace penstock::assembly {

// Who is told of the objects of one kind: all extractors of it, whether a source names them or not.
struct ObjectSource {
  const discovery::ObjectSourcePlugin* source = nullptr;
  std::vector<const ObjectExtractor*> extractors;
};
// Of a policy's plugins, in their order.
std::vector<ObjectSource> object_sources(const std::vector<std::unique_ptr<Plugin>>& plugins);
// What of an API server such a source wants. REQUIRES: it has no path.
discovery::ObjectQuery object_query(const ObjectSource& source, std::string_view pool_namespace);

// Where the sources of a pool's policies have their objects from: files, and the API server where there is
// one. Policies of several epochs share what is equal. open() and what follows it one at a time; tell() and
// state_json() on any thread.
class ObjectFeeds {
 public:
  // `changed`: somebody is to be told; from the feeds' threads, until they are closed.
  ObjectFeeds(std::string pool_namespace, std::function<void()> changed);
  ~ObjectFeeds();  // close()

  // Follows the objects of an API server too, from the next open() on. It outlives what is open.
  void use(discovery::ObjectFollower& cluster) { cluster_ = &cluster; }
  bool uses_cluster() const { return cluster_ != nullptr; }
  // Has what the policy's sources want: what there was, and new feeds. A file that can't be read is an error,
  // and then there is what was before.
  Status open(const std::vector<std::unique_ptr<Plugin>>& plugins);
  // Ends what the policy does not want.
  void keep_only(const std::vector<std::unique_ptr<Plugin>>& plugins);
  // Watches files from now on.
  Status start();
  // Reads files again. The first failure; there the last good objects stay.
  Status reload();
  void close();

  // Tells the policy's extractors of what is known.
  void tell(const std::vector<std::unique_ptr<Plugin>>& plugins) const;
  // How the objects of this source are known, JSON; nothing: by no feed.
  std::optional<std::string> state_json(const discovery::ObjectSourcePlugin& source) const;

 private:
  struct Open {
    discovery::ObjectSourceParams params;
    std::optional<discovery::ObjectQuery> query;  // of the API server
    std::unique_ptr<discovery::ObjectFeed> feed;
    discovery::ObjectFile* file = nullptr;  // `feed`, where it is one
  };
  bool is_of(const Open& open, const ObjectSource& source) const;
  const Open* find(const ObjectSource& source) const;  // under mutex_

  const std::string pool_namespace_;
  const std::function<void()> changed_;
  discovery::ObjectFollower* cluster_ = nullptr;
  bool started_ = false;
  mutable std::mutex mutex_;
  std::vector<Open> open_;
};

}  // namespace penstock::assembly
