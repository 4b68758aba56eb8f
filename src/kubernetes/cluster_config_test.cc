#include "kubernetes/cluster_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/temporary_folder.h"
#include "kubernetes/exec_plugin.h"
#include "kubernetes/timestamps.h"

namespace penstock::kubernetes {
namespace {

Environment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

constexpr const char* kKubeconfig = R"(apiVersion: v1
kind: Config
current-context: dev
clusters:
- name: c1
  cluster:
    server: https://api.example:6443/k8s/clusters/c-1/
    certificate-authority-data: Q0EgdGV4dA==
    tls-server-name: kubernetes
- name: c2
  cluster: {server: "http://127.0.0.1:8080", insecure-skip-tls-verify: true}
contexts:
- {name: dev, context: {cluster: c1, user: u1, namespace: models}}
- {name: local, context: {cluster: c2, user: u2}}
- {name: plugin, context: {cluster: c2, user: u3}}
- {name: lost, context: {cluster: nowhere, user: u1}}
users:
- {name: u1, user: {client-certificate-data: Q0VSVA==, client-key: keys/me.key, token: abc}}
- {name: u2, user: {tokenFile: token}}
- name: u3
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./login
      args: [get-token, "--cluster", c2]
      env: [{name: REGION, value: here}]
      installHint: install it
)";

TEST(ClusterConfig, APodIsToldByEnvironmentAndServiceAccount) {
  const TemporaryFolder folder;
  folder.write("token", "t1");
  folder.write("ca.crt", "pem");
  folder.write("namespace", "models\n");
  const auto config = in_cluster_config(
      environment({{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"KUBERNETES_SERVICE_PORT", "443"}}),
      folder.path());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->host, "10.96.0.1");
  EXPECT_EQ(config->port, 443);
  EXPECT_TRUE(config->tls);
  EXPECT_EQ(config->ns, "models");
  EXPECT_EQ(config->token_file, folder.path() + "/token");
  EXPECT_EQ(config->ca_file, folder.path() + "/ca.crt");
}

TEST(ClusterConfig, WithoutAClusterTheErrorSaysWhereItWasLookedFor) {
  const auto none = find_cluster("", environment({}));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_NE(none.error().message.find("KUBECONFIG"), std::string::npos);
  EXPECT_EQ(
      in_cluster_config(environment({{"KUBERNETES_SERVICE_HOST", "h"}, {"KUBERNETES_SERVICE_PORT", "x"}}))
          .error()
          .code,
      ErrorCode::kInvalidConfig);
}

TEST(ClusterConfig, AKubeconfigGivesServerCertificatesAndNamespace) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() + "/keys");
  folder.write("keys/me.key", "KEY");
  const std::string file = folder.write("config", kKubeconfig);
  const auto config = load_kubeconfig({file});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->host, "api.example");
  EXPECT_EQ(config->port, 6443);
  EXPECT_EQ(config->path_prefix, "/k8s/clusters/c-1");
  EXPECT_EQ(config->server_name, "kubernetes");
  EXPECT_EQ(config->ca_pem, "CA text");
  EXPECT_EQ(config->certificate_pem, "CERT");
  EXPECT_EQ(config->key_pem, "KEY");  // read, because the certificate came as data
  EXPECT_EQ(config->token, "abc");
  EXPECT_EQ(config->ns, "models");
  EXPECT_EQ(config->source, "kubeconfig " + file + ", context dev");
}

TEST(ClusterConfig, PathsAreRelativeToTheirKubeconfig) {
  const TemporaryFolder folder;
  const std::string file = folder.write("config", kKubeconfig);
  const auto local = load_kubeconfig({file}, "local");
  ASSERT_TRUE(local.ok()) << local.error().message;
  EXPECT_FALSE(local->tls);
  EXPECT_TRUE(local->skip_verify);
  EXPECT_EQ(local->token_file, folder.path() + "/token");
  const auto plugin = load_kubeconfig({file}, "plugin");
  ASSERT_TRUE(plugin.ok()) << plugin.error().message;
  ASSERT_TRUE(plugin->exec.has_value());
  EXPECT_EQ(plugin->exec->command, folder.path() + "/./login");
  EXPECT_EQ(plugin->exec->arguments, (std::vector<std::string>{"get-token", "--cluster", "c2"}));
  EXPECT_EQ(plugin->exec->environment.front(), (std::pair<std::string, std::string>{"REGION", "here"}));
}

TEST(ClusterConfig, OfSeveralFilesTheFirstThatNamesAThingCounts) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a", R"({contexts: [{name: dev, context: {cluster: c2, user: ""}}]})");
  const std::string b = folder.write("b", kKubeconfig);
  const auto config = find_cluster("", environment({{"KUBECONFIG", a + ":" + folder.path() + "/none:" + b}}));
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->host, "127.0.0.1");
}

TEST(ClusterConfig, WhatCannotBeUsedIsNamed) {
  const TemporaryFolder folder;
  const std::string good = folder.write("good", kKubeconfig);
  const auto error = [](const std::vector<std::string>& files, std::string_view context = {}) {
    const auto config = load_kubeconfig(files, context);
    return config.ok() ? std::string("ok") : config.error().message;
  };
  EXPECT_NE(error({good}, "lost").find("there is no cluster \"nowhere\""), std::string::npos);
  EXPECT_NE(error({good}, "other").find("there is no context \"other\""), std::string::npos);
  EXPECT_NE(error({folder.path() + "/none"}).find("/none"), std::string::npos);
  const auto user = [&](const std::string& text) {
    return error({folder.write("user",
                               "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
                               "clusters: [{name: c, cluster: {server: 'https://h'}}]\n"
                               "users: [{name: u, user: " +
                                   text + "}]\n")});
  };
  EXPECT_NE(user("{auth-provider: {name: gcp}}").find("auth-provider"), std::string::npos);
  EXPECT_NE(user("{client-certificate-data: '%%%', client-key-data: aa}").find("no base64"),
            std::string::npos);
  EXPECT_NE(user("{client-certificate: a}").find("belong together"), std::string::npos);
  EXPECT_NE(user("{exec: {apiVersion: v9, command: x}}").find("v9"), std::string::npos);
  EXPECT_EQ(user("{token: abc}"), "ok");
}

TEST(ExecPlugin, WhatItPrintsIsTheCredential) {
  const TemporaryFolder folder;
  ExecPlugin plugin;
  plugin.api_version = "client.authentication.k8s.io/v1";
  plugin.environment = {{"WHO", "me"}};
  plugin.arguments = {"there"};
  plugin.command = folder.write("login",
                                "#!/bin/sh\n"
                                "case \"$KUBERNETES_EXEC_INFO\" in *ExecCredential*) ;; *) exit 3;; esac\n"
                                "echo '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"'$WHO-$1'\","
                                "\"expirationTimestamp\":\"2026-11-29T23:11:43Z\"}}'\n",
                                0700);
  const auto ran = run_exec_plugin(plugin, std::chrono::seconds(20));
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  EXPECT_EQ(ran->token, "me-there");
  EXPECT_EQ(ran->expires, parse_time("2026-11-29T23:11:43Z"));
}

TEST(ExecPlugin, IsToldOfTheClusterWhereItAsks) {
  const TemporaryFolder folder;
  folder.write("login",
               "#!/bin/sh\n"
               "info=$(echo \"$KUBERNETES_EXEC_INFO\" | tr -d '\"')\n"
               "echo '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"'$info'\"}}'\n",
               0700);
  const std::string file = folder.write(
      "config",
      "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
      "clusters: [{name: c, cluster: {server: 'https://h:6443/a/', tls-server-name: n, "
      "certificate-authority-data: aGVsbG8=}}]\n"
      "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ./login, "
      "provideClusterInfo: true}}}]\n");
  const auto config = load_kubeconfig({file});
  ASSERT_TRUE(config.ok()) << config.error().message;
  const auto ran = run_exec_plugin(*config->exec, std::chrono::seconds(20));
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  EXPECT_NE(ran->token.find("spec:{cluster:{server:https://h:6443/a,tls-server-name:n,"
                            "certificate-authority-data:aGVsbG8=,config:null},interactive:false}"),
            std::string::npos)
      << ran->token;
}

TEST(ExecPlugin, IsEndedWhenItRunsOnWithItsOutputClosedOrHeldByAnother) {
  const TemporaryFolder folder;
  ExecPlugin plugin;
  plugin.api_version = "client.authentication.k8s.io/v1";
  for (const char* script : {"exec sleep 600 >&- 2>&-", "sleep 600 & exit 0", "exec sleep 600"}) {
    plugin.command = folder.write("login", std::string("#!/bin/sh\n") + script + "\n", 0700);
    const auto ran = run_exec_plugin(plugin, std::chrono::milliseconds(50));
    ASSERT_FALSE(ran.ok());
    EXPECT_NE(ran.error().message.find("it did not end in time"), std::string::npos) << ran.error().message;
  }
}

TEST(ExecPlugin, FailuresSayWhatWasWrong) {
  const TemporaryFolder folder;
  ExecPlugin plugin;
  plugin.api_version = "client.authentication.k8s.io/v1";
  const auto error = [&](const std::string& script) {
    plugin.command = folder.write("login", "#!/bin/sh\n" + script, 0700);
    const auto ran = run_exec_plugin(plugin, std::chrono::seconds(20));
    return ran.ok() ? std::string("ok") : ran.error().message;
  };
  EXPECT_NE(error("echo no such login >&2; exit 7").find("it ended with 7: no such login"),
            std::string::npos);
  EXPECT_NE(error("echo hello").find("no JSON"), std::string::npos);
  EXPECT_NE(error("echo '{\"kind\":\"ExecCredential\",\"status\":{}}'").find("neither token"),
            std::string::npos);
  plugin.command = folder.path() + "/nothing";
  plugin.install_hint = "get it";
  EXPECT_NE(run_exec_plugin(plugin, std::chrono::seconds(20)).error().message.find("get it"),
            std::string::npos);
}

TEST(Timestamps, AreReadAndWrittenAsTheApiDoes) {
  const auto at = [](const char* text) {
    const auto time = parse_time(text);
    return time ? format_micro_time(*time) : "none";
  };
  EXPECT_EQ(at("2026-11-29T23:11:43Z"), "2026-11-29T23:11:43.000000Z");
  EXPECT_EQ(at("2026-01-02T03:04:05.000000Z"), "2026-01-02T03:04:05.000000Z");
  EXPECT_EQ(at("2026-01-02T03:04:05.123456789+02:00"), "2026-01-02T01:04:05.123456Z");
  EXPECT_EQ(at("1970-01-01T00:00:00Z"), "1970-01-01T00:00:00.000000Z");
  for (const char* bad : {"", "2026", "2026-02-30T00:00:00Z", "2026-01-02 03:04:05Z", "2026-01-02T03:04:05",
                          "2026-01-02T03:04:05.Z", "2026-01-02T24:00:00Z", "2026-01-02T03:04:05+2"}) {
    EXPECT_EQ(at(bad), "none") << bad;
  }
  EXPECT_EQ(format_time(*parse_time("2026-11-29T23:11:43.9Z")), "2026-11-29T23:11:43Z");
}

}  // namespace
}  // namespace penstock::kubernetes
