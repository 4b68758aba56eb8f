#include "kubernetes/credentials.h"

#include "base/base64.h"
#include "base/strings.h"
#include "config/files.h"
#include "telemetry/log.h"

namespace penstock::kubernetes {

namespace {
constexpr Duration kReadAgain = std::chrono::minutes(1);
constexpr Duration kRefusedAgain = std::chrono::seconds(1);
constexpr Duration kBeforeExpiry = std::chrono::seconds(10);
constexpr Duration kPluginTimeout = std::chrono::seconds(60);
constexpr Duration kFileTimeout = std::chrono::seconds(10);
constexpr size_t kMaxTokenBytes = 1 << 20;
}  // namespace

Result<std::unique_ptr<Credentials>> Credentials::create(io::Loop& loop, ClusterConfig config) {
  std::unique_ptr<Credentials> out(new Credentials(loop, std::move(config)));
  const ClusterConfig& c = out->config_;
  if (!c.username.empty()) {
    out->value_ = "Basic " + base64_encode(c.username + ":" + c.password);
    out->old_ = false;
  } else if (c.token_file.empty() && !c.exec) {
    out->value_ = c.token.empty() ? "" : "Bearer " + c.token;
    out->old_ = false;
  }
  if (out->value_.find_first_of("\r\n") != std::string::npos)
    return invalid_config(c.source + ": a line end in the token");
  if (!c.tls) return out;
  auto context = io::TlsClientContext::create(out->tls_options());
  if (!context.ok()) return context.error().wrap(c.source);
  out->tls_ = *std::move(context);
  return out;
}

io::TlsClientOptions Credentials::tls_options() const {
  io::TlsClientOptions options;
  options.verify = !config_.skip_verify;
  options.ca_file = config_.ca_file;
  options.ca_pem = config_.ca_pem;
  options.certificate_file = config_.certificate_file;
  options.certificate_pem = config_.certificate_pem;
  options.key_file = config_.key_file;
  options.key_pem = config_.key_pem;
  return options;
}

void Credentials::refused() {
  if (config_.token_file.empty() && !config_.exec) return;
  if (clock_.now() - got_ >= kRefusedAgain) old_ = true;
}

io::Task<Result<std::string>> Credentials::authorization(io::CancelToken token) {
  if (!config_.token_file.empty()) co_return co_await from_file(token);
  if (config_.exec) co_return co_await from_plugin(token);
  co_return value_;
}

io::Task<Result<std::string>> Credentials::from_file(io::CancelToken token) {
  if (!old_ && clock_.now() - got_ < kReadAgain) co_return value_;
  auto job = [path = config_.token_file] { return config::read_file(path, kMaxTokenBytes); };
  auto read = co_await io::run_blocking(loop_, job, kFileTimeout, token);
  if (!read.ok() && read.error().code == ErrorCode::kCancelled) co_return std::move(read).error();
  Status problem;
  if (!read.ok()) {
    problem = read.error();
  } else if (!read->ok()) {
    problem = read->error();
  } else if (trim(**read).empty() || trim(**read).find_first_of("\r\n") != std::string_view::npos) {
    problem = Error{ErrorCode::kUnauthorized, config_.token_file + " holds no token"};
  }
  got_ = clock_.now();
  if (problem.ok()) {
    value_ = "Bearer " + std::string(trim(**read));
    old_ = false;
    last_error_.clear();
    co_return value_;
  }
  if (value_.empty()) co_return problem.error().wrap(config_.source);
  if (problem.error().message != last_error_) {
    telemetry::log_warn("the token can't be read again, the former one is used on",
                        {{"cluster", config_.source}, {"error", problem.error().message}});
  }
  last_error_ = problem.error().message;
  co_return value_;
}

// One run of the plugin. Outlives whoever began it, so that no second program is started beside it.
struct Credentials::PluginRun {
  explicit PluginRun(io::Loop& loop) : ended(loop) {}
  io::Event ended;
  std::optional<Result<ExecCredential>> outcome;  // set before `ended`
};

io::Task<void> Credentials::run_plugin(io::Loop& loop, ExecPlugin plugin, std::shared_ptr<PluginRun> run) {
  auto job = [plugin = std::move(plugin)] { return run_exec_plugin(plugin, kPluginTimeout); };
  const io::CancelToken token = loop.shutdown_token();
  auto ran = co_await io::run_blocking(loop, job, kPluginTimeout + kFileTimeout, token);
  if (ran.ok()) {
    run->outcome = *std::move(ran);
  } else {
    run->outcome = std::move(ran).error();
  }
  run->ended.set();
}

io::Task<Result<std::string>> Credentials::from_plugin(io::CancelToken token) {
  if (!run_) {
    const bool expired = expires_ && clock_.wall_now() + kBeforeExpiry >= *expires_;
    if (!old_ && !expired) co_return value_;
    if (plugin_error_ && clock_.now() - got_ < kRefusedAgain) co_return *plugin_error_;
    run_ = std::make_shared<PluginRun>(loop_);
    io::spawn(loop_, run_plugin(loop_, *config_.exec, run_));
  }
  const std::shared_ptr<PluginRun> run = run_;
  Status ended = co_await run->ended.wait(Duration::zero(), token);
  if (!ended.ok()) co_return std::move(ended).error();
  if (run_ == run) {
    // The first of those who waited.
    run_.reset();
    got_ = clock_.now();
    plugin_error_.reset();
    if (Status status = take(*run->outcome); !status.ok())
      plugin_error_ = status.error().wrap(config_.source);
  }
  if (plugin_error_) co_return *plugin_error_;
  co_return value_;
}

Status Credentials::take(const Result<ExecCredential>& outcome) {
  if (!outcome.ok()) return outcome.error();
  if (!outcome->certificate_pem.empty()) {
    if (Status status = take_certificate(outcome->certificate_pem, outcome->key_pem); !status.ok())
      return status;
  }
  value_ = outcome->token.empty() ? "" : "Bearer " + outcome->token;
  expires_ = outcome->expires;
  old_ = false;
  return {};
}

Status Credentials::take_certificate(const std::string& certificate, const std::string& key) {
  if (config_.certificate_pem == certificate && config_.key_pem == key) return {};
  io::TlsClientOptions options = tls_options();
  options.certificate_file.clear();
  options.key_file.clear();
  options.certificate_pem = certificate;
  options.key_pem = key;
  if (config_.tls) {
    auto context = io::TlsClientContext::create(options);
    if (!context.ok()) return std::move(context).error();
    tls_ = *std::move(context);
  }
  config_.certificate_file.clear();
  config_.key_file.clear();
  config_.certificate_pem = certificate;
  config_.key_pem = key;
  return {};
}

io::Task<void> Credentials::reload_certificates(io::CancelToken token) {
  if (!tls_ || (config_.ca_file.empty() && config_.certificate_file.empty())) co_return;
  const TimePoint now = clock_.now();
  if (certificates_read_ != kNever && now - certificates_read_ < kReadAgain) co_return;
  certificates_read_ = now;
  auto job = [tls = tls_] { return tls->reload(); };
  auto reloaded = co_await io::run_blocking(loop_, job, kFileTimeout, token);
  if (reloaded.ok() && !reloaded->ok()) {
    telemetry::log_warn("certificates of the cluster can't be read again, the former ones are used on",
                        {{"cluster", config_.source}, {"error", reloaded->error().message}});
  }
}

}  // namespace penstock::kubernetes
