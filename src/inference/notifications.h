#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/node.h"
#include "inference/plugin.h"

// Objects of the Kubernetes API that plugins are told of. Where they come from is the source's affair: a file
// (discovery/object_file.h), or the API server (discovery/kubernetes_objects.h).
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
  // A map: as a file has it; of the API server's, apiVersion, kind, metadata.namespace, metadata.name and the
  // fields that its extractors read.
  config::Node object;
};
// All there are of one kind, ascending by namespace, then name; never null.
using NotifiedObjects = std::vector<std::shared_ptr<const NotifiedObject>>;
// Puts them into that order.
void sort_objects(NotifiedObjects& objects);

// Makes something of objects of one kind.
class ObjectExtractor : public virtual Plugin {
 public:
  virtual ObjectKind object_kind() const = 0;
  // Which fields of an object it reads: others need not be kept. "metadata.labels" is the whole map; lists
  // are whole. None: all of them but metadata.managedFields.
  virtual std::vector<std::string> object_fields() const { return {}; }
  // All there are now; again whenever that changes. From one thread at a time, not a loop; the objects live
  // as long as the call. Never called: nobody tells of the kind.
  virtual void objects(const NotifiedObjects& all) const = 0;
};

// Follows the members of the pool by their snapshots. An endpoint-notification-source may name it, as it may
// an EndpointObserver; both do what they do whether one names them or not.
class EndpointExtractor : public virtual Plugin {};

}  // namespace penstock
