#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "discovery/optional_kind.h"
#include "kubernetes/reflector.h"
#include "kubernetes/resource.h"

namespace penstock::discovery {

// What pages say of a resource that is followed: {"resource","version","state","objects",…}. The state is
// followed, partial (objects were left out for a limit), stale, unknown (never seen whole) or absent.
std::string resource_json(const kubernetes::Resource& resource,
                          const std::optional<kubernetes::ReflectorState>& state);
// The same of one that the cluster may not have.
std::string resource_json(const OptionalKind& kind, const std::optional<kubernetes::ReflectorState>& state);

}  // namespace penstock::discovery
