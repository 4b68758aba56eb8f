#include <array>
#include <bit>
#include <cstdlib>
#include <new>
#include <vector>

#include "io/detail/memory.h"
#include "io/http.h"
#include "io/loop.h"
#include "io/task.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PENSTOCK_IO_RECYCLE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PENSTOCK_IO_RECYCLE 0
#endif
#endif
#ifndef PENSTOCK_IO_RECYCLE
#define PENSTOCK_IO_RECYCLE 1
#endif

namespace penstock::io::detail {
namespace {

constexpr bool kRecycle = PENSTOCK_IO_RECYCLE != 0;

// Frames: classes of 64 bytes up to 4 KiB. A freed frame goes to the free list of the freeing thread.
constexpr size_t kFrameStep = 64;
constexpr size_t kFrameClasses = 64;
constexpr uint32_t kFramesKept = 1024;  // per class and thread

struct FreeFrame {
  FreeFrame* next;
};

struct FrameLists {
  std::array<FreeFrame*, kFrameClasses + 1> first{};
  std::array<uint32_t, kFrameClasses + 1> count{};
  bool swept = false;  // the sweeper is there, so what is kept is freed with the thread
};
// Without a destructor of its own, which would cost a check at each use.
constinit thread_local FrameLists frame_lists;

struct FrameSweeper {
  ~FrameSweeper() {
    for (FreeFrame*& list : frame_lists.first) {
      while (list != nullptr) std::free(std::exchange(list, list->next));
    }
    frame_lists.count.fill(kFramesKept);  // later frees on this thread go straight to the heap
  }
};
void start_sweeper() {
  thread_local FrameSweeper sweeper;
  frame_lists.swept = true;
}

constexpr uint32_t kSmallestBuffer = 12;  // 4 KiB
constexpr uint32_t kLargestKept = 23;     // 8 MiB; larger ones are not kept
constexpr size_t kBytesKeptPerClass = 8UL << 20U;

struct BufferLists {
  std::array<std::vector<void*>, kLargestKept + 1> free;
  bool alive = true;
  ~BufferLists() {
    alive = false;
    for (auto& list : free)
      for (void* memory : list) std::free(memory);
  }
};
thread_local BufferLists buffer_lists;

}  // namespace

void* allocate_frame(size_t bytes) {
  const size_t size_class = (bytes + kFrameStep - 1) / kFrameStep;
  if (kRecycle && size_class <= kFrameClasses) {
    FrameLists& lists = frame_lists;
    if (FreeFrame* frame = lists.first[size_class]; frame != nullptr) {
      lists.first[size_class] = frame->next;
      --lists.count[size_class];
      return frame;
    }
  }
  void* memory = std::malloc(size_class * kFrameStep);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void free_frame(void* frame, size_t bytes) noexcept {
  const size_t size_class = (bytes + kFrameStep - 1) / kFrameStep;
  if (kRecycle && size_class <= kFrameClasses) {
    FrameLists& lists = frame_lists;
    if (lists.count[size_class] < kFramesKept) {
      if (!lists.swept) start_sweeper();
      auto* free = static_cast<FreeFrame*>(frame);
      free->next = lists.first[size_class];
      lists.first[size_class] = free;
      ++lists.count[size_class];
      return;
    }
  }
  std::free(frame);
}

Buffer::Buffer(size_t capacity) {
  const size_t bytes = capacity + kBodyPadding;
  size_class_ = static_cast<uint32_t>(std::bit_width(bytes - 1));
  if (size_class_ < kSmallestBuffer) size_class_ = kSmallestBuffer;
  if (kRecycle && size_class_ <= kLargestKept && buffer_lists.alive) {
    auto& list = buffer_lists.free[size_class_];
    if (!list.empty()) {
      data_ = static_cast<char*>(list.back());
      list.pop_back();
      return;
    }
  }
  data_ = static_cast<char*>(std::malloc(size_t{1} << size_class_));
  if (data_ == nullptr) throw std::bad_alloc();
}

void Buffer::reset() noexcept {
  if (data_ == nullptr) return;
  void* memory = std::exchange(data_, nullptr);
  if (kRecycle && size_class_ <= kLargestKept && buffer_lists.alive) {
    auto& list = buffer_lists.free[size_class_];
    if (((list.size() + 1) << size_class_) <= kBytesKeptPerClass) {
      list.push_back(memory);
      return;
    }
  }
  std::free(memory);
}

size_t Buffer::capacity() const {
  return data_ == nullptr ? 0 : (size_t{1} << size_class_) - kBodyPadding;
}

}  // namespace penstock::io::detail

namespace penstock::io {

void release_recycled_buffers() {
  if (!detail::buffer_lists.alive) return;
  for (auto& list : detail::buffer_lists.free) {
    for (void* memory : list) std::free(memory);
    list.clear();
  }
}

}  // namespace penstock::io
