#include "assembly/plugin_notes.h"

#include <set>

#include "assembly/assembly_testing.h"
#include "assembly/known_types.h"

namespace penstock::assembly {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class PluginNotesTest : public AssemblyTest {
 protected:
  PluginNotesTest() {
    options_.allow_experimental = true;
    options_.api_server = ApiServer::kAsked;
  }
  static std::vector<std::string_view> registered() {
    std::vector<std::string_view> types;
    for (const std::span<const PluginDescriptor> table : builtin_tables())
      for (const PluginDescriptor& plugin : table) types.push_back(plugin.type);
    return types;
  }
  // The text between "```yaml" and "```".
  static std::string_view configuration_in(std::string_view notes) {
    constexpr std::string_view kBegin = "```yaml\n";
    const size_t begin = notes.find(kBegin);
    if (begin == std::string_view::npos) return {};
    notes.remove_prefix(begin + kBegin.size());
    return notes.substr(0, notes.find("```\n"));
  }
};

TEST_F(PluginNotesTest, EveryTypeHasAWorkedExampleAndAConfigurationThatLoadsWithIt) {
  for (const std::string_view type : registered()) {
    SCOPED_TRACE(type);
    const std::string_view notes = notes_of(type);
    EXPECT_THAT(notes, HasSubstr("**Example")) << "write it into the .md beside the source";
    const std::string_view text = configuration_in(notes);
    ASSERT_FALSE(text.empty());
    auto loaded = assemble(text, "notes", options_);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    std::set<std::string> types;
    for (const auto& plugin : loaded->effective.plugins) types.insert(plugin.type);
    EXPECT_TRUE(types.contains(std::string(type)));
    // Nothing in it is without effect or on its way out, but what the example is about.
    for (const std::string& warning : loaded->policy->warnings)
      EXPECT_THAT(warning, AnyOf(HasSubstr("deprecated"), HasSubstr("the feature gate flowControl is off")));
  }
}

TEST_F(PluginNotesTest, AreOfTypesThatThereAreOnceEach) {
  const std::vector<std::string_view> types = registered();
  std::set<std::string_view> seen;
  for (const PluginNotes& notes : plugin_notes()) {
    EXPECT_TRUE(seen.insert(notes.type).second) << notes.type;
    EXPECT_TRUE(std::find(types.begin(), types.end(), notes.type) != types.end() ||
                find_known_type(notes.type) != nullptr)
        << notes.type;
  }
  EXPECT_EQ(notes_of("no-such-type"), "");
}

}  // namespace
}  // namespace penstock::assembly
