#include "sharing/records.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"
#include "kvindex/wide_hash.h"

namespace penstock::sharing {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

constexpr std::string_view kLoadMagic{"PSL\x01", 4};
constexpr std::string_view kPrefixMagic{"PSP\x01", 4};
constexpr size_t kLoadBytes = 24;
constexpr size_t kPrefixHead = 16;

template <typename T>
void append(std::string& out, T number) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &number, sizeof(T));
  out.append(bytes, sizeof(T));
}

// REQUIRES: that many bytes are there.
template <typename T>
T take(std::string_view& bytes) {
  T number;
  std::memcpy(&number, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return number;
}

// Takes the first four bytes. Records of all versions begin with the same three.
Decoded take_magic(std::string_view& bytes, std::string_view magic) {
  if (!bytes.starts_with(magic.substr(0, 3)) || bytes.size() < magic.size()) return Decoded::kMalformed;
  if (!bytes.starts_with(magic)) return Decoded::kOtherVersion;
  bytes.remove_prefix(magic.size());
  return Decoded::kOk;
}

}  // namespace

uint64_t endpoint_key(std::string_view host_port) {
  return xxh64(host_port);
}

uint64_t place_key(uint64_t endpoint, std::string_view producer) {
  return kvindex::xxh64_pair(endpoint, xxh64(producer));
}

void append_load_record(std::string& out, const LoadRecord& record) {
  out += kLoadMagic;
  append(out, record.sampled_us);
  append(out, record.sequence);
  append(out, record.hashing);
  const size_t count = std::min(record.loads.size(), kMaxSharedEndpoints);
  append(out, static_cast<uint32_t>(count));
  for (const SharedLoad& load : std::span(record.loads).first(count)) {
    append(out, load.endpoint);
    append(out, load.requests);
    append(out, load.unseen);
    append(out, load.tokens);
  }
}

Decoded decode_load_record(std::string_view bytes, LoadRecord& out) {
  out = {};
  const Decoded magic = take_magic(bytes, kLoadMagic);
  if (magic != Decoded::kOk) return magic;
  if (bytes.size() < 28) return Decoded::kMalformed;
  out.sampled_us = take<uint64_t>(bytes);
  out.sequence = take<uint64_t>(bytes);
  out.hashing = take<uint64_t>(bytes);
  const auto count = take<uint32_t>(bytes);
  if (count > kMaxSharedEndpoints || bytes.size() != count * kLoadBytes) return Decoded::kMalformed;
  out.loads.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    SharedLoad load;
    load.endpoint = take<uint64_t>(bytes);
    load.requests = std::min(take<uint32_t>(bytes), kMaxSharedRequests);
    load.unseen = std::min(take<uint32_t>(bytes), kMaxSharedRequests);
    load.tokens = std::min(take<uint64_t>(bytes), kMaxSharedTokens);
    out.loads.push_back(load);
  }
  return Decoded::kOk;
}

void append_prefix_header(std::string& out, const PrefixBatchHeader& header) {
  out += kPrefixMagic;
  append(out, header.sender);
  append(out, header.sequence);
  append(out, header.hashing);
}

void append_prefix(std::string& out, const SharedPrefix& prefix) {
  append(out, prefix.place);
  append(out, prefix.block_size);
  append(out, static_cast<uint32_t>(prefix.hashes.size()));
  out.append(reinterpret_cast<const char*>(prefix.hashes.data()), prefix.hashes.size_bytes());
}

size_t prefix_bytes(size_t blocks) {
  return kPrefixHead + blocks * sizeof(uint64_t);
}

Decoded PrefixBatchReader::header(PrefixBatchHeader& out) {
  const Decoded magic = take_magic(rest_, kPrefixMagic);
  if (magic != Decoded::kOk) return magic;
  if (rest_.size() < 24) return Decoded::kMalformed;
  out.sender = take<uint64_t>(rest_);
  out.sequence = take<uint64_t>(rest_);
  out.hashing = take<uint64_t>(rest_);
  return Decoded::kOk;
}

std::optional<SharedPrefix> PrefixBatchReader::next() {
  if (rest_.empty()) return std::nullopt;
  malformed_ = true;
  if (rest_.size() < kPrefixHead) return std::nullopt;
  SharedPrefix out;
  out.place = take<uint64_t>(rest_);
  out.block_size = take<uint32_t>(rest_);
  const auto blocks = take<uint32_t>(rest_);
  if (rest_.size() / sizeof(uint64_t) < blocks) return std::nullopt;
  hashes_.resize(blocks);
  if (blocks != 0) std::memcpy(hashes_.data(), rest_.data(), blocks * sizeof(uint64_t));
  rest_.remove_prefix(blocks * sizeof(uint64_t));
  out.hashes = hashes_;
  malformed_ = false;
  return out;
}

}  // namespace penstock::sharing
