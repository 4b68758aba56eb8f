#pragma once

// What tests of the loader share: plugins that do nothing but be there, and a fixture that assembles a text
// with them beside the built-in ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "assembly/assembly.h"
#include "base/clock.h"
#include "inference/plugin.h"
#include "telemetry/metrics.h"

namespace penstock::assembly {

// A producer (or, as Kind Scorer, a consumer) of the data its parameters name.
struct DataParams {
  std::vector<std::string> produces;
  std::vector<std::string> requires_;
  std::vector<std::string> optional;
  bool as_text = false;
};
// The data key of producer "test".
DataKey test_key(const std::string& data_type);

class TestDataScorer final : public Scorer {
 public:
  explicit TestDataScorer(DataParams params) : params_(std::move(params)) {}
  void score(SchedulingContext&, std::span<const Candidate>, std::span<double>) const override {}
  void explain(const SchedulingContext&, Candidate, std::string&) const override {}
  void declare_data(DataDeclaration& data) const override;
  void bind_slots(const SlotResolver& slots) override;
  const std::vector<AttributeSlot>& slots() const { return slots_; }

 private:
  DataParams params_;
  std::vector<AttributeSlot> slots_;
};

// test-plugin, test-with-dependencies, test-scorer, test-filter, test-picker, test-profile-handler,
// test-producer and test-data-scorer and test-fairness (DataParams), test-trespasser, test-alpha, test-old.
std::span<const PluginDescriptor> test_plugins();

class AssemblyTest : public testing::Test {
 protected:
  AssemblyTest() {
    for (const std::span<const PluginDescriptor> table : builtin_tables()) tables_.push_back(table);
    tables_.push_back(test_plugins());
    options_.tables = tables_;
  }

  Assembly assembled(std::string_view text) {
    auto result = assemble(text, "epp.yaml", options_);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : Assembly{};
  }
  std::string error_of(std::string_view text) {
    auto result = assemble(text, "epp.yaml", options_);
    return result.ok() ? "no error" : result.error().message;
  }
  static std::vector<std::string> plugin_refs(const Assembly& a, size_t profile = 0) {
    std::vector<std::string> out;
    for (const auto& p : a.effective.scheduling_profiles.at(profile).plugins) out.push_back(p.plugin_ref);
    return out;
  }
  static std::vector<std::string> created(const Assembly& a) {
    std::vector<std::string> out;
    for (const AutoCreatedProducer& p : a.auto_created) out.push_back(p.producer);
    return out;
  }
  static std::vector<std::string> producers(const Assembly& a) {
    std::vector<std::string> out;
    for (const DataProducer* p : a.policy->producers) out.push_back(p->name());
    return out;
  }

  telemetry::MetricRegistry metrics_;
  SystemClock clock_;
  std::vector<std::span<const PluginDescriptor>> tables_;
  static constexpr std::string_view kGates[] = {"test-feature-gate"};
  AssemblyOptions options_{
      .tables = {}, .metrics = metrics_, .clock = clock_, .further_feature_gates = kGates};
};

}  // namespace penstock::assembly
