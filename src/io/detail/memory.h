#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace penstock::io::detail {

// Raw memory of I/O buffers in powers of two from 4 KiB, recycled per thread up to a bound (sanitizer builds
// recycle nothing, so that they see every misuse). The last kBodyPadding bytes are never handed out as
// capacity: what lies before them may be given to a SIMD parser as it is.
class Buffer {
 public:
  Buffer() = default;
  // At least `capacity` usable bytes.
  explicit Buffer(size_t capacity);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_class_(std::exchange(other.size_class_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_class_, other.size_class_);
    return *this;
  }
  ~Buffer() { reset(); }

  void reset() noexcept;
  explicit operator bool() const { return data_ != nullptr; }
  char* data() const { return data_; }
  size_t capacity() const;

 private:
  char* data_ = nullptr;
  uint32_t size_class_ = 0;  // log2 of the allocation
};

// An allocator over the frame free lists, for small vectors that live as long as a message.
template <typename T>
struct FrameAllocator {
  using value_type = T;
  FrameAllocator() = default;
  template <typename U>
  FrameAllocator(const FrameAllocator<U>&) {}
  T* allocate(size_t n);
  void deallocate(T* p, size_t n) noexcept;
  friend bool operator==(const FrameAllocator&, const FrameAllocator&) { return true; }
};

void* allocate_frame(size_t bytes);
void free_frame(void* frame, size_t bytes) noexcept;

template <typename T>
T* FrameAllocator<T>::allocate(size_t n) {
  return static_cast<T*>(allocate_frame(n * sizeof(T)));
}
template <typename T>
void FrameAllocator<T>::deallocate(T* p, size_t n) noexcept {
  free_frame(p, n * sizeof(T));
}

}  // namespace penstock::io::detail
