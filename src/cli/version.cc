#include <cstdio>

#include "cli/commands.h"

namespace penstock::cli {

void add_version(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("version", "Print the version of this build and what it was built with.");
  command->callback([&exit_code] {
#ifdef __clang__
    constexpr const char* kCompiler = "";  // its version begins with its name
#else
    constexpr const char* kCompiler = "GCC ";
#endif
    std::printf("penstock %s (%s%s, C++%ld)\n", PENSTOCK_VERSION, kCompiler, __VERSION__,
                __cplusplus / 100 % 100);
    exit_code = kOk;
  });
}

}  // namespace penstock::cli
