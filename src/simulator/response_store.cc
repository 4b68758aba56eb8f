#include "simulator/response_store.h"

#include <utility>

namespace penstock::simulator {

void ResponseStore::put(const std::string& id, Stored stored) {
  if (capacity_ == 0) return;
  if (stored_.insert_or_assign(id, std::move(stored)).second) order_.push_back(id);
  if (order_.size() <= capacity_) return;
  stored_.erase(order_.front());
  order_.pop_front();
}

const ResponseStore::Stored* ResponseStore::find(std::string_view id) const {
  const auto found = stored_.find(std::string(id));
  return found == stored_.end() ? nullptr : &found->second;
}

}  // namespace penstock::simulator
