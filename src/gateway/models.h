#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/http_client.h"
#include "io/loop.h"

namespace penstock::gateway {

// The models one or more engines serve, adapters included: id and the entry as the engine wrote it, all
// fields kept.
struct ModelList {
  std::vector<std::pair<std::string, std::string>> entries;

  // Adds what is not there by id; the first that names an id wins.
  void merge(const ModelList& other);
  // {"object":"list","data":[…]}
  std::string to_json() const;
  // The entry of this id, or nullptr.
  const std::string* find(std::string_view id) const;
};

// Decodes an engine's answer to GET /v1/models; `padded` has io::kBodyPadding readable bytes after it.
Result<ModelList> decode_models(std::string_view padded);

// One pool's model list on one loop: asked of all its engines at once, kept for a second, one question at
// a time.
class ModelsCache {
 public:
  struct Source {
    io::HttpDestination destination;
    std::string authorization;
  };
  explicit ModelsCache(io::HttpClient& client) : client_(client) {}

  // `membership` is the epoch that the sources are of; whoever waits on a question to older ones asks again.
  // Errors: kServiceUnavailable without sources, kBadGateway when none answered. Engines that don't answer
  // within two seconds are left out.
  io::Task<Result<std::shared_ptr<const ModelList>>> get(std::vector<Source> sources, uint64_t membership,
                                                         TimePoint now);

 private:
  struct Gather;
  static io::Task<void> ask(io::HttpClient& client, Source source, size_t position,
                            std::shared_ptr<Gather> gather);

  static constexpr Duration kFresh = std::chrono::seconds(1);
  io::HttpClient& client_;
  std::shared_ptr<const ModelList> list_;
  TimePoint fetched_at_ = kNever;
  uint64_t membership_ = 0;
  std::shared_ptr<Gather> running_;
};

}  // namespace penstock::gateway
