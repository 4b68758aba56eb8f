#include "kvindex/prefix_index.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/random.h"
#include "kvindex/block_hash.h"
#include "kvindex/prefix_index_inspector.h"

namespace penstock::kvindex {
namespace {

using Hashes = std::vector<uint64_t>;

size_t scaled(size_t operations) {
  const char* factor = std::getenv("PENSTOCK_LONG_TESTS");
  return factor == nullptr ? operations : operations * std::strtoul(factor, nullptr, 10);
}

std::unique_ptr<PrefixIndex> make_index(PrefixIndex::Options options = {}) {
  if (options.secret == 0) options.secret = 0x1234567;
  return std::move(PrefixIndex::create(options)).value();
}

// Chained hashes of a prompt whose blocks are named by numbers.
Hashes prompt(std::initializer_list<uint64_t> blocks, uint64_t seed = 1) {
  Hashes out;
  for (const uint64_t block : blocks) out.push_back(seed = chain_hash(block, seed));
  return out;
}
Hashes unique_prompt(uint64_t name, size_t blocks) {
  Hashes out;
  uint64_t parent = name * 0x9E3779B97F4A7C15ULL;
  for (size_t i = 0; i < blocks; ++i) out.push_back(parent = chain_hash(i, parent));
  return out;
}
Hashes join(Hashes front, size_t keep, uint64_t name, size_t blocks) {
  front.resize(keep);
  uint64_t parent = keep == 0 ? name : front.back();
  for (size_t i = 0; i < blocks; ++i) front.push_back(parent = chain_hash((name << 20U) + i, parent));
  return front;
}

std::map<int, uint32_t> matches(const PrefixIndex& index, const Hashes& hashes) {
  MatchResult result;
  index.match(hashes, result);
  std::map<int, uint32_t> out;
  for (const EndpointSlot slot : result.endpoints()) out[slot] = result.length(slot);
  return out;
}

using Expected = std::map<int, uint32_t>;

TEST(PrefixIndex, FindsNothingWhenEmpty) {
  const auto index = make_index();
  EXPECT_EQ(matches(*index, prompt({1, 2, 3})), Expected{});
  EXPECT_EQ(matches(*index, {}), Expected{});
}

TEST(PrefixIndex, FindsTheWholePromptAndEveryPrefixOfIt) {
  const auto index = make_index();
  const Hashes held = unique_prompt(1, 200);
  index->insert({5}, held);
  EXPECT_EQ(index->blocks(5), 200U);
  EXPECT_EQ(index->entries(), 200U);
  for (size_t keep = 1; keep <= held.size(); ++keep) {
    EXPECT_EQ(matches(*index, Hashes(held.begin(), held.begin() + keep)),
              (Expected{{5, static_cast<uint32_t>(keep)}}));
    EXPECT_EQ(matches(*index, join(held, keep, 99, 3)), (Expected{{5, static_cast<uint32_t>(keep)}}));
  }
}

TEST(PrefixIndex, EndpointsThatShareABeginningAreEachFoundWithTheirOwnLength) {
  const auto index = make_index();
  index->insert({0}, prompt({1, 2, 3, 4}));
  index->insert({1}, prompt({1, 2, 7, 8}));
  index->insert({2}, prompt({1, 2}));
  index->insert({3}, prompt({9}));
  EXPECT_EQ(matches(*index, prompt({1, 2, 3, 4})), (Expected{{0, 4}, {1, 2}, {2, 2}}));
  EXPECT_EQ(matches(*index, prompt({1, 2, 7, 8, 9})), (Expected{{0, 2}, {1, 4}, {2, 2}}));
  EXPECT_EQ(matches(*index, prompt({1, 5})), (Expected{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(PrefixIndex, AMatchIsContiguousFromTheFirstBlock) {
  // The reference counts block 2 for an endpoint that lost block 1 while another one still has it.
  PrefixIndex::Options options;
  options.eviction_slice = 1000;
  const auto index = make_index(options);
  index->insert({0}, prompt({1, 2}));
  index->insert({1, 0, 3}, prompt({1, 2}));
  index->insert({1, 0, 3}, prompt({7, 8}));  // endpoint 1 loses block 2, not block 1
  EXPECT_EQ(matches(*index, prompt({1, 2})), (Expected{{0, 2}, {1, 1}}));
  EXPECT_EQ(matches(*index, prompt({7, 8})), (Expected{{1, 2}}));
}

TEST(PrefixIndex, APromptLongerThanTheCapacityKeepsItsBeginningAndLeaksNothing) {
  const auto index = make_index();
  const Hashes held = unique_prompt(1, 500);
  for (int i = 0; i < 3; ++i) index->insert({0, 0, 100}, held);
  EXPECT_EQ(index->blocks(0), 100U);
  EXPECT_EQ(matches(*index, held), (Expected{{0, 100}}));
  index->remove_endpoint(0);
  EXPECT_EQ(index->entries(), 0U);
  EXPECT_EQ(PrefixIndexInspector(*index).check(), "");
}

TEST(PrefixIndex, TheLeastRecentlyInsertedPromptGoesFirst) {
  const auto index = make_index();
  index->insert({0, 0, 2}, prompt({1}));
  index->insert({0}, prompt({2}));
  index->insert({0}, prompt({1}));  // refreshed
  index->insert({0}, prompt({3}));
  EXPECT_EQ(matches(*index, prompt({1})), (Expected{{0, 1}}));
  EXPECT_EQ(matches(*index, prompt({2})), Expected{});
  EXPECT_EQ(matches(*index, prompt({3})), (Expected{{0, 1}}));
}

TEST(PrefixIndex, LookUpsDoNotRefresh) {
  const auto index = make_index();
  index->insert({0, 0, 2}, prompt({1}));
  index->insert({0}, prompt({2}));
  EXPECT_EQ(matches(*index, prompt({1})), (Expected{{0, 1}}));
  index->insert({0}, prompt({3}));
  EXPECT_EQ(matches(*index, prompt({1})), Expected{});
}

TEST(PrefixIndex, AChatOnOneEndpointStaysOneRun) {
  const auto index = make_index();
  const Hashes chat = unique_prompt(1, 300);
  for (size_t turn = 6; turn <= chat.size(); turn += 6) index->insert({0}, std::span(chat).first(turn));
  EXPECT_EQ(index->stats().runs, 1U);
  EXPECT_EQ(matches(*index, chat), (Expected{{0, 300}}));
  EXPECT_EQ(PrefixIndexInspector(*index).check(), "");
}

TEST(PrefixIndex, RemovingAnEndpointForgetsItAndLeavesTheOthers) {
  const auto index = make_index();
  const Hashes a = unique_prompt(1, 400);
  const Hashes b = join(a, 150, 2, 90);
  index->insert({0}, a);
  index->insert({1}, b);
  index->insert({1}, prompt({4, 5}));
  index->remove_endpoint(1);
  EXPECT_EQ(index->blocks(1), 0U);
  EXPECT_EQ(matches(*index, b), (Expected{{0, 150}}));
  EXPECT_EQ(index->stats().runs, 1U);
  EXPECT_EQ(PrefixIndexInspector(*index).check(), "");
}

TEST(PrefixIndex, ALateInsertForARemovedEndpointIsRefused) {
  const auto index = make_index();
  index->insert({3, 1001}, prompt({1}));
  index->remove_endpoint(3, 1001);
  index->insert({3, 1001}, prompt({1}));
  EXPECT_EQ(index->blocks(3), 0U);
  EXPECT_EQ(index->stats().refused, 1U);
  index->insert({3, 1002}, prompt({2}));
  EXPECT_EQ(index->blocks(3), 1U);
}

TEST(PrefixIndex, LoweringTheCapacityEvictsInSlices) {
  PrefixIndex::Options options;
  options.eviction_slice = 10;
  const auto index = make_index(options);
  for (uint64_t i = 0; i < 100; ++i) index->insert({0}, prompt({i}));
  index->insert({0, 0, 20}, {});
  EXPECT_EQ(index->blocks(0), 90U);
  for (int i = 0; i < 20; ++i) index->insert({0}, prompt({99}));
  EXPECT_EQ(index->blocks(0), 20U);
}

TEST(PrefixIndex, SlotsBeyondTheLimitAreRefused) {
  PrefixIndex::Options options;
  options.max_endpoints = 4;
  const auto index = make_index(options);
  index->insert({4}, prompt({1}));
  EXPECT_EQ(index->entries(), 0U);
  EXPECT_EQ(index->stats().refused, 1U);
  index->remove_endpoint(9);
}

TEST(PrefixIndex, AThousandEndpointsOfOnePromptAreAllFound) {
  const auto index = make_index();
  const Hashes shared = unique_prompt(1, 100);
  for (int e = 0; e < 1000; ++e)
    index->insert({static_cast<EndpointSlot>(e)}, join(shared, 50 + e % 51, 1000 + e, 5));
  const auto found = matches(*index, shared);
  ASSERT_EQ(found.size(), 1000U);
  for (int e = 0; e < 1000; ++e) EXPECT_EQ(found.at(e), 50U + e % 51);
  for (int e = 999; e >= 0; --e) index->remove_endpoint(static_cast<EndpointSlot>(e));
  EXPECT_EQ(PrefixIndexInspector(*index).check(), "");
  EXPECT_EQ(PrefixIndexInspector(*index).pool_used_bytes(), 0U);
}

// One block at a time, nothing clever: what the index has to equal.
class Model {
 public:
  struct Endpoint {
    size_t capacity = 0;
    std::list<uint64_t> order;  // newest first
    std::unordered_map<uint64_t, std::list<uint64_t>::iterator> place;
  };

  Model(size_t endpoints, Random& random, uint32_t max_capacity) : endpoints_(endpoints) {
    for (Endpoint& endpoint : endpoints_) endpoint.capacity = 20 + random.below(max_capacity);
  }
  Endpoint& endpoint(size_t slot) { return endpoints_[slot]; }

  void insert(size_t slot, std::span<const uint64_t> hashes) {
    Endpoint& endpoint = endpoints_[slot];
    for (size_t i = std::min(hashes.size(), endpoint.capacity); i-- > 0;) {
      const auto it = endpoint.place.find(hashes[i]);
      if (it != endpoint.place.end()) endpoint.order.erase(it->second);
      endpoint.order.push_front(hashes[i]);
      endpoint.place[hashes[i]] = endpoint.order.begin();
    }
    evict(slot);
  }
  void evict(size_t slot) {
    Endpoint& endpoint = endpoints_[slot];
    while (endpoint.order.size() > endpoint.capacity) {
      endpoint.place.erase(endpoint.order.back());
      endpoint.order.pop_back();
    }
  }
  void clear(size_t slot) {
    endpoints_[slot].order.clear();
    endpoints_[slot].place.clear();
  }
  uint32_t match(size_t slot, std::span<const uint64_t> hashes) const {
    uint32_t length = 0;
    while (length < hashes.size() && endpoints_[slot].place.contains(hashes[length])) ++length;
    return length;
  }
  size_t size() const { return endpoints_.size(); }
  size_t blocks() const {
    size_t blocks = 0;
    for (const Endpoint& endpoint : endpoints_) blocks += endpoint.place.size();
    return blocks;
  }

 private:
  std::vector<Endpoint> endpoints_;
};

struct Shape {
  size_t endpoints;
  uint32_t max_capacity;
  uint32_t max_depth;
  uint32_t branching;      // of the few levels that branch
  uint32_t branch_one_in;  // levels
  uint64_t seed;
};

// A walk down a random tree of prefixes; the same numbers lead to the same hashes.
Hashes random_prompt(Random& random, const Shape& shape) {
  Hashes out;
  const uint32_t depth = 1 + random.below(shape.max_depth);
  uint64_t parent = 1 + random.below(3);
  for (uint32_t level = 0; level < depth; ++level) {
    const bool branches = chain_hash(level, parent) % shape.branch_one_in == 0;
    parent = chain_hash(branches ? random.below(shape.branching) : 0, parent);
    out.push_back(parent);
  }
  return out;
}

void check_against_model(const Shape& shape, size_t operations) {
  Random random(shape.seed);
  Model model(shape.endpoints, random, shape.max_capacity);
  PrefixIndex::Options options;
  options.eviction_slice = size_t{1} << 30U;
  const auto index = make_index(options);
  for (size_t e = 0; e < shape.endpoints; ++e)
    index->insert({static_cast<EndpointSlot>(e), 0, static_cast<uint32_t>(model.endpoint(e).capacity)}, {});
  PrefixIndexInspector inspector(*index);
  MatchResult result;
  for (size_t op = 0; op < operations; ++op) {
    const auto slot = static_cast<EndpointSlot>(random.below(static_cast<uint32_t>(shape.endpoints)));
    const uint32_t kind = random.below(1000);
    if (kind < 600) {
      const Hashes hashes = random_prompt(random, shape);
      index->insert({slot}, hashes);
      model.insert(slot, hashes);
    } else if (kind < 990) {
      const Hashes hashes = random_prompt(random, shape);
      index->match(hashes, result);
      size_t found = 0;
      for (size_t e = 0; e < shape.endpoints; ++e) {
        const uint32_t expected = model.match(e, hashes);
        found += expected > 0 ? 1 : 0;
        ASSERT_EQ(result.length(static_cast<EndpointSlot>(e)), expected)
            << "operation " << op << ", endpoint " << e << ", seed " << shape.seed;
      }
      ASSERT_EQ(result.endpoints().size(), found);
    } else if (kind < 997) {
      model.endpoint(slot).capacity = 20 + random.below(shape.max_capacity);
      model.evict(slot);
      index->insert({slot, 0, static_cast<uint32_t>(model.endpoint(slot).capacity)}, {});
    } else {
      index->remove_endpoint(slot);
      index->insert({slot, 0, static_cast<uint32_t>(model.endpoint(slot).capacity)}, {});
      model.clear(slot);
    }
    if (op % 1000 == 0) {
      ASSERT_EQ(index->entries(), model.blocks());
      ASSERT_EQ(inspector.check(), "") << "operation " << op;
    }
  }
  for (size_t e = 0; e < shape.endpoints; ++e) {
    ASSERT_EQ(index->blocks(static_cast<EndpointSlot>(e)), model.endpoint(e).place.size());
    index->remove_endpoint(static_cast<EndpointSlot>(e));
  }
  EXPECT_EQ(index->entries(), 0U);
  EXPECT_EQ(index->stats().runs, 0U);
  EXPECT_EQ(inspector.pool_used_bytes(), 0U);
  EXPECT_EQ(inspector.check(), "");
}

TEST(PrefixIndex, EqualsABlockwiseModelOnBranchyPrompts) {
  check_against_model({3, 400, 60, 3, 3, 11}, scaled(20000));
  check_against_model({40, 150, 60, 4, 4, 12}, scaled(20000));
}

TEST(PrefixIndex, EqualsABlockwiseModelOnLongRuns) {
  check_against_model({5, 400, 260, 2, 40, 21}, scaled(10000));
  check_against_model({16, 800, 260, 3, 60, 22}, scaled(10000));
}

TEST(PrefixIndex, EqualsABlockwiseModelOnRunsOfThousandsOfBlocks) {
  check_against_model({4, 5000, 4000, 2, 900, 31}, scaled(300));
}

TEST(PrefixIndex, EqualsABlockwiseModelOnOneBlockPrompts) {
  check_against_model({4, 100, 1, 300, 1, 41}, scaled(10000));
}

PrefixIndex::Options small_memory() {
  PrefixIndex::Options options;
  options.max_bytes = size_t{1} << 20U;
  options.max_endpoints = 16;
  options.capacity_blocks = 1U << 20U;
  return options;
}

TEST(PrefixIndex, StaysWithinItsBytesWhateverTheShapeOfThePrompts) {
  const PrefixIndex::Options options = small_memory();
  const auto index = make_index(options);
  PrefixIndexInspector inspector(*index);
  Random random(5);
  for (int round = 0; round < 4; ++round) {
    // From long prompts to one-block prompts and back: the same memory has to serve both.
    const uint32_t longest = round % 2 == 0 ? 600 : 1;
    const size_t inserts = round % 2 == 0 ? 800 : 8000;
    for (size_t i = 0; i < inserts; ++i) {
      const auto slot = static_cast<EndpointSlot>(random.below(8));
      const Hashes hashes = unique_prompt(random.below(1U << 30U), 1 + random.below(longest));
      index->insert({slot}, hashes);
      if (i % 500 == 0) {
        ASSERT_LE(index->bytes(), options.max_bytes);
        ASSERT_EQ(inspector.check(), "");
      }
      const auto found = matches(*index, hashes);
      ASSERT_EQ(found.count(slot), 1U);
      ASSERT_EQ(found.at(slot), hashes.size());
    }
    ASSERT_EQ(index->stats().refused, 0U);
    EXPECT_GE(inspector.pool_used_bytes(), options.max_bytes * 3 / 4);
  }
  EXPECT_GT(index->stats().evicted, 0U);
}

TEST(PrefixIndex, WithoutMemoryTheGloballyOldestGoesFirst) {
  const auto index = make_index(small_memory());
  Random random(6);
  std::vector<EndpointSlot> slots;
  for (uint64_t i = 0; i < 3000; ++i) {
    slots.push_back(static_cast<EndpointSlot>(random.below(8)));
    index->insert({slots.back()}, unique_prompt(i, 100));
  }
  bool gone = false;
  size_t held = 0;
  for (uint64_t i = slots.size(); i-- > 0;) {
    const auto found = matches(*index, unique_prompt(i, 100));
    if (found == Expected{{slots[i], 100}}) {
      ++held;
      EXPECT_FALSE(gone) << "prompt " << i << " outlived a newer one";
    } else {
      EXPECT_EQ(found, Expected{});
      gone = true;
    }
  }
  EXPECT_TRUE(gone);
  EXPECT_GE(held, 700U);
}

TEST(PrefixIndex, OfAPromptTooLargeForTheMemoryTheBeginningIsKept) {
  const auto index = make_index(small_memory());
  index->insert({0}, unique_prompt(1, 10));
  const Hashes huge = unique_prompt(2, 200000);
  index->insert({0}, huge);
  EXPECT_EQ(matches(*index, huge), (Expected{{0, (1U << 20U) / 64}}));
  EXPECT_EQ(matches(*index, unique_prompt(1, 10)), (Expected{{0, 10}}));
  EXPECT_EQ(index->stats().refused, 0U);
  EXPECT_EQ(PrefixIndexInspector(*index).check(), "");
}

TEST(PrefixIndex, InsertsMadeWhileAnotherThreadWritesAreAppliedLater) {
  PrefixIndex::Options options;
  options.queue_bytes = 4096;
  const auto index = make_index(options);
  PrefixIndexInspector inspector(*index);
  inspector.hold_writer_lock();
  for (uint64_t i = 0; i < 40; ++i) {
    const auto outcome = index->insert({1}, unique_prompt(i, 13));  // 16 words: 32 fit
    EXPECT_EQ(outcome.queued, i < 32) << i;
    EXPECT_EQ(outcome.dropped, i >= 32) << i;
  }
  EXPECT_EQ(index->stats().dropped, 8U);
  EXPECT_EQ(index->entries(), 0U);
  inspector.release_writer_lock();
  // Whoever comes next does a bounded piece of it.
  index->insert({2}, unique_prompt(100, 1));
  EXPECT_EQ(index->blocks(2), 1U);
  EXPECT_GT(index->blocks(1), 0U);
  EXPECT_LT(index->blocks(1), 32U * 13);
  index->insert({2}, unique_prompt(100, 1));
  EXPECT_EQ(index->blocks(1), 32U * 13);
  EXPECT_EQ(matches(*index, unique_prompt(31, 13)), (Expected{{1, 13}}));
  EXPECT_EQ(matches(*index, unique_prompt(32, 13)), Expected{});
}

// Chats grow while another endpoint that shares their runs is cleared and evicted again and again. Every
// answer must lie between what was inserted before the look-up and what was intended after it.
TEST(PrefixIndex, ReadersNeverSeeTooLittleOrTooMuchWhileOthersWrite) {
  constexpr size_t kChats = 64;
  constexpr size_t kLongest = 400;
  PrefixIndex::Options options;
  options.queues = 2;
  options.capacity_blocks = 1U << 20U;
  const auto index = make_index(options);
  std::vector<Hashes> chats;
  for (uint64_t c = 0; c < kChats; ++c) {
    Hashes chat = unique_prompt(c / 8, 40);
    chats.push_back(join(chat, 8 + c % 8 * 4, 100 + c, kLongest));
  }
  std::vector<std::atomic<uint32_t>> done(kChats);
  std::vector<std::atomic<uint32_t>> intended(kChats);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> looked{0};

  std::vector<std::thread> threads;
  for (uint64_t reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&, reader] {
      Random random(reader + 100);
      MatchResult result;
      while (!stop.load(std::memory_order_relaxed)) {
        const size_t c = random.below(kChats);
        const uint32_t least = done[c].load(std::memory_order_acquire);
        index->match(chats[c], result);
        const uint32_t most = intended[c].load(std::memory_order_acquire);
        const uint32_t length = result.length(static_cast<EndpointSlot>(c % 4));
        if (length < least || length > std::max<uint32_t>(most, 40)) wrong.fetch_add(1);
        looked.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  threads.emplace_back([&] {  // makes members come and go on the runs of the chats
    Random random(7);
    while (!stop.load(std::memory_order_relaxed)) {
      const auto slot = static_cast<EndpointSlot>(8 + random.below(8));
      const Hashes& chat = chats[random.below(kChats)];
      index->insert({slot, 0, 300}, std::span(chat).first(1 + random.below(100)));
      index->insert({slot}, unique_prompt(random.below(1U << 20U), 1 + random.below(60)));
      if (random.below(20) == 0) index->remove_endpoint(slot);
    }
  });
  {
    Random random(1);
    const size_t steps = scaled(20000);
    for (size_t step = 0; step < steps; ++step) {
      const size_t c = random.below(kChats);
      const uint32_t before = done[c].load(std::memory_order_relaxed);
      const auto after =
          static_cast<uint32_t>(std::min<size_t>(chats[c].size(), before + 1 + random.below(12)));
      intended[c].store(after, std::memory_order_release);
      index->insert({static_cast<EndpointSlot>(c % 4)}, std::span(chats[c]).first(after));
      index->drain();
      done[c].store(after, std::memory_order_release);
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  index->drain();
  EXPECT_EQ(wrong.load(), 0U) << "of " << looked.load();
  EXPECT_EQ(PrefixIndexInspector(*index).check(), "");
}

TEST(PrefixIndex, ManyWritersLoseNothingButWhatTheyCount) {
  PrefixIndex::Options options;
  options.queues = 4;
  options.capacity_blocks = 1U << 20U;
  const auto index = make_index(options);
  const size_t each = scaled(2000);
  std::atomic<uint64_t> dropped{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < each; ++i)
        dropped +=
            index->insert({static_cast<EndpointSlot>(t)}, unique_prompt(t * each + i, 20)).dropped ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  index->drain();
  EXPECT_EQ(index->entries(), (4 * each - dropped) * 20);
  EXPECT_EQ(index->stats().dropped, dropped);
  EXPECT_EQ(PrefixIndexInspector(*index).check(), "");
}

}  // namespace
}  // namespace penstock::kvindex
