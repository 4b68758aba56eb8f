#include "sharing/records.h"

#include <gtest/gtest.h>

namespace penstock::sharing {
namespace {

LoadRecord some_record() {
  LoadRecord record;
  record.sampled_us = 1'700'000'000'000'000;
  record.sequence = 7;
  record.hashing = 42;
  record.loads = {{endpoint_key("10.0.0.1:8000"), 3, 1, 900}, {endpoint_key("10.0.0.2:8000"), 1, 0, 0}};
  return record;
}

TEST(LoadRecords, AreReadAsTheyWereWritten) {
  std::string bytes;
  append_load_record(bytes, some_record());
  EXPECT_EQ(bytes.size(), 4U + 28 + 2 * 24);
  LoadRecord read;
  ASSERT_EQ(decode_load_record(bytes, read), Decoded::kOk);
  EXPECT_EQ(read.sampled_us, some_record().sampled_us);
  EXPECT_EQ(read.sequence, 7U);
  EXPECT_EQ(read.hashing, 42U);
  EXPECT_EQ(read.loads, some_record().loads);
}

TEST(LoadRecords, OfAnotherLengthOrVersionAreNotTaken) {
  std::string bytes;
  append_load_record(bytes, some_record());
  LoadRecord read;
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_EQ(decode_load_record(bytes.substr(0, n), read), Decoded::kMalformed) << n;
  EXPECT_EQ(decode_load_record(bytes + "x", read), Decoded::kMalformed);
  bytes[3] = 2;
  EXPECT_EQ(decode_load_record(bytes, read), Decoded::kOtherVersion);
}

TEST(LoadRecords, NumbersBeyondTheirBoundsAreCut) {
  LoadRecord record;
  record.loads = {{1, UINT32_MAX, UINT32_MAX, UINT64_MAX}};
  std::string bytes;
  append_load_record(bytes, record);
  LoadRecord read;
  ASSERT_EQ(decode_load_record(bytes, read), Decoded::kOk);
  EXPECT_EQ(read.loads[0].requests, kMaxSharedRequests);
  EXPECT_EQ(read.loads[0].unseen, kMaxSharedRequests);
  EXPECT_EQ(read.loads[0].tokens, kMaxSharedTokens);
}

TEST(PrefixBatches, AreReadAsTheyWereWritten) {
  const std::vector<uint64_t> first{1, 2, 3};
  const std::vector<uint64_t> second{4};
  std::string bytes;
  append_prefix_header(bytes, {11, 12, 13});
  append_prefix(bytes, {21, 64, first});
  append_prefix(bytes, {22, 128, second});
  EXPECT_EQ(bytes.size(), 28 + prefix_bytes(3) + prefix_bytes(1));
  PrefixBatchReader reader(bytes);
  PrefixBatchHeader header;
  ASSERT_EQ(reader.header(header), Decoded::kOk);
  EXPECT_EQ(header.sender, 11U);
  EXPECT_EQ(header.sequence, 12U);
  EXPECT_EQ(header.hashing, 13U);
  auto prefix = reader.next();
  ASSERT_TRUE(prefix);
  EXPECT_EQ(prefix->place, 21U);
  EXPECT_EQ(prefix->block_size, 64U);
  EXPECT_EQ(std::vector<uint64_t>(prefix->hashes.begin(), prefix->hashes.end()), first);
  prefix = reader.next();
  ASSERT_TRUE(prefix);
  EXPECT_EQ(prefix->hashes[0], 4U);
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.malformed());
}

TEST(PrefixBatches, ThatAnnounceMoreThanTheyHaveAreMalformedFromThereOn) {
  std::string bytes;
  append_prefix_header(bytes, {1, 2, 3});
  append_prefix(bytes, {21, 64, std::vector<uint64_t>{5}});
  const std::string whole = bytes;
  append_prefix(bytes, {22, 64, std::vector<uint64_t>{5, 6}});
  for (size_t n = whole.size() + 1; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);
    PrefixBatchReader reader(cut);
    PrefixBatchHeader header;
    ASSERT_EQ(reader.header(header), Decoded::kOk);
    EXPECT_TRUE(reader.next());
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.malformed()) << n;
  }
}

TEST(SharedKeys, AreTheSameInEveryProcess) {
  EXPECT_EQ(endpoint_key("10.0.0.1:8000"), 5852915226987797947U);
  EXPECT_EQ(place_key(1, "approx-prefix-cache-producer"), 3251873771670894709U);
}

}  // namespace
}  // namespace penstock::sharing
