#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "inference/plugin.h"
#include "signals/engine_table.h"
#include "signals/exposition_scanner.h"
#include "signals/page_sink.h"

namespace penstock::signals {

// Which series of a page one scraped number is.
struct ScalarRule {
  // By engine name; the entry "" is for every other engine.
  std::map<std::string, MetricSpec, std::less<>> specs;
  // Series whose `pod` label names another pod don't count.
  bool own_pod_only = false;
  // Samples that are not finite count for nothing. Of several series the largest counts; otherwise the one
  // with the highest timestamp, the first on ties.
  bool largest = false;
  double scale = 1;  // factor on the page's number
};

// Numbers of endpoints' pages, by rule. A page without a series makes its number unknown, and so do as many
// failing scrapes in a row as make an endpoint's signals read endpoint_down; fewer leave it as old as it is.
// Thread-safe; one lock, held for one copy.
class ScalarSink final : public PageSink {
 public:
  explicit ScalarSink(std::vector<ScalarRule> rules);

  void attached(const Endpoint& endpoint) override;
  void page(const Endpoint& endpoint, std::string_view engine, std::string_view body,
            TimePoint observed_at) override;
  void down(EndpointSlot slot) override { gone(slot); }
  void gone(EndpointSlot slot) override;
  // Rule `rule`'s number on each of the candidates, into their rows of `column`.
  void copy(size_t rule, const PoolSnapshot& pool, std::span<const Candidate> candidates,
            std::span<EndpointScalar> column) const;
  size_t rules() const { return rules_.size(); }

 private:
  static const MetricSpec* spec_of(const ScalarRule& rule, std::string_view engine);
  void clear(EndpointSlot slot);  // under mutex_

  const std::vector<ScalarRule> rules_;
  const NameSet names_;
  mutable std::mutex mutex_;
  std::vector<EndpointScalar> values_;  // [slot * rules + rule], as long as the highest slot seen
  std::vector<uint64_t> owners_;        // [slot]: hash of the id and address of whose values they are
};

// An extractor whose numbers become attribute columns. `keys` are parallel to the sink's rules; their
// producer is a type, whatever the instance is called.
class ScalarExtractor : public DataProducer, public PageExtractor {
 public:
  ScalarExtractor(std::vector<DataKey> keys, std::shared_ptr<ScalarSink> sink);

  void declare_data(DataDeclaration& data) const override;
  void bind_slots(const SlotResolver& slots) override;
  Status produce(SchedulingContext& ctx) const override;
  std::shared_ptr<PageSink> sink() const override { return sink_; }

 private:
  std::vector<DataKey> keys_;
  std::shared_ptr<ScalarSink> sink_;
  std::vector<AttributeSlot> slots_;
};

// `models-data-extractor`: which models each endpoint says it serves (GET /v1/models). At most kMaxModels of
// an endpoint, names of at most kMaxNameBytes. No plugin decides by them; dump_state() shows them.
class ModelsSink final : public PageSink {
 public:
  static constexpr size_t kMaxModels = 256;
  static constexpr size_t kMaxNameBytes = 256;

  void attached(const Endpoint& endpoint) override;
  void page(const Endpoint& endpoint, std::string_view engine, std::string_view body,
            TimePoint observed_at) override;
  void gone(EndpointSlot slot) override;
  std::vector<std::string> models(EndpointSlot slot) const;
  // {"endpoints":[{"endpoint","models":[…]}…],"totalEndpoints","maxEndpoints"}
  std::string dump() const;

 private:
  struct Entry {
    std::string endpoint_id;
    std::vector<std::string> models;
  };
  mutable std::mutex mutex_;
  std::map<EndpointSlot, Entry> entries_;
};

class ModelsExtractor final : public PageExtractor {
 public:
  explicit ModelsExtractor(std::shared_ptr<ModelsSink> sink) : sink_(std::move(sink)) {}
  std::shared_ptr<PageSink> sink() const override { return sink_; }
  std::optional<std::string> dump_state() const override { return sink_->dump(); }

 private:
  std::shared_ptr<ModelsSink> sink_;
};

}  // namespace penstock::signals
