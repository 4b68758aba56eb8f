#include <algorithm>
#include <cstdio>

#include "base/spelling.h"
#include "cli/commands.h"
#include "telemetry/log.h"

namespace penstock::cli {

void complain(std::string_view message) {
  std::fprintf(stderr, "penstock: %.*s\n", static_cast<int>(message.size()), message.data());
}

namespace {

// A flag that needs no value: --tracing, --tracing=false.
bool is_flag(const CLI::Option& option) {
  return option.get_expected_max() == 0;
}

// Options as a person reads them: "--grpc-port INT (default 9002)", "--response-phase {always,auto,never}".
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (is_flag(*option)) return option->get_default_str() == "true" ? " (default true)" : "";
    // "INT:INT in [0 - 65535]", "TEXT:{on,off}": the type, then its checks.
    const std::string type = option->get_type_name();
    const size_t colon = type.find(':');
    const bool choice = colon != std::string::npos && type[colon + 1] == '{';
    std::string out = " " + (choice ? type.substr(colon + 1) : type.substr(0, colon));
    const std::string& value = option->get_default_str();
    if (!value.empty() && value != "[]" && value != "{}") out += " (default " + value + ")";
    if (option->get_required()) out += " (required)";
    return out;
  }
};

// "; did you mean --listen?"
std::string meant(const std::string& name, const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view nearest = nearest_word(name, views);
  return nearest.empty() ? "" : "; did you mean " + std::string(nearest) + "?";
}

std::string subcommands_of(const CLI::App& command) {
  std::string out;
  for (const CLI::App* known : command.get_subcommands({})) out += " " + known->get_name();
  return out;
}

// What is wrong with the command line, as a person would say it.
std::string explain_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extras = app.remaining(true);
    const auto flag =
        std::find_if(extras.begin(), extras.end(), [](const auto& e) { return e.starts_with('-'); });
    if (command == &app && !extras.empty() && !extras.front().starts_with('-')) {
      return "unknown subcommand '" + extras.front() + "'; there are" + subcommands_of(app);
    }
    if (flag != extras.end()) {
      const std::string name = flag->substr(0, flag->find('='));
      std::vector<std::string> names;
      for (const CLI::Option* option : command->get_options())
        for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
      return "unknown flag " + name + meant(name, names);
    }
    if (!extras.empty()) return "unexpected argument '" + extras.front() + "'";
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    // "Could not convert: --grpc-port = abc"
    std::string_view text = error.what();
    constexpr std::string_view kLead = "Could not convert: ";
    constexpr std::string_view kIs = " = ";
    const size_t is = text.find(kIs);
    if (text.starts_with(kLead) && is != std::string_view::npos) {
      const std::string name(text.substr(kLead.size(), is - kLead.size()));
      const CLI::Option* option = command->get_option_no_throw(name);
      const bool flag = option != nullptr && is_flag(*option);
      return name + " '" + std::string(text.substr(is + kIs.size())) + "' is not " +
             (flag ? "true or false" : "a number");
    }
  }
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    // "--loops: Value abc not in range 0 to 256"
    std::string text = error.what();
    constexpr std::string_view kValue = ": Value ";
    constexpr std::string_view kRange = " not in range ";
    const size_t value = text.find(kValue);
    const size_t range = text.find(kRange);
    if (value != std::string::npos && range != std::string::npos) {
      text.replace(range, kRange.size(), "' is no number from ");
      return text.replace(value, kValue.size(), " '");
    }
    // "--access-log: maybe not in {on,off}"
    constexpr std::string_view kAfterName = ": ";
    constexpr std::string_view kChoice = " not in {";
    const size_t after_name = text.find(kAfterName);
    const size_t choice = text.rfind(kChoice);
    if (after_name < choice && choice != std::string::npos && text.ends_with('}')) {
      text.pop_back();
      text.replace(choice, kChoice.size(), "' is none of ");
      return text.replace(after_name, kAfterName.size(), " '");
    }
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && command != &app &&
      !command->get_subcommands({}).empty()) {
    return command->get_name() + " needs a subcommand; there are" + subcommands_of(*command);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    // "--listen: 1 required TEXT missing"
    const std::string_view text = error.what();
    if (text.ends_with(" missing")) return std::string(text.substr(0, text.find(':'))) + " needs a value";
  }
  return error.what();
}

int run(int argc, char** argv) {
  CLI::App app{
      "Penstock, the inference gateway for self-hosted LLMs: puts each request on the replica that holds its "
      "prefix, has its adapter or has room, and says why."};
  app.name("penstock");
  app.formatter(std::make_shared<HelpFormatter>());
  // A flag given twice: the last one counts, as with llm-d-router's; lists add up.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.require_subcommand(0, 1);
  app.footer("Each subcommand explains itself: penstock serve --help");
  int exit_code = kOk;
  add_serve(app, exit_code);
  add_epp(app, exit_code);
  add_sim(app, exit_code);
  add_check(app, exit_code);
  add_explain(app, exit_code);
  add_rollback(app, exit_code);
  add_plugins(app, exit_code);
  add_reference(app, exit_code);
  add_version(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "penstock: %s\nRun with --help for more information.\n",
                 explain_error(app, error).c_str());
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
