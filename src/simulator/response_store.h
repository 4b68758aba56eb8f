#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::simulator {

// The responses that one simulated engine keeps, as vLLM does with VLLM_ENABLE_RESPONSES_API_STORE=1: in
// memory, of this engine alone. At most `capacity`, the oldest leaves first; 0: none are kept, vLLM's
// default. One loop's.
class ResponseStore {
 public:
  struct Stored {
    std::string object;            // what GET shows
    std::vector<uint32_t> tokens;  // prompt and answer: what a request that goes on begins with
  };
  explicit ResponseStore(size_t capacity) : capacity_(capacity) {}

  bool on() const { return capacity_ != 0; }
  void put(const std::string& id, Stored stored);
  // nullptr: not kept. Valid until the next put().
  const Stored* find(std::string_view id) const;

 private:
  size_t capacity_;
  std::unordered_map<std::string, Stored> stored_;
  std::deque<std::string> order_;
};

}  // namespace penstock::simulator
