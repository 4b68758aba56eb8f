#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::config {

// The callers a listener lets in. The file holds names and SHA-256 digests, never keys:
//
//   keys:
//     - name: team-a
//       sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b   # of "secret"
//
// Several keys may share a name (rotation). Immutable: a reload makes a new one and swaps the pointer, so
// find() may be called from any thread. At most kMaxApiKeys keys.
inline constexpr size_t kMaxApiKeys = 10000;

class ApiKeys {
 public:
  static Result<std::shared_ptr<const ApiKeys>> decode(std::string_view text, std::string_view source);
  static Result<std::shared_ptr<const ApiKeys>> load(const std::string& path);

  // The name of the presented key, or nullptr. Takes the same time for every key, right or wrong.
  const std::string* find(std::string_view presented_key) const;
  size_t size() const { return keys_.size(); }

 private:
  struct Key {
    std::array<unsigned char, 32> digest;
    std::string name;
  };
  std::vector<Key> keys_;
};

}  // namespace penstock::config
