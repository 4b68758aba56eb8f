#include <utility>

#include "admin/admin_server.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/epp_flags.h"
#include "cli/epp_plan.h"
#include "cli/process.h"
#include "extproc/epp_runtime.h"
#include "io/net.h"
#include "telemetry/log.h"

namespace penstock::cli {

namespace {

Result<std::shared_ptr<io::TlsServerContext>> metrics_tls(const EppPlan& plan) {
  if (plan.metrics_certs.empty()) return std::shared_ptr<io::TlsServerContext>();
  io::TlsServerOptions options;
  options.certificates.push_back({plan.metrics_certs + "/tls.crt", plan.metrics_certs + "/tls.key"});
  options.client_ca_file = plan.metrics_client_ca;
  options.require_client_certificate = !plan.metrics_client_ca.empty();
  auto context = io::TlsServerContext::create(options);
  if (!context.ok()) return context.error().wrap("metrics TLS cert file unreadable");
  return context;
}

// 0 where the cluster says that the bearer of this token may use the page.
io::Task<int> refusal(discovery::KubernetesDiscovery& cluster, io::HttpExchange& exchange) {
  const io::RequestHead& request = exchange.request();
  std::string_view token = request.fields.get("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (!ascii_iequals(token.substr(0, kScheme.size()), kScheme)) co_return 401;
  token = trim(token.substr(kScheme.size()));
  const kubernetes::Access access =
      co_await cluster.review(exchange.loop(), std::string(token), ascii_lower(request.method),
                              std::string(request.path), exchange.cancel_token());
  switch (access) {
    case kubernetes::Access::kAllowed:
      co_return 0;
    case kubernetes::Access::kUnauthenticated:
      co_return 401;
    case kubernetes::Access::kDenied:
      co_return 403;
    case kubernetes::Access::kUnknown:
      break;
  }
  co_return 503;
}

void warn_of_ignored_flags(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() != kNoEffect || option->count() == 0) continue;
    telemetry::log_warn("a flag is accepted without effect",
                        {{"flag", option->get_name()}, {"why", option->get_description()}});
  }
}

// Flags about a cluster that this picker asks nothing.
void warn_of_cluster_flags(const EppFlags& flags, const CLI::App& command, bool asks) {
  const auto warn = [&](const char* name, std::string_view why) {
    if (command.get_option(name)->count() == 0) return;
    telemetry::log_warn("a flag has no effect", {{"flag", name}, {"why", why}});
  };
  if (asks) {
    if (!flags.endpoint_selector.empty()) warn("--pool-group", "--endpoint-selector needs no InferencePool");
    return;
  }
  for (const char* name : {"--pool-group", "--endpoint-selector", "--endpoint-target-ports", "--kubeconfig",
                           "--ha-enable-leader-election"}) {
    warn(name, "endpoints are named without a cluster");
  }
}

// The admin pages; who may see them is the cluster's to say, where there is one to ask.
admin::AdminPages guarded_pages(const EppFlags& flags, extproc::EppRuntime& runtime) {
  admin::AdminPages pages = pages_of<extproc::Door::ExplainRequest>(runtime);
  if (!flags.metrics_auth) return pages;
  if (discovery::KubernetesDiscovery* cluster = runtime.cluster(); cluster != nullptr) {
    pages.refuse = [cluster](io::HttpExchange& exchange) { return refusal(*cluster, exchange); };
  } else if (flags.metrics_client_ca.empty()) {
    telemetry::log_info("metrics-endpoint-auth: there is no Kubernetes API to ask, /metrics is open");
  }
  return pages;
}

// Reads flags' documents again; what can't be used leaves the former state.
void reload(const EppFlags& flags, const CLI::App& command, EppPlan& plan, extproc::EppRuntime& runtime) {
  telemetry::log_info("SIGHUP: reading files again");
  auto again = plan_of(flags, command);
  if (!again.ok()) {
    telemetry::log_error("reload failed, the former state stays", {{"error", again.error().message}});
    return;
  }
  for (const std::string& warning : again->warnings) telemetry::log_warn(warning);
  plan.drain_timeout = again->drain_timeout;
  // What failed is in the log, part by part.
  static_cast<void>(runtime.reload(std::move(again->options)));
}

void drain_requests(ProcessSignals& signals, Duration timeout, extproc::EppRuntime& runtime) {
  telemetry::log_info("draining", {{"timeout_s", to_seconds(timeout)}});
  runtime.begin_drain();
  // Data planes go on sending until they see that health says NOT_SERVING, and silence does not tell that
  // they have: an idle one may send its next request here.
  if (drain(signals, timeout, [] { return 1; })) return;
  telemetry::log_info("closing", {{"requests", runtime.active_requests()}});
  runtime.close_door();
  drain(signals, timeout, [&] { return runtime.active_requests(); });
}

int epp(const EppFlags& flags, const CLI::App& command) {
  auto plan = plan_of(flags, command);
  if (!plan.ok()) {
    complain(plan.error().message);
    return kFailed;
  }
  ProcessSignals signals;
  telemetry::init_logging(log_level(plan->log_level));
  for (const std::string& warning : plan->warnings) telemetry::log_warn(warning);
  warn_of_ignored_flags(command);
  const auto fail = [](const Error& error) {
    telemetry::log_error("penstock can't start", {{"error", error.message}});
    telemetry::flush_logs();
    return kFailed;
  };
  const auto tls = metrics_tls(*plan);
  if (!tls.ok()) return fail(tls.error());
  auto created = extproc::EppRuntime::create(plan->options);
  if (!created.ok()) return fail(created.error());
  extproc::EppRuntime& runtime = **created;
  warn_of_cluster_flags(flags, command, runtime.cluster() != nullptr);

  io::LoopGroup admin_loop(1);
  admin_loop.start();
  admin::AdminServer admin(admin_loop.at(0), guarded_pages(flags, runtime));
  const auto address = io::SocketAddress::parse(plan->admin_address);
  if (!address.ok()) return fail(address.error().wrap("metrics address"));
  const auto bound = admin.listen(*address, *tls);
  if (!bound.ok()) return fail(bound.error().wrap("metrics address " + plan->admin_address));
  telemetry::log_info("admin listening", {{"address", bound->to_string()}});
  if (Status status = runtime.start(); !status.ok()) {
    admin.stop();
    runtime.stop();
    return fail(status.error());
  }
  telemetry::log_info("penstock picks", {{"version", kVersion}});
  release_start_up_memory();

  for (;;) {
    const std::optional<int> number = signals.wait(std::chrono::milliseconds(500));
    if (number == SIGTERM || number == SIGINT) break;
    runtime.tick();
    if (number == SIGHUP) reload(flags, command, *plan, runtime);
  }
  drain_requests(signals, plan->drain_timeout, runtime);
  // Its pages read what stop() takes apart.
  admin.stop();
  admin_loop.stop();
  runtime.stop();
  telemetry::log_info("stopped");
  telemetry::flush_logs();
  return kOk;
}

}  // namespace

void add_epp(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "epp",
      "Run the endpoint picker: tell Envoy, by external processing, which replica serves each request.");
  auto flags = std::make_shared<EppFlags>();
  add_epp_flags(*command, *flags);
  command->footer(
      "SIGHUP reads files again; SIGTERM drains.\n"
      "Example: penstock epp --pool-name llama --secure-serving=false --model-server http://127.0.0.1:8001 "
      "--model-server http://127.0.0.1:8002");
  command->callback([flags, command, &exit_code] { exit_code = epp(*flags, *command); });
}

}  // namespace penstock::cli
