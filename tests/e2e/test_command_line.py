"""What the command line refuses, and how it says so: one sentence that names flag, file and reason."""
import json
import socket
import subprocess

import httpx
import pytest

from harness import PENSTOCK, eventually


def run(*arguments):
    return subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=20)


ENGINE = ("--model-server", "http://127.0.0.1:1")


@pytest.mark.parametrize("arguments, words", [
    (["serve", *ENGINE, "--tls-key", "site.key"], ["--tls-key needs --tls-cert"]),
    (["serve", *ENGINE, "--tls-cert", "site.crt"], ["--tls-cert needs --tls-key"]),
    (["serve", *ENGINE, "--drain-timeout=-5s"], ["--drain-timeout '-5s' is negative"]),
    (["serve", *ENGINE, "--listen", "127.0.0.1:99999"], ["--listen", "the port is not in 0..65535"]),
    (["serve", *ENGINE, "--listen", "localhost:0"], ["--listen", "'localhost' is no IP address"]),
    (["serve", *ENGINE, "--listen", "127.0.0.1:0", "--admin", "off", "--config-file", "no.yaml"],
     ["failed to load config from a file 'no.yaml'", "No such file or directory"]),
    (["serve", *ENGINE, "--listen", "127.0.0.1:0", "--admin", "off", "--tls-cert", "no.crt", "--tls-key", "no.key"],
     ["'no.crt': No such file or directory"]),
    (["epp", "--pool-name", "p", "--endpoint-selector", "a=b"], ["not both"]),
    (["epp", "--pool-name", "p", "--zap-log-level", "weird"], ["--zap-log-level 'weird'"]),
    (["epp", "--pool-name", "p", "--drain-timeout=-5s"], ["is negative"]),
    (["epp", "--pool-name", "p", "--request-body-timeout=-1s", *ENGINE], ["--request-body-timeout '-1s' is negative"]),
    (["epp", "--pool-name", "p", "--grpc-max-recv-msg-size", "10XB"], ["--grpc-max-recv-msg-size '10XB' is no size"]),
    (["epp", "--endpoint-selector", "a=b", "--endpoint-target-ports", "0"], ["endpoint-target-ports: '0' is no port"]),
    (["epp", "--pool-name", "p", "--bind-address", "nowhere", *ENGINE], ["--bind-address 'nowhere' is no IP address"]),
    (["epp", "--pool-name", "p", "--model-server", "ftp://x"], ["--model-server: invalid endpoint \"ftp://x\""]),
    (["serve", "--model-server", "http://h:1/v1"], ["--model-server: invalid endpoint", "only scheme, host and port"]),
    (["serve", *ENGINE, "--listen", "127.0.0.1:0", "--admin", "off", "--config-text", "plugins: [{type: queue-scorrer}]"],
     ["pool default/default: config:", "did you mean 'queue-scorer'? (line 1)"]),
    (["plugins", "queue-scorrer"], ["there is no plugin type 'queue-scorrer'; did you mean 'queue-scorer'?"]),
    (["explain", "--body", "nofile"], ["--body: reading nofile: No such file or directory"]),
])
def test_a_process_that_cannot_start_says_why(arguments, words):
    out = run(*arguments)
    assert out.returncode == 1, out.stderr
    for word in words:
        assert word in out.stderr


def test_keys_and_certificates_for_no_listener_are_refused(tmp_path):
    out = run("serve", "--manifests", tmp_path, "--api-keys", "keys.yaml")
    assert out.returncode == 1
    assert "there is none" in out.stderr


@pytest.mark.parametrize("arguments, words", [
    (["serve", "--lisen", ":8080"], "unknown flag --lisen; did you mean --listen?"),
    (["serve", ":8080"], "unexpected argument ':8080'"),
    (["serve", "--listen"], "--listen needs a value"),
    (["serve", "--loops", "many"], "--loops 'many' is no number from 0 to 256"),
    (["epp", "--secure-serving=perhaps"], "--secure-serving 'perhaps' is not true or false"),
    (["explain", "--body", "x", "--path", "v1/models"], "--path 'v1/models' does not begin with '/'"),
    (["sim", "engine", "--count", "-1"], "count: -1 is not between 1 and 1024"),
    (["sim", "engine", "--port", "8000x"], 'port: expected int, got string "8000x"'),
    (["srve"], "unknown subcommand 'srve'; there are serve epp"),
    (["epp", "--grpc-port", "abc"], "--grpc-port 'abc' is no number from 0 to 65535"),
    (["epp", "--v", "loud"], "--v 'loud' is not a number"),
    (["serve", "--access-log", "maybe"], "--access-log 'maybe' is none of on,off"),
    (["reference", "flags"], "what 'flags' is none of settings,picker-configuration,plugins,metrics"),
    (["sim"], "sim needs a subcommand; there are engine fleet"),
])
def test_wrong_usage_is_named(arguments, words):
    out = run(*arguments)
    assert out.returncode == 2
    assert words in out.stderr


def test_help_reads_as_text():
    page = run("epp", "--help").stdout
    assert "--grpc-port INT (default 9002)" in page
    assert "--response-phase {always,auto,never} (default always)" in page
    for machine in ("INT:INT", "=[]", "TEXT:"):
        assert machine not in page
    assert "penstock sim engine --help" in run("sim", "--help").stdout


def test_of_a_flag_given_twice_the_last_one_counts():
    out = run("check", "--config-text", "nonsense: [", "--config-text", "plugins: [{type: queue-scorer}]")
    assert out.returncode == 0, out.stderr
    assert "queue-scorer" in out.stdout


def test_the_flag_for_experimental_plugins_is_for_the_pools_of_the_settings_too(start, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("listeners: [{address: ':0'}]\npools:\n- name: p\n  discovery: {static: ['http://127.0.0.1:1']}\n"
                        "  config: {plugins: [{type: session-affinity-scorer}]}\n")
    flag = "--allow-experimental-plugins"
    without = run("check", "--settings", settings)
    assert without.returncode == 1 and flag in without.stderr
    assert run("check", "--settings", settings, flag).returncode == 0
    start.gateway("--settings", settings, flag, ready=False)


def test_check_finds_missing_files_with_field_and_line(tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("""listeners:
- address: ":8443"
  tls: {certFile: site.crt, keyFile: site.key}
- address: "localhost:8080"
  apiKeysFile: keys.yaml
telemetry:
  tracing: {exporter: otlp, endpoint: collector}
pools:
- name: a
  config: a.yaml
  discovery:
    file: endpoints.yaml
sharedState:
  url: redis://user:secret@store:port
""")
    out = run("check", "--settings", settings)
    assert out.returncode == 1
    for words in ("listeners[0].tls.certFile (line 3): can't use certificate file",
                  "listeners[1].address (line 4): 'localhost:8080': 'localhost' is no IP address",
                  "telemetry.tracing.endpoint (line 7): 'collector' is not an http or https URL",
                  f"listeners[1].apiKeysFile (line 5): reading {tmp_path}/keys.yaml: No such file or directory",
                  "pools[0].config (line 10): failed to load config",
                  f"pools[0].discovery.file (line 12): reading {tmp_path}/endpoints.yaml: No such file or directory",
                  "sharedState.url (line 14): 'store:port' in the URL of the shared state is no host and port"):
        assert words in out.stderr, out.stderr
    assert "secret" not in out.stdout + out.stderr
    settings.write_text("pools: []\nsharedState:\n  url: rediss://store\n  caFile: store.pem\n")
    out = run("check", "--settings", settings)
    assert out.returncode == 1 and f"sharedState.caFile (line 4): can't use CA file '{tmp_path}/store.pem'" in out.stderr


def test_check_finds_the_password_of_shared_state_by_settings_and_by_the_flags_of_a_picker(tmp_path):
    settings, password = tmp_path / "settings.yaml", tmp_path / "password"
    settings.write_text("pools: []\nsharedState:\n  url: redis://store\n  passwordFile: password\n")
    by_flags = ["--shared-state-url", "redis://store:6379/3", "--shared-state-password-file", password]

    def said(*arguments):
        out = run("check", *arguments)
        assert out.returncode == 1
        return out.stderr
    missing = f"the password: reading {password}: No such file or directory"
    assert f"{settings}: sharedState.passwordFile (line 4): {missing}" in said("--settings", settings)
    assert f"--shared-state-password-file: {missing}" in said(*by_flags)
    assert "--shared-state-password-file: there is no store that it is for" in said(*by_flags[2:])
    password.write_text("\n")
    assert f"sharedState.passwordFile (line 4): the password: '{password}' is empty" in said("--settings", settings)
    password.write_text("sesame\n")
    for arguments, store in ((["--settings", settings], "redis://store:6379/0"), (by_flags, "redis://store:6379/3"),
                             (["--settings", settings, *by_flags[:2]], "redis://store:6379/3")):
        out = run("check", *arguments)
        assert out.returncode == 0 and f"shared state: {store}\n" in out.stdout, out.stderr
        assert "sesame" not in out.stdout + out.stderr
    other = tmp_path / "none"
    assert f"--shared-state-password-file: the password: reading {other}" in said("--settings", settings, "--shared-state-password-file", other)


def test_check_tells_lines_of_a_configuration_inside_the_settings(tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("""listeners: [{address: ":8080"}]
pools:
- name: a
  config:
    plugins:
    - type: queue-scorrer
- name: b
""")
    out = run("check", "--settings", settings)
    assert out.returncode == 1
    assert f"{settings}: pools[0].config: failed to load" in out.stderr
    assert "did you mean 'queue-scorer'? (line 6)" in out.stderr
    assert "pools[1].discovery: the pool has no way to find its endpoints" in out.stderr


def test_check_follows_routes_and_gateways(tmp_path):
    (tmp_path / "m.yaml").write_text("""apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: penstock
  listeners:
  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: site}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: web, port: 80}]}]}
""")
    out = run("check", "--manifests", tmp_path)
    assert out.returncode == 1
    assert "Gateway default/g, listener a: can't use certificate file" in out.stderr
    assert "HTTPRoute default/r names Service default/web, which is not known" in out.stdout
    # Listeners of settings come in place of the Gateways': serve does not read these certificates either.
    settings = tmp_path / "settings.yaml"
    settings.write_text('listeners: [{address: ":8080"}]\n')
    out = run("check", "--manifests", tmp_path / "m.yaml", "--settings", settings)
    assert out.returncode == 0, out.stderr


def test_check_counts_manifests_once(tmp_path):
    (tmp_path / "manifests").mkdir()
    settings = tmp_path / "settings.yaml"
    settings.write_text('manifests: manifests\nlisteners: [{address: ":8080"}]\n')
    out = run("check", "--settings", settings, "--manifests", tmp_path / "manifests")
    assert out.returncode == 0, out.stderr
    assert out.stdout.count("0 gateways") == 1
    assert "1 listener, 0 pools" in out.stdout


def test_plugin_columns_are_straight():
    lines = run("plugins").stdout.splitlines()
    starts = set()
    for line in lines:
        stability = next(word for word in (" stable ", " beta ", " alpha ") if word in line)
        starts.add(line.index(stability))
    assert len(starts) == 1


def test_a_head_above_the_limit_is_refused_with_the_limit_and_an_id(start):
    engines = start.engines(1)
    gateway = start.gateway(model_servers=engines.urls)
    answer = httpx.get(gateway.url + "/v1/models", headers={"x-long": "x" * 70000})
    assert answer.status_code == 431
    assert "65536 bytes (limits.headerBytes)" in answer.json()["error"]["message"]
    line = eventually(lambda: gateway.program.log_lines("request"), what="access log line")[0]
    assert (line["status"], line["reason"]) == (431, "limit_headers")
    assert line["request_id"] in answer.text


# Flags of llm-d-router's picker and the defaults that its help shows; None: empty or false.
REFERENCE = {
    "grpc-port": "9002", "grpc-health-port": "9003", "metrics-port": "9090", "ha-enable-leader-election": None,
    "drain-timeout": "30s", "grpc-max-recv-msg-size": None, "grpc-max-send-msg-size": None, "pool-group": None,
    "pool-namespace": None, "pool-name": None, "endpoint-selector": None, "endpoint-target-ports": None,
    "disable-endpoint-subset-filter": None, "emit-endpoint-scores": None, "refresh-metrics-interval": "50ms",
    "refresh-prometheus-metrics-interval": None, "metrics-staleness-threshold": "2s", "total-queued-requests-metric": None,
    "total-running-requests-metric": None, "kv-cache-usage-percentage-metric": None, "lora-info-metric": None,
    "cache-info-metric": None, "v": "2", "zap-devel": None, "zap-encoder": None, "zap-log-level": None,
    "zap-stacktrace-level": None, "zap-time-encoding": None, "tracing": "true", "health-checking": None, "enable-pprof": None,
    "cert-path": None, "enable-cert-reload": None, "secure-serving": "true", "tls-min-version": None, "tls-cipher-suites": None,
    "metrics-endpoint-auth": None, "metrics-client-ca-file": None, "metrics-cert-dir": None, "enable-grpc-stream-metrics": None,
    "config-file": None, "config-text": None, "allow-experimental-plugins": None,
}


def test_the_picker_has_every_flag_of_the_reference_with_its_default():
    lines = run("epp", "--help").stdout.splitlines()
    for name, default in REFERENCE.items():
        line = next((line for line in lines if f"--{name} " in line + " "), None)
        assert line, f"--{name} is missing"
        if default:
            assert f"(default {default})" in line, line


PICKER = ("epp", "--pool-name", "p", *ENGINE)


@pytest.mark.parametrize("arguments, words", [
    (["--config-file", "a", "--config-text", "b"], "cannot be set at the same time"),
    (["--metrics-client-ca-file", "ca.crt"], '"metrics-client-ca-file" requires "metrics-cert-dir"'),
    (["--metrics-cert-dir", ".", "--metrics-endpoint-auth=false"], "enables metrics TLS without authentication"),
    (["--body-piece-bytes", "4095"], "--body-piece-bytes '4095' is not between 4Ki and 4Mi"),
    (["--body-piece-bytes", "5Mi"], "--body-piece-bytes '5Mi' is not between 4Ki and 4Mi"),
    *[([f"--{name}", "x"], f'flag "{name}" is deprecated and cannot be used')
      for name in ("total-queued-requests-metric", "total-running-requests-metric", "kv-cache-usage-percentage-metric",
                   "lora-info-metric", "cache-info-metric")],
])
def test_what_the_picker_lacks_is_named(arguments, words):
    out = run(*PICKER, *arguments)
    assert out.returncode != 0
    assert words in out.stderr


def test_flags_about_a_cluster_that_is_not_asked_are_said_to_have_no_effect():
    with socket.create_server(("127.0.0.1", 0)) as taken:  # it goes no further than that port
        out = run(*PICKER, "--pool-group", "inference.networking.x-k8s.io", "--kubeconfig", "/nonexistent", "--ha-enable-leader-election",
                  "--bind-address", "127.0.0.1", "--metrics-port", str(taken.getsockname()[1]))
    assert out.returncode == 1 and "metrics address" in out.stderr
    warned = [json.loads(line) for line in out.stderr.splitlines() if "a flag has no effect" in line]
    assert [line["flag"] for line in warned] == ["--pool-group", "--kubeconfig", "--ha-enable-leader-election"]


@pytest.mark.parametrize("verbosity", ["-v=4", "-v4", "-v 4", "--v=4", "--v 4"])
def test_the_verbosity_is_taken_in_every_way_that_gos_flags_take_it(verbosity):
    with socket.create_server(("127.0.0.1", 0)) as taken:  # it goes no further than that port
        out = run(*PICKER, *verbosity.split(), "--bind-address", "127.0.0.1", "--metrics-port", str(taken.getsockname()[1]))
    assert out.returncode == 1 and "metrics address" in out.stderr


@pytest.mark.parametrize("flags, why", [(["--secure-serving=false"], "with --secure-serving=false"), ([], "without --cert-path")])
def test_a_certificate_that_is_not_there_is_not_reloaded_and_that_is_said(flags, why):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        out = run(*PICKER, *flags, "--enable-cert-reload", "--bind-address", "127.0.0.1", "--metrics-port", str(taken.getsockname()[1]))
    assert f"--enable-cert-reload has no effect {why}" in out.stderr


def test_a_picker_without_endpoints_to_find_says_what_it_can_take():
    for arguments in (["--pool-name", "p"], ["--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000,8001"]):
        out = run("epp", *arguments, "--kubeconfig", "/nonexistent")
        assert out.returncode == 1
        assert "reading /nonexistent" in out.stderr
        assert "--endpoints-file" in out.stderr
    assert "pool-name" in run("epp", *ENGINE).stderr
