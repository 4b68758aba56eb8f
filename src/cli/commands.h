#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// Exit codes of every subcommand.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;  // the message is on stderr
inline constexpr int kUsage = 2;   // wrong flags

inline constexpr std::string_view kVersion = PENSTOCK_VERSION;

// Each adds its subcommand to `app`; the subcommand's callback sets `exit_code`. All references outlive
// parsing.
void add_serve(CLI::App& app, int& exit_code);
void add_epp(CLI::App& app, int& exit_code);
void add_sim(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_rollback(CLI::App& app, int& exit_code);
void add_plugins(CLI::App& app, int& exit_code);
void add_reference(CLI::App& app, int& exit_code);
void add_version(CLI::App& app, int& exit_code);

// Prints "penstock: <message>" on stderr.
void complain(std::string_view message);

}  // namespace penstock::cli
