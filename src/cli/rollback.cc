#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "cli/admin_client.h"
#include "cli/commands.h"
#include "io/http_client.h"

namespace penstock::cli {

namespace {

struct RollbackFlags {
  std::string admin{kDefaultAdminUrl};
  std::string pool;
};

int rollback(const RollbackFlags& flags) {
  const std::string base = admin_base(flags.admin);
  const std::string url =
      base + "/debug/rollback" + (flags.pool.empty() ? "" : "?pool=" + percent_encode(flags.pool));
  const auto answer = io::http_request_blocking("POST", url);
  if (!answer.ok()) {
    complain(base + ": " + answer.error().message);
    return kFailed;
  }
  if (answer->status != 200) {
    const std::string why = reason_of(answer->body);
    complain(!why.empty() ? why
                          : fmt::format("{} answered {}; is it the admin address?\n{}", url, answer->status,
                                        trim(answer->body)));
    return kFailed;
  }
  const nlohmann::json page = nlohmann::json::parse(answer->body, nullptr, false);
  const bool ours = page.is_object() && page.value("pool", nlohmann::json()).is_string() &&
                    page.value("policy_epoch", nlohmann::json()).is_number();
  if (!ours) {
    complain(url + " answered something else; is it the admin address?");
    return kFailed;
  }
  std::printf("pool %s is back at its former configuration, as policy epoch %llu\n",
              page.value("pool", "").c_str(),
              static_cast<unsigned long long>(page.value("policy_epoch", uint64_t{0})));
  return kOk;
}

}  // namespace

void add_rollback(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("rollback",
                         "Tell a running penstock on this machine to go back to the picker configuration "
                         "before the last change; "
                         "once more leads forward again. The next reload takes what the files say.");
  auto flags = std::make_shared<RollbackFlags>();
  command->add_option("--admin", flags->admin, "Admin address of the running process")->capture_default_str();
  command->add_option("--pool", flags->pool, "Pool, 'name' or 'namespace/name' (default: the only one)");
  command->footer(
      "Exit code 1: there is no former configuration, or nobody answers.\n"
      "Example: penstock rollback --pool llama");
  command->callback([flags, &exit_code] { exit_code = rollback(*flags); });
}

}  // namespace penstock::cli
