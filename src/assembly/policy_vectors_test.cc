// Runs the policy conformance vectors, and holds the registry against their list of plugin types.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "assembly/assembly.h"
#include "assembly/known_types.h"
#include "assembly/policy_vectors/bench_testing.h"
#include "base/source_path_testing.h"
#include "config/files.h"

namespace penstock::assembly::vectors {
namespace {

std::filesystem::path folder() {
  return source_path("tests/vectors/policies");
}

std::vector<std::filesystem::path> files() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() == ".yaml" && entry.path().stem() != "index") out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class PolicyVectors : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(PolicyVectors, HoldInEveryCase) {
  const Result<VectorFile> file = read_file(GetParam());
  ASSERT_TRUE(file.ok()) << file.error().message;
  std::set<std::string> names;
  for (const Case& vector : file->cases) {
    EXPECT_TRUE(names.insert(vector.name).second) << "two cases are named " << vector.name;
    run_case(vector);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, PolicyVectors, testing::ValuesIn(files()), [](const auto& info) {
  std::string name = info.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST(PolicyVectorFiles, EveryPluginTypeOfTheSchedulerHasVectorsThatUseIt) {
  std::set<std::string> covered;
  for (const auto& path : files()) {
    const Result<VectorFile> file = read_file(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    for (const std::string& type : file->plugins) {
      // Named is not enough: a case's configuration has it.
      const bool used = std::any_of(file->cases.begin(), file->cases.end(), [&](const Case& vector) {
        if (!vector.configuration || vector.refused_config) return false;
        const Node* plugins = vector.configuration->find("plugins");
        return plugins != nullptr &&
               std::any_of(plugins->items.begin(), plugins->items.end(), [&](const Node& plugin) {
                 const Node* named = plugin.find("type");
                 return named != nullptr && named->text == type;
               });
      });
      EXPECT_TRUE(used) << path.filename() << " has no case with a " << type;
      covered.insert(type);
    }
  }
  for (const PluginDescriptor& plugin : scheduling::scheduling_plugins())
    EXPECT_TRUE(covered.contains(std::string(plugin.type))) << plugin.type << " has no vector";
}

const PluginDescriptor* registered(std::string_view type) {
  for (const auto table : builtin_tables()) {
    for (const PluginDescriptor& descriptor : table) {
      if (descriptor.type == type) return &descriptor;
    }
  }
  return nullptr;
}

// index.yaml against the registry, and against the list that tells a type that is missing from a typo.
TEST(PolicyVectorFiles, TheIndexSaysWhatIsRegisteredAndNamesWhatIsMissing) {
  const auto path = folder() / "index.yaml";
  const Result<std::string> text = config::read_file(path.string(), 1U << 20U);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const Result<Node> index = config::parse_document(*text, "index.yaml");
  ASSERT_TRUE(index.ok()) << index.error().message;
  const Node* types = nullptr;
  const Node* missing = nullptr;
  std::vector<std::string> own;
  expect_decoded(*index, "", [&](Binder& b) {
    b.node("types", types, "");
    b.node("missing", missing, "");
    b.field("own", own, "", "");
  });
  ASSERT_TRUE(types != nullptr && missing != nullptr);

  std::set<std::string, std::less<>> waiting;
  for (const Node& node : missing->items) {
    std::string type;
    std::string waits_for;
    expect_decoded(node, "missing", [&](Binder& b) {
      b.field("type", type, "", "");
      b.field("waitsFor", waits_for, "", "");
    });
    EXPECT_FALSE(waits_for.empty()) << type;
    EXPECT_EQ(registered(type), nullptr) << type << " is registered: no longer missing";
    waiting.insert(type);
  }
  std::set<std::string, std::less<>> known;
  for (const Node& node : types->items) {
    std::string type;
    std::string kind;
    std::string stability;
    std::string replaced_by;
    expect_decoded(node, "types", [&](Binder& b) {
      b.field("type", type, "", "");
      b.field("kind", kind, "", "");
      b.field("stability", stability, "", "");
      b.field("replacedBy", replaced_by, "", "");
    });
    EXPECT_TRUE(known.insert(type).second) << type << " stands there twice";
    const KnownType* name = find_known_type(type);
    ASSERT_NE(name, nullptr) << type;
    const Stability wanted = stability == "Alpha" ? Stability::kAlpha : Stability::kBeta;
    EXPECT_EQ(name->stability, wanted) << type;
    EXPECT_EQ(name->replaced_by, replaced_by) << type;
    const PluginDescriptor* plugin = registered(type);
    if (plugin == nullptr) {
      EXPECT_TRUE(waiting.contains(type)) << type << " is neither registered nor named as missing";
      continue;
    }
    EXPECT_EQ(plugin->stability, wanted) << type;
    EXPECT_EQ(plugin->replaced_by, replaced_by) << type;
  }
  for (const std::string& type : waiting) EXPECT_TRUE(known.contains(type)) << type;
  EXPECT_EQ(known.size(), known_types().size());
  for (const auto table : builtin_tables()) {
    for (const PluginDescriptor& plugin : table) {
      const bool ours = std::find(own.begin(), own.end(), plugin.type) != own.end();
      EXPECT_NE(known.contains(plugin.type), ours) << plugin.type << " belongs into one of the lists";
    }
  }
}

}  // namespace
}  // namespace penstock::assembly::vectors
