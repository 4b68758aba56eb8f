#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sharing/peers.h"
#include "sharing/records.h"
#include "sharing/resp.h"

// The first byte chooses what the rest is taken for: a reply with what the store holds of a pool, a reply to
// XREAD, a load record or a prefix batch.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  using namespace penstock::sharing;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto read_batch = [](std::string_view batch) {
    PrefixBatchReader reader(batch);
    PrefixBatchHeader header;
    if (reader.header(header) != Decoded::kOk) return;
    size_t told = 0;
    while (const auto prefix = reader.next()) told += prefix_bytes(prefix->hashes.size());
    if (told > batch.size()) __builtin_trap();
  };
  switch (data[0] % 4) {
    case 0: {
      RespReply reply;
      const RespParsed parsed = parse_reply(bytes, reply, {.bytes = 1 << 20, .items = 1000, .depth = 4});
      if (parsed.outcome == RespOutcome::kComplete && parsed.bytes > bytes.size()) __builtin_trap();
      if (parsed.outcome == RespOutcome::kIncomplete && parsed.bytes <= bytes.size()) __builtin_trap();
      if (parsed.outcome != RespOutcome::kComplete) return 0;
      Peers peers("me/1", std::chrono::seconds(1), 1);
      const TimePoint now(std::chrono::seconds(100));
      peers.take(reply.items, {1'700'000'000'000'000, now - std::chrono::milliseconds(1), now});
      peers.fade(now + std::chrono::milliseconds(500));
      std::unordered_map<uint64_t, Peers::Sum> sums;
      peers.sum(sums);
      if (peers.all().size() > Peers::kMaxPeers) __builtin_trap();
      break;
    }
    case 1: {
      RespReply reply;
      if (parse_reply(bytes, reply).outcome != RespOutcome::kComplete) return 0;
      for (const RespReply& stream : reply.items) {
        for (const RespReply& entry : stream.items) read_batch(entry.text);
      }
      break;
    }
    case 2: {
      LoadRecord record;
      if (decode_load_record(bytes, record) != Decoded::kOk) return 0;
      std::string again;
      append_load_record(again, record);
      LoadRecord second;
      if (decode_load_record(again, second) != Decoded::kOk || second.loads != record.loads) __builtin_trap();
      break;
    }
    default:
      read_batch(bytes);
  }
  return 0;
}
