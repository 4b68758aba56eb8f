#include <cstdio>

#include "cli/commands.h"

namespace penstock::cli {

void add_version(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("version", "Print the version of this build and what it was built with.");
  command->callback([&exit_code] {
    std::printf("penstock %s (%s, C++%ld)\n", PENSTOCK_VERSION, __VERSION__, __cplusplus / 100 % 100);
    exit_code = kOk;
  });
}

}  // namespace penstock::cli
