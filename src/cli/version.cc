#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"

namespace penstock::cli {

void add_version(CLI::App& app, int& exit_code) {
#ifdef __clang__
  constexpr const char* kCompiler = "";  // its version begins with its name
#else
  constexpr const char* kCompiler = "GCC ";
#endif
  const std::string text = fmt::format("penstock {} ({}{}, C++{})", PENSTOCK_VERSION, kCompiler, __VERSION__,
                                       __cplusplus / 100 % 100);
  app.set_version_flag("--version", text, "The same as penstock version");
  CLI::App* command =
      app.add_subcommand("version", "Print the version of this build and what it was built with.");
  command->callback([&exit_code, text] {
    std::printf("%s\n", text.c_str());
    exit_code = kOk;
  });
}

}  // namespace penstock::cli
