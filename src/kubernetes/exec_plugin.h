#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "kubernetes/cluster_config.h"

namespace penstock::kubernetes {

// What an exec plugin printed.
struct ExecCredential {
  std::string token;
  std::string certificate_pem, key_pem;
  std::optional<WallTime> expires;
};

// An ExecCredential object.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
Result<ExecCredential> parse_exec_credential(std::string_view text);
// Runs the program and reads what it prints, at most 1 MiB. Blocks until it has ended, at most for `timeout`;
// then it is killed with what it has started. The error has the beginning of what it wrote to stderr, and the
// install hint where it can't be found.
Result<ExecCredential> run_exec_plugin(const ExecPlugin& plugin, Duration timeout);

}  // namespace penstock::kubernetes
