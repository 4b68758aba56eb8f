#include "kvindex/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock::kvindex {

namespace {

constexpr unsigned kStepOrder = 9;
constexpr size_t kStepBytes = BlockPool::kUnitBytes << kStepOrder;

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<Mapping> Mapping::reserve(size_t bytes) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    return Error{ErrorCode::kResourceExhausted,
                 "reserving " + std::to_string(bytes) + " bytes of address space: " + std::strerror(errno)};
  Mapping mapping;
  mapping.data_ = static_cast<char*>(data);
  mapping.bytes_ = bytes;
  return mapping;
}

// Unit 0 and the rest of the first superblock are never handed out, so 0 can mean "none" and still be
// read. One more superblock lies behind the limit for reads that start near it.
Result<BlockPool> BlockPool::create(size_t limit_bytes) {
  constexpr uint32_t kSuperUnits = 1U << kMaxOrder;
  constexpr size_t kMaxSupers = (size_t{1} << (32 - kMaxOrder)) - 2;
  const size_t with_bits = kSuperBytes + kSuperBytes / kUnitBytes / 8;
  const size_t supers = std::clamp<size_t>(limit_bytes / with_bits, 1, kMaxSupers);
  Result<Mapping> region = Mapping::reserve((supers + 2) * kSuperBytes);
  if (!region.ok()) return std::move(region).error();
  Result<Mapping> bits = Mapping::reserve((supers + 1) * kSuperUnits / 8);
  if (!bits.ok()) return std::move(bits).error();
  return BlockPool(std::move(region).value(), std::move(bits).value(),
                   static_cast<uint32_t>((supers + 1) * kSuperUnits));
}

BlockPool::BlockPool(Mapping region, Mapping bits, uint32_t units_limit)
    : region_(std::move(region)),
      bits_mapping_(std::move(bits)),
      base_(region_.data()),
      bits_(reinterpret_cast<uint64_t*>(bits_mapping_.data())),
      units_limit_(units_limit),
      units_end_(1U << kMaxOrder) {}

BlockPool::BlockPool(BlockPool&& other) noexcept
    : region_(std::move(other.region_)),
      bits_mapping_(std::move(other.bits_mapping_)),
      base_(other.base_),
      bits_(other.bits_),
      units_limit_(other.units_limit_),
      units_end_(other.units_end_),
      nonempty_(other.nonempty_),
      free_(other.free_),
      held_bytes_(other.held_bytes_.load()),
      used_bytes_(other.used_bytes_.load()) {}

unsigned BlockPool::order_for(size_t bytes) {
  const size_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  return static_cast<unsigned>(std::countr_zero(std::bit_ceil(std::max<size_t>(units, 1))));
}

void BlockPool::push(Ref ref, unsigned order) {
  auto* block = at<FreeBlock>(ref);
  block->order = order;
  block->prev = 0;
  block->next = free_[order];
  if (free_[order] != 0) at<FreeBlock>(free_[order])->prev = ref;
  free_[order] = ref;
  nonempty_ |= 1U << order;
  bits_[ref / 64] |= uint64_t{1} << (ref % 64);
}

void BlockPool::unlink(Ref ref, unsigned order) {
  auto* block = at<FreeBlock>(ref);
  const Ref next = block->next;
  const Ref prev = block->prev;
  if (next != 0) at<FreeBlock>(next)->prev = prev;
  if (prev != 0)
    at<FreeBlock>(prev)->next = next;
  else
    free_[order] = next;
  if (free_[order] == 0) nonempty_ &= ~(1U << order);
  bits_[ref / 64] &= ~(uint64_t{1} << (ref % 64));
}

// Makes a free block of at least `order`; false at the limit.
bool BlockPool::extend(unsigned order) {
  while (nonempty_ >> order == 0) {
    if (units_end_ >= units_limit_) return false;
#ifdef MADV_POPULATE_WRITE
    // One call instead of a page fault for each page; where the kernel doesn't know it, faults do it.
    madvise(at<char>(units_end_), kStepBytes, MADV_POPULATE_WRITE);
#endif
    const Ref added = units_end_;
    units_end_ += 1U << kStepOrder;
    add_free(added, kStepOrder);
    held_bytes_.fetch_add(kStepBytes + kStepBytes / kUnitBytes / 8, std::memory_order_relaxed);
  }
  return true;
}

BlockPool::Ref BlockPool::allocate(unsigned order) {
  assert(order <= kMaxOrder);
  if (!extend(order)) return 0;
  unsigned from = order + static_cast<unsigned>(std::countr_zero(nonempty_ >> order));
  const Ref ref = free_[from];
  unlink(ref, from);
  while (from > order) {
    --from;
    push(ref + (1U << from), from);
  }
  used_bytes_.store(used_bytes_.load(std::memory_order_relaxed) + (kUnitBytes << order),
                    std::memory_order_relaxed);
  return ref;
}

void BlockPool::release(Ref ref, unsigned order) {
  assert(ref >= (1U << kMaxOrder) && ref < units_end_ && !is_free(ref));
  used_bytes_.store(used_bytes_.load(std::memory_order_relaxed) - (kUnitBytes << order),
                    std::memory_order_relaxed);
  add_free(ref, order);
}

// Joins the block with its buddy as long as that is free too.
void BlockPool::add_free(Ref ref, unsigned order) {
  while (order < kMaxOrder) {
    const Ref buddy = ref ^ (1U << order);
    if (!is_free(buddy) || at<FreeBlock>(buddy)->order != order) break;
    unlink(buddy, order);
    ref &= ~(1U << order);
    ++order;
  }
  push(ref, order);
}

}  // namespace penstock::kvindex
