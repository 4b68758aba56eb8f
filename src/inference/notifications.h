#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/node.h"
#include "inference/plugin.h"

// Objects of the Kubernetes API that plugins are told of. Where they come from is the source's affair: a file
// (discovery/object_file.h), or a client of the API.
namespace penstock {

struct ObjectKind {
  std::string group;  // "" is the core group
  std::string version;
  std::string kind;

  // "v1/Pod", "apps/v1/Deployment"
  std::string text() const { return (group.empty() ? "" : group + "/") + version + "/" + kind; }
  friend bool operator==(const ObjectKind&, const ObjectKind&) = default;
};

struct NotifiedObject {
  std::string ns;
  std::string name;
  config::Node object;  // as it is written, a map
};
// All there are of one kind, ascending by namespace, then name.
using NotifiedObjects = std::vector<NotifiedObject>;

// Makes something of objects of one kind.
class ObjectExtractor : public virtual Plugin {
 public:
  virtual ObjectKind object_kind() const = 0;
  // All there are now; again whenever that changes. From one thread at a time, not a loop; the objects live
  // as long as the call. Never called: nobody tells of the kind.
  virtual void objects(const NotifiedObjects& all) const = 0;
};

// Follows the members of the pool by their snapshots. An endpoint-notification-source may name it, as it may
// an EndpointObserver; both do what they do whether one names them or not.
class EndpointExtractor : public virtual Plugin {};

}  // namespace penstock
