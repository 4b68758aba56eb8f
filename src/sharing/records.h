#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::sharing {

// What replicas tell each other through the store. All numbers little-endian. Version 1:
//
//   load record      "PSL" 1 | sampled_us u64 | sequence u64 | hashing u64 | count u32
//                    | count * (endpoint u64 | requests u32 | unseen u32 | tokens u64)
//   prefix batch     "PSP" 1 | sender u64 | sequence u64 | hashing u64
//                    | (place u64 | block size u32 | blocks u32 | blocks * hash u64) ...
//
// A record with other first bytes is of another version and left alone.

inline constexpr size_t kMaxSharedEndpoints = 4096;
inline constexpr uint32_t kMaxSharedRequests = 1U << 19;
inline constexpr uint64_t kMaxSharedTokens = uint64_t{1} << 43;

// What identifies an endpoint to every replica: XXH64 of its "address:port".
uint64_t endpoint_key(std::string_view host_port);
// Of an endpoint's part of the record of one producer.
uint64_t place_key(uint64_t endpoint, std::string_view producer);

// One replica's load at one endpoint.
struct SharedLoad {
  uint64_t endpoint = 0;  // endpoint_key()
  uint32_t requests = 0;  // in flight
  uint32_t unseen = 0;    // of them those that the sender's last scrape can't show
  uint64_t tokens = 0;

  bool operator==(const SharedLoad&) const = default;
};

struct LoadRecord {
  // Of the store's clock, in µs, and no later than when the loads were read.
  uint64_t sampled_us = 0;
  uint64_t sequence = 0;  // rises with every record of a sender
  uint64_t hashing = 0;   // fingerprint of how the sender hashes blocks
  std::vector<SharedLoad> loads;
};

enum class Decoded : uint8_t { kOk, kOtherVersion, kMalformed };

void append_load_record(std::string& out, const LoadRecord& record);
// Requests and tokens beyond the bounds above are cut to them.
Decoded decode_load_record(std::string_view bytes, LoadRecord& out);

struct PrefixBatchHeader {
  uint64_t sender = 0;    // incarnation
  uint64_t sequence = 0;  // of the sender's batches, without gaps
  uint64_t hashing = 0;
};
// A prompt that was sent to an endpoint. `hashes` is valid as long as the reader isn't asked again.
struct SharedPrefix {
  uint64_t place = 0;  // place_key()
  uint32_t block_size = 0;
  std::span<const uint64_t> hashes;
};

void append_prefix_header(std::string& out, const PrefixBatchHeader& header);
void append_prefix(std::string& out, const SharedPrefix& prefix);
size_t prefix_bytes(size_t blocks);

// Reads a batch record by record.
class PrefixBatchReader {
 public:
  // `bytes` outlive the reader.
  explicit PrefixBatchReader(std::string_view bytes) : rest_(bytes) {}
  // First.
  Decoded header(PrefixBatchHeader& out);
  // Nothing: there is no further one, or (`malformed()`) what follows is none.
  std::optional<SharedPrefix> next();
  bool malformed() const { return malformed_; }

 private:
  std::string_view rest_;
  std::vector<uint64_t> hashes_;
  bool malformed_ = false;
};

}  // namespace penstock::sharing
