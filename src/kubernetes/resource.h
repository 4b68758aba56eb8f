#pragma once

#include <string>
#include <string_view>

namespace penstock::kubernetes {

// A kind of object as the API's paths name it. Texts are literals.
struct Resource {
  std::string_view group;  // "" core
  std::string_view version;
  std::string_view plural;
  std::string_view kind;
  bool namespaced = true;

  friend bool operator==(const Resource&, const Resource&) = default;
};

inline constexpr std::string_view kPoolGroup = "inference.networking.k8s.io";
inline constexpr std::string_view kLegacyGroup = "inference.networking.x-k8s.io";
inline constexpr std::string_view kLlmdGroup = "llm-d.ai";

inline constexpr Resource kPods{"", "v1", "pods", "Pod"};
inline constexpr Resource kEvents{"", "v1", "events", "Event"};
inline constexpr Resource kConfigMaps{"", "v1", "configmaps", "ConfigMap"};
inline constexpr Resource kInferencePools{kPoolGroup, "v1", "inferencepools", "InferencePool"};
inline constexpr Resource kLegacyInferencePools{kLegacyGroup, "v1alpha2", "inferencepools", "InferencePool"};
inline constexpr Resource kObjectives{kLlmdGroup, "v1alpha2", "inferenceobjectives", "InferenceObjective"};
inline constexpr Resource kLegacyObjectives{kLegacyGroup, "v1alpha2", "inferenceobjectives",
                                            "InferenceObjective"};
inline constexpr Resource kRewrites{kLlmdGroup, "v1alpha2", "inferencemodelrewrites",
                                    "InferenceModelRewrite"};
inline constexpr Resource kLegacyRewrites{kLegacyGroup, "v1alpha2", "inferencemodelrewrites",
                                          "InferenceModelRewrite"};
inline constexpr Resource kLeases{"coordination.k8s.io", "v1", "leases", "Lease"};
inline constexpr Resource kTokenReviews{"authentication.k8s.io", "v1", "tokenreviews", "TokenReview"};
inline constexpr Resource kSubjectAccessReviews{"authorization.k8s.io", "v1", "subjectaccessreviews",
                                                "SubjectAccessReview"};

// "pods", "inferencepools.inference.networking.k8s.io": as messages of the API name it.
std::string full_name(const Resource& resource);
// "v1", "llm-d.ai/v1alpha2".
std::string api_version(const Resource& resource);
// "/api/v1/namespaces/<ns>/pods", "/apis/<group>/<version>/<plural>" where `ns` is "".
std::string collection_path(const Resource& resource, std::string_view ns);
// The same of one object, and of its subresource ("status") where given.
std::string object_path(const Resource& resource, std::string_view ns, std::string_view name,
                        std::string_view subresource = {});
// Where a group's version lists its resources.
std::string discovery_path(std::string_view group, std::string_view version);
// Adds "?key=value" or "&key=value", percent-encoded.
void add_query(std::string& target, std::string_view key, std::string_view value);

}  // namespace penstock::kubernetes
