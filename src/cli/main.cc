#include <cstdio>

#include "cli/commands.h"

namespace penstock::cli {

void complain(std::string_view message) {
  std::fprintf(stderr, "penstock: %.*s\n", static_cast<int>(message.size()), message.data());
}

namespace {

int run(int argc, char** argv) {
  CLI::App app{
      "Penstock, the inference gateway for self-hosted LLMs: puts each request on the replica that holds its "
      "prefix, has its adapter or has room, and says why."};
  app.name("penstock");
  app.require_subcommand(0, 1);
  app.footer("Each subcommand explains itself: penstock serve --help");
  int exit_code = kOk;
  add_serve(app, exit_code);
  add_epp(app, exit_code);
  add_sim(app, exit_code);
  add_check(app, exit_code);
  add_explain(app, exit_code);
  add_plugins(app, exit_code);
  add_reference(app, exit_code);
  add_version(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "penstock: %s\nRun with --help for more information.\n", error.what());
    return kUsage;
  }
  if (app.get_subcommands().empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace penstock::cli

int main(int argc, char** argv) {
  return penstock::cli::run(argc, argv);
}
