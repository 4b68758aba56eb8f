#pragma once

#include <cstddef>
#include <string>

#include "kvindex/prefix_index.h"

namespace penstock::kvindex {

// Looks into a prefix index for tests and fault finding. Not for the request path: check() visits
// everything under the writer's lock.
class PrefixIndexInspector {
 public:
  explicit PrefixIndexInspector(PrefixIndex& index) : index_(index) {}

  // Every invariant stated at the top of prefix_index.cc; "" when they hold, else the first breach.
  std::string check();
  // Bytes of all blocks in use: 0 once nothing is held.
  size_t pool_used_bytes() const { return index_.pool_.used_bytes(); }
  // Makes this thread the writer, so that inserts of any thread are queued.
  void hold_writer_lock() { index_.lock(); }
  void release_writer_lock() { index_.unlock(); }

 private:
  std::string check_locked();

  PrefixIndex& index_;
};

}  // namespace penstock::kvindex
