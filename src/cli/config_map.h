#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::cli {

struct ConfigMapFile {
  std::string source;  // for messages: "configmap inference/llama-epp, default-plugins.yaml"
  std::string text;
};

// EndpointPickerConfigs of a cluster's ConfigMap, in order of their names. `which`: [NAMESPACE/]NAME[:FILE];
// without a namespace that of the kubeconfig's context, without a file all that are of this kind or the only
// one. One call of the API server; `kubeconfig` as --kubeconfig of epp. Blocks.
Result<std::vector<ConfigMapFile>> read_config_map(std::string_view which, std::string_view kubeconfig);

}  // namespace penstock::cli
