#include "assembly/assembly_testing.h"

#include <memory>
#include <utility>

namespace penstock::assembly {

namespace {

class TestPlugin final : public Plugin {};

class TestScorer final : public Scorer {
 public:
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double>) const override {}
  void explain(const SchedulingContext&, Candidate, std::string&) const override {}
};

class TestFilter final : public Filter {
 public:
  size_t filter(SchedulingContext&, std::span<Candidate> inout) const override { return inout.size(); }
};

class TestPicker final : public Picker {
 public:
  std::span<const Candidate> pick(SchedulingContext&, std::span<const Candidate> candidates,
                                  std::span<const double>) const override {
    return candidates;
  }
};

class TestHandler final : public ProfileHandler {
 public:
  std::span<const uint32_t> pick(SchedulingContext&, std::span<const std::string>, std::span<bool>,
                                 std::span<const ProfileResult* const>) const override {
    return {};
  }
  Result<SchedulingResult> process(SchedulingContext&, std::span<const std::string>,
                                   std::span<const ProfileResult* const>) const override {
    return SchedulingResult{};
  }
};

void declare(const DataParams& p, DataDeclaration& data) {
  const auto add = [&](auto tag) {
    using T = decltype(tag);
    for (const std::string& k : p.produces) data.produce<T>(test_key(k));
    for (const std::string& k : p.requires_) data.require<T>(test_key(k));
    for (const std::string& k : p.optional) data.optional<T>(test_key(k));
  };
  if (p.as_text) {
    add(std::string());
  } else {
    add(int());
  }
}

class TestProducer final : public DataProducer {
 public:
  explicit TestProducer(DataParams params) : params_(std::move(params)) {}
  Status produce(SchedulingContext&) const override { return {}; }
  void declare_data(DataDeclaration& data) const override { declare(params_, data); }

 private:
  DataParams params_;
};

class TestFairness final : public flowcontrol::FairnessPolicy {
 public:
  explicit TestFairness(DataParams params) : params_(std::move(params)) {}
  size_t pick(std::span<const flowcontrol::QueuedItem>, const flowcontrol::OrderingPolicy&) const override {
    return 0;
  }
  void declare_data(DataDeclaration& data) const override { declare(params_, data); }

 private:
  DataParams params_;
};

// Asks for a key it never declared.
class TestTrespasser final : public Scorer {
 public:
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double>) const override {}
  void explain(const SchedulingContext&, Candidate, std::string&) const override {}
  void bind_slots(const SlotResolver& slots) override { slots.slot(test_key("secret")); }
};

template <typename P>
Result<std::unique_ptr<Plugin>> make(const PluginFactoryContext&) {
  return std::unique_ptr<Plugin>(std::make_unique<P>());
}
template <typename P>
Result<std::unique_ptr<Plugin>> make_data(const PluginFactoryContext& context) {
  DataParams p;
  Status s = config::decode_params(context.parameters, context.path, [&](config::Binder& b) {
    b.field("produces", p.produces, "", "");
    b.field("requires", p.requires_, "", "");
    b.field("optional", p.optional, "", "");
    b.field("asText", p.as_text, "", "");
  });
  if (!s.ok()) return std::move(s).error();
  return std::unique_ptr<Plugin>(std::make_unique<P>(std::move(p)));
}
Result<std::unique_ptr<Plugin>> make_test_plugin(const PluginFactoryContext& context) {
  int64_t threshold = 0;
  int64_t block_size = 0;
  std::string dependency;
  Status s = config::decode_params(context.parameters, context.path, [&](config::Binder& b) {
    b.field("threshold", threshold, "", "");
    b.field("blockSize", block_size, "", "");
    b.field("dependency", dependency, "", "");
  });
  if (!s.ok()) return std::move(s).error();
  return std::unique_ptr<Plugin>(std::make_unique<TestPlugin>());
}
std::vector<std::string> dependency_of(const config::Node* parameters) {
  const config::Node* name = parameters != nullptr ? parameters->find("dependency") : nullptr;
  if (name == nullptr) return {};
  return {name->text};
}

constexpr PluginDescriptor kTestPlugins[] = {
    {.type = "test-plugin", .create = &make_test_plugin},
    {.type = "test-with-dependencies", .create = &make_test_plugin, .references = &dependency_of},
    {.type = "test-scorer", .create = &make<TestScorer>},
    {.type = "test-filter", .create = &make<TestFilter>},
    {.type = "test-picker", .create = &make<TestPicker>},
    {.type = "test-profile-handler", .create = &make<TestHandler>},
    {.type = "test-producer", .create = &make_data<TestProducer>},
    {.type = "test-data-scorer", .create = &make_data<TestDataScorer>},
    {.type = "test-fairness", .create = &make_data<TestFairness>},
    {.type = "test-trespasser", .create = &make<TestTrespasser>},
    {.type = "test-alpha", .stability = Stability::kAlpha, .create = &make<TestScorer>},
    {.type = "test-old", .create = &make<TestScorer>, .replaced_by = "test-scorer"},
};

}  // namespace

DataKey test_key(const std::string& data_type) {
  return {data_type, "test"};
}

void TestDataScorer::declare_data(DataDeclaration& data) const {
  declare(params_, data);
}

void TestDataScorer::bind_slots(const SlotResolver& slots) {
  for (const std::string& k : params_.requires_) slots_.push_back(slots.slot(test_key(k)));
}

std::span<const PluginDescriptor> test_plugins() {
  return kTestPlugins;
}

}  // namespace penstock::assembly
