#include "base/arena.h"

#include <algorithm>

namespace penstock {

void* Arena::allocate_slow(size_t bytes, size_t alignment) {
  // Blocks behind the current one are left from before the last reset: use the first that is big enough.
  const size_t wanted = bytes + alignment;
  size_t index = next_ == nullptr ? 0 : current_ + 1;
  while (index < blocks_.size() && blocks_[index].size < wanted) ++index;
  if (index >= blocks_.size()) {
    const size_t size = std::max(wanted, block_bytes_);
    blocks_.push_back(Block{std::unique_ptr<char[]>(new char[size]), size});
    held_bytes_ += size;
    index = blocks_.size() - 1;
  }
  current_ = index;
  next_ = blocks_[index].data.get();
  end_ = next_ + blocks_[index].size;
  return allocate_bytes(bytes, alignment);
}

void Arena::reset(size_t keep_bytes) {
  if (blocks_.size() == 1 && held_bytes_ <= keep_bytes) {
    next_ = end_ - held_bytes_;  // without a look at where the list of blocks lies
    return;
  }
  while (held_bytes_ > keep_bytes && !blocks_.empty()) {
    held_bytes_ -= blocks_.back().size;
    blocks_.pop_back();
  }
  current_ = 0;
  next_ = blocks_.empty() ? nullptr : blocks_.front().data.get();
  end_ = blocks_.empty() ? nullptr : next_ + blocks_.front().size;
}

}  // namespace penstock
