#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/manifests.h"
#include "kubernetes/json.h"

namespace penstock::kubernetes {

// Labels in one piece of memory: a pool has thousands of them, and they are read when something changes.
class PackedLabels {
 public:
  void add(std::string_view key, std::string_view value);
  std::optional<std::string_view> find(std::string_view key) const;
  template <typename Each>
  void for_each(Each&& each) const {
    std::string_view rest = text_;
    while (!rest.empty()) {
      const std::string_view key = take(rest);
      each(key, take(rest));
    }
  }
  size_t bytes() const { return text_.size(); }
  friend bool operator==(const PackedLabels&, const PackedLabels&) = default;

 private:
  static std::string_view take(std::string_view& rest) {
    const size_t end = rest.find('\0');
    const std::string_view out = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return out;
  }
  std::string text_;  // key\0value\0…
};

// What a picker needs of a pod: a few hundred bytes, where the object has ten thousand.
struct PodRecord {
  std::string ip;  // "" none yet, or no longer
  PackedLabels labels;
  // The annotation llm-d.ai/active-ports, or its older name; nothing: all ports.
  std::optional<std::string> active_ports;
  bool ready = false;        // of conditions the first named Ready is True
  bool terminating = false;  // has a deletionTimestamp

  // Requests may be sent to it.
  bool serves() const { return ready && !terminating && !ip.empty(); }
  friend bool operator==(const PodRecord&, const PodRecord&) = default;
};

// Error: the object is no Pod, or its address is no IP address.
Result<PodRecord> decode_pod(Json object);

// The ranks of a pod that are active: indices into `ports`, ascending. The annotation is a list of ports
// between commas; of each item the number it begins with counts, as in the reference ("8000abc" is 8000);
// what is no port of the pool is left out.
std::vector<size_t> active_ranks(const PodRecord& pod, std::span<const uint16_t> ports);

// A label selector as kubectl takes it: "app=vllm,env in (a,b),!canary". The server evaluates it; here it is
// checked, so that a mistake is told at start.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
Status check_label_selector(std::string_view text);
// matchLabels as such a text.
std::string selector_text(const config::LabelMap& labels);

}  // namespace penstock::kubernetes
