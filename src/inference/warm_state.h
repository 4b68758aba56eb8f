#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"

namespace penstock {

// What the plugins of one pool learned and the next policy epoch takes over (indexes, sessions), under keys
// that name type, instance and the parameters that shape the state: where one of them changes it starts
// cold. Lives as long as the pool, used only while policies are assembled, from one thread.
class WarmState {
 public:
  // The state kept under `key`, else what make() returns. REQUIRES: a key always stands for the same T.
  // make() returns Result<std::shared_ptr<T>>.
  template <typename T, typename Make>
  Result<std::shared_ptr<T>> get(const std::string& key, Make&& make) {
    const auto found = entries_.find(key);
    if (found != entries_.end()) {
      found->second.used = true;
      return std::static_pointer_cast<T>(found->second.state);
    }
    Result<std::shared_ptr<T>> made = std::forward<Make>(make)();
    if (made.ok()) entries_[key] = {*made, true, true};
    return made;
  }

  // Around the assembly of one policy. When it succeeded, what it did not ask for is forgotten; when it
  // failed, what it made is.
  void begin_epoch() {
    for (auto& [key, entry] : entries_) entry.used = entry.fresh = false;
  }
  void end_epoch(bool succeeded) {
    std::erase_if(entries_,
                  [&](const auto& item) { return succeeded ? !item.second.used : item.second.fresh; });
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::shared_ptr<void> state;
    bool used = false;
    bool fresh = false;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace penstock
