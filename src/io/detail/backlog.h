#pragma once

#include <atomic>
#include <cstdint>

namespace penstock::io::detail {

// Bytes copied for peers that don't take them yet, of all HTTP/2 connections that share it. Changed on one
// loop, read anywhere.
struct Backlog {
  explicit Backlog(uint64_t limit_bytes) : limit(limit_bytes) {}
  void add(uint64_t more) { set(now() + more); }
  void remove(uint64_t less) { set(now() - less); }
  uint64_t now() const { return bytes.load(std::memory_order_relaxed); }
  // Bodies wait for their turn beyond it; what the socket has to be given whole is only counted.
  bool has_room(uint64_t more) const { return now() + more <= limit; }

  const uint64_t limit;

 private:
  void set(uint64_t value) { bytes.store(value, std::memory_order_relaxed); }
  std::atomic<uint64_t> bytes{0};
};

}  // namespace penstock::io::detail
