#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "inference/notifications.h"

namespace penstock::discovery {

// The objects of one kind from one place, as they are and change. Ends with its destruction: then whoever it
// tells is not being told, and won't be. Not to be destroyed by whom it tells, while it does.
class ObjectFeed {
 public:
  virtual ~ObjectFeed() = default;
  // Null until they were seen whole. Any thread.
  virtual std::shared_ptr<const NotifiedObjects> objects() const = 0;
  // How they are known, an object of JSON. Any thread.
  virtual std::string state_json() const = 0;
};

// Objects of a cluster that somebody wants to be told of.
struct ObjectQuery {
  ObjectKind kind;
  std::string ns;                   // "": of all namespaces
  std::vector<std::string> fields;  // kept of each, as ObjectExtractor::object_fields() has them; ascending
  size_t max_objects = 20'000;
  size_t max_bytes = size_t{128} << 20;  // in memory

  friend bool operator==(const ObjectQuery&, const ObjectQuery&) = default;
};

// Who can follow a cluster's objects. Any thread but those that it tells on.
class ObjectFollower {
 public:
  virtual ~ObjectFollower() = default;
  // `changed` is called on one thread, after objects() gives others, until the feed ends. The follower
  // outlives its feeds.
  virtual std::unique_ptr<ObjectFeed> follow(ObjectQuery query, std::function<void()> changed) = 0;
};

}  // namespace penstock::discovery
