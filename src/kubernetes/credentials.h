#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "io/loop.h"
#include "io/tls.h"
#include "kubernetes/cluster_config.h"
#include "kubernetes/exec_plugin.h"

namespace penstock::kubernetes {

// Who we are for an API server, kept fresh: a token file is read again every minute (the kubelet replaces
// it), an exec plugin is run again ten seconds before what it printed expires. Files are read and programs
// run on a blocking thread, one program at a time whoever gives up waiting for it. Lives on one loop.
class Credentials {
 public:
  // kInvalidConfig when certificates can't be used.
  static Result<std::unique_ptr<Credentials>> create(io::Loop& loop, ClusterConfig config);

  // The value of the Authorization header; "" none. Errors: the token file can't be read, the plugin failed;
  // a token that was good before is used on while its file can't be read. A plugin's failure is the answer
  // for a second.
  io::Task<Result<std::string>> authorization(io::CancelToken token);
  // The server has answered 401: what is kept counts as old, though not within a second of when it was got.
  void refused();
  // A connection failed: certificates are read again, at most once a minute.
  io::Task<void> reload_certificates(io::CancelToken token);
  // Null: the server speaks plain HTTP. Changes when an exec plugin gives another certificate.
  const std::shared_ptr<io::TlsClientContext>& tls() const { return tls_; }

 private:
  Credentials(io::Loop& loop, ClusterConfig config) : loop_(loop), config_(std::move(config)) {}
  io::Task<Result<std::string>> from_file(io::CancelToken token);
  io::Task<Result<std::string>> from_plugin(io::CancelToken token);
  struct PluginRun;
  static io::Task<void> run_plugin(io::Loop& loop, ExecPlugin plugin, std::shared_ptr<PluginRun> run);
  Status take(const Result<ExecCredential>& outcome);
  Status take_certificate(const std::string& certificate, const std::string& key);
  io::TlsClientOptions tls_options() const;

  io::Loop& loop_;
  ClusterConfig config_;
  SystemClock clock_;
  std::shared_ptr<io::TlsClientContext> tls_;
  std::string value_;       // of the header
  TimePoint got_ = kNever;  // when it was read
  bool old_ = true;
  std::optional<WallTime> expires_;
  std::shared_ptr<PluginRun> run_;     // null: the plugin doesn't run
  std::optional<Error> plugin_error_;  // of the last run
  TimePoint certificates_read_ = kNever;
  std::string last_error_;
};

}  // namespace penstock::kubernetes
