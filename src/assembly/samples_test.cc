// The sample configurations of tests/vectors/config: each <name>.yaml loads and has the effective form that
// <name>.txt has, or is refused with the text after "error: " there. The forms were worked out from the
// reference's rules of defaulting and printing, not copied from a run.

#include <filesystem>
#include <fstream>
#include <iterator>

#include "assembly/assembly_testing.h"
#include "base/source_path_testing.h"

namespace penstock::assembly {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(AssemblyTest, EverySampleConfigurationHasItsEffectiveForm) {
  options_.allow_experimental = true;
  size_t samples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/vectors/config"))) {
    std::filesystem::path path = entry.path();
    if (path.extension() != ".yaml") continue;
    ++samples;
    const std::string text = text_of(path);
    std::string expected = text_of(path.replace_extension(".txt"));
    SCOPED_TRACE(path.stem());
    ASSERT_TRUE(expected.ends_with('\n'));
    expected.pop_back();
    constexpr std::string_view kError = "error: ";
    const Result<Assembly> made = assemble(text, path.stem().string(), options_);
    if (expected.starts_with(kError)) {
      ASSERT_FALSE(made.ok()) << "loads";
      EXPECT_THAT(made.error().message, testing::HasSubstr(expected.substr(kError.size())));
      continue;
    }
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(made->policy->effective_config, expected);
  }
  EXPECT_GE(samples, 15U);
}

}  // namespace
}  // namespace penstock::assembly
