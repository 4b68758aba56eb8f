#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "inference/endpoint.h"
#include "inference/plugin.h"

namespace penstock {

// Takes what a producer entered into its record of prefixes, to tell it to other replicas. Called on the
// loops; never waits: what finds no place is dropped and counted.
class PrefixOutlet {
 public:
  virtual ~PrefixOutlet() = default;
  // `hashes`: of one prompt's blocks, chained, from the first one on; they name model and cache salt too.
  virtual void entered(std::string_view producer, const Endpoint& endpoint, uint32_t block_size_tokens,
                       std::span<const uint64_t> hashes) = 0;
};

// A producer whose record of who holds which prefix replicas can share: what one enters, the others learn.
class SharedPrefixes : public virtual Plugin {
 public:
  // REQUIRES: the instance has served no request yet.
  virtual void tell(std::shared_ptr<PrefixOutlet> outlet) = 0;
  // From any thread. False, and nothing happens, when the producer's blocks have another size.
  virtual bool learn(const Endpoint& endpoint, uint32_t block_size_tokens,
                     std::span<const uint64_t> hashes) const = 0;
};

}  // namespace penstock
