#pragma once

#include <map>
#include <string>
#include <vector>

#include "inference/notifications.h"

namespace penstock::scheduling {

inline const ObjectKind kPodKind{"", "v1", "Pod"};

// What plugins want to know of a Pod.
struct Pod {
  std::string ns;
  std::string name;
  std::string hostname;  // spec.hostname
  std::map<std::string, std::string, std::less<>> labels;
};
// The fields of a Pod that ready_pods() reads.
std::vector<std::string> pod_fields();
// Those that are ready and not terminating: no deletionTimestamp, and the first condition Ready is "True".
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-conditions
std::vector<Pod> ready_pods(const NotifiedObjects& all);

}  // namespace penstock::scheduling
