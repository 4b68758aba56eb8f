"""Starting, stopping, reloading, watching, keys: what an operator does."""
import concurrent.futures
import hashlib
import json
import pathlib
import signal
import subprocess

import httpx
import openai
import pytest

from harness import PENSTOCK, eventually, make_certificate, shows_certificate

CHAT = "/v1/chat/completions"


def body(text="hello", **more):
    return {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more}


def test_every_subcommand_explains_itself():
    for command in ([], ["serve"], ["sim"], ["sim", "engine"], ["sim", "fleet"], ["check"], ["explain"], ["plugins"], ["version"]):
        out = subprocess.run([PENSTOCK, *command, "--help"], capture_output=True, text=True, timeout=20)
        assert out.returncode == 0
        assert len(out.stdout) > 60
    assert "penstock" in subprocess.run([PENSTOCK, "version"], capture_output=True, text=True, timeout=20).stdout
    wrong = subprocess.run([PENSTOCK, "serve", "--no-such-flag"], capture_output=True, text=True, timeout=20)
    assert wrong.returncode == 2
    assert "--no-such-flag" in wrong.stderr


def test_plugins_are_listed_and_explained():
    listed = subprocess.run([PENSTOCK, "plugins"], capture_output=True, text=True, timeout=20).stdout
    for name in ("queue-scorer", "prefix-cache-scorer", "max-score-picker", "approx-prefix-cache-producer", "openai-parser"):
        assert name in listed
    page = subprocess.run([PENSTOCK, "plugins", "approx-prefix-cache-producer"], capture_output=True, text=True, timeout=20).stdout
    assert "blockSizeTokens" in page
    for name, why in (("concurrency-detector", "is known to llm-d-router but not part of this build"),
                      ("queue-scorr", "did you mean 'queue-scorer'?")):
        refused = subprocess.run([PENSTOCK, "plugins", name], capture_output=True, text=True, timeout=20)
        assert (refused.returncode, refused.stdout, why in refused.stderr) == (1, "", True), refused.stderr


def test_a_fleet_is_simulated_alike_each_time(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("plugins:\n- type: active-request-scorer\n- type: max-score-picker\n")
    command = [PENSTOCK, "sim", "fleet", "--workload", "burst", "--requests", "200", "--engines", "4", "--gateways", "2",
               "--policy", "default", "--config", config, "--json"]
    first, again = (subprocess.run(command, capture_output=True, text=True, timeout=60) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert [policy["policy"] for policy in json.loads(first.stdout)["policies"]] == ["default", "mine"]
    assert all(policy["finished"] == 200 for policy in json.loads(first.stdout)["policies"])

    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n')
    wrong = subprocess.run([PENSTOCK, "sim", "fleet", "--trace", trace], capture_output=True, text=True, timeout=20)
    assert wrong.returncode == 1
    assert f"{trace}:1: hash_ids: 1 ids of 512 tokens do not make input_length 600, which needs 2" in wrong.stderr


def test_health_and_metrics(shared):
    assert httpx.get(f"{shared.admin}/healthz").status_code == 200
    assert httpx.get(f"{shared.admin}/readyz").status_code == 200
    shared.post(CHAT, body())
    names = {series.split("{")[0] for series in shared.metrics()}
    for name in ("llm_d_epp_request_total", "llm_d_epp_request_ttft_seconds_count", "llm_d_epp_ready_endpoints",
                 "llm_d_epp_scheduler_e2e_duration_seconds_count", "llm_d_epp_prefix_indexer_size", "llm_d_epp_info",
                 "penstock_signal_age_seconds", "inference_objective_request_total"):
        assert name in names, name


def test_sigterm_lets_a_stream_finish(start):
    engines = start.engines(1, decode_ms=10)
    gateway = start.gateway(model_servers=engines.urls)
    with httpx.stream("POST", gateway.url + CHAT, json=body(stream=True, max_tokens=400, ignore_eos=True), timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        gateway.program.signal(signal.SIGTERM)
        eventually(lambda: httpx.get(f"{gateway.admin}/readyz").status_code == 503, what="not ready while draining")
        rest = list(lines)
    assert rest[-1] == "data: [DONE]" or rest[-2] == "data: [DONE]"
    assert gateway.program.process.wait(15) == 0


def test_endpoints_come_and_go_with_the_file(start, tmp_path):
    engines = start.engines(2)
    endpoints = tmp_path / "endpoints.yaml"

    def write(ports):
        text = "endpoints:\n" + "".join(
            f'- {{name: e{p}, address: "127.0.0.1", port: "{p}"}}\n' for p in ports)
        staged = tmp_path / "staged"
        staged.write_text(text)
        staged.rename(endpoints)

    write([engines.ports[0]])
    gateway = start.gateway("--endpoints-file", endpoints)
    assert gateway.post(CHAT, body()).status_code == 200
    write([engines.ports[1]])
    eventually(lambda: gateway.post(CHAT, body()).status_code == 200 and engines.requests()[1] > 0, what="second engine used")
    before = engines.requests()[0]
    for i in range(10):
        assert gateway.post(CHAT, body(f"after {i}")).status_code == 200
    assert engines.requests()[0] == before
    # A broken file changes nothing.
    endpoints.write_text("endpoints: [{name: broken, address: \n")
    eventually(lambda: any("endpoints" in json.dumps(line) and line["level"] in ("error", "warn")
                           for line in gateway.program.log_lines()), what="complaint in the log")
    assert gateway.post(CHAT, body()).status_code == 200
    metrics = gateway.metrics()
    assert not any(f"e{engines.ports[0]}" in series for series in metrics if series.startswith("penstock_signal_age"))


def test_sighup_reloads_api_keys(start, tmp_path):
    engines = start.engines(1)
    keys = tmp_path / "keys.yaml"

    def write(name, key):
        keys.write_text(f"keys:\n- name: {name}\n  sha256: {hashlib.sha256(key.encode()).hexdigest()}\n")

    write("team-a", "secret-a")
    gateway = start.gateway("--api-keys", keys, model_servers=engines.urls)

    def client(key):
        return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)

    def ask(key):
        return client(key).chat.completions.create(model="sim-model", messages=[{"role": "user", "content": "x"}], max_tokens=2)

    assert ask("secret-a").choices
    with pytest.raises(openai.AuthenticationError):
        ask("secret-b")
    write("team-b", "secret-b")
    gateway.program.signal(signal.SIGHUP)

    def accepted():
        try:
            return bool(ask("secret-b").choices)
        except openai.AuthenticationError:
            return False
    eventually(accepted, what="new key accepted")
    with pytest.raises(openai.AuthenticationError):
        ask("secret-a")
    line = eventually(lambda: [e for e in gateway.program.log_lines("request") if e.get("identity") == "team-b"])
    assert "secret-b" not in gateway.program.log_text()
    assert line


def test_sighup_takes_another_keys_file_and_says_what_needs_a_restart(start, tmp_path):
    engines = start.engines(1)
    settings = tmp_path / "settings.yaml"

    def write(keys_file, streams):
        settings.write_text(f"""
listeners:
- name: front
  address: 127.0.0.1:0
  apiKeysFile: {keys_file}
  limits: {{streams: {streams}}}
""")

    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            f"keys:\n- name: {name}\n  sha256: {hashlib.sha256(name.encode()).hexdigest()}\n")
    write("one.yaml", 100)
    gateway = start.gateway("--settings", settings, model_servers=engines.urls)

    def status(key):
        return gateway.post(CHAT, body(), headers={"x-api-key": key}).status_code

    assert (status("one"), status("two")) == (200, 401)
    write("two.yaml", 200)
    gateway.program.signal(signal.SIGHUP)
    eventually(lambda: status("two") == 200, what="key of the other file accepted")
    assert status("one") == 401
    eventually(lambda: any(str(e.get("what")).startswith("listener") for e in gateway.program.log_lines()), what="warning")


def test_never_more_engine_requests_than_client_requests(start):
    engines = start.engines(3)
    gateway = start.gateway(model_servers=engines.urls)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: gateway.post(CHAT, body(f"request {i}")).status_code, range(200)))
    assert answers == [200] * 200
    assert sum(engines.requests()) == 200
    eventually(lambda: gateway.metric_sum("llm_d_epp_request_running") == 0, what="nothing running")


@pytest.mark.parametrize("version", [["--h1"], []])
def test_h2load_finds_every_request_answered_once(start, tmp_path, version):
    engines = start.engines(2, time_scale=0)
    gateway = start.gateway("--access-log", "off", model_servers=engines.urls)
    request = tmp_path / "body.json"
    request.write_text(json.dumps(body(stream=True)))
    out = subprocess.run(["h2load", *version, "-n", "1000", "-c", "16", "-m", "1" if version else "8", "-d", request,
                          "-H", "content-type: application/json", gateway.url + CHAT],
                         capture_output=True, text=True, timeout=100)
    assert "1000 succeeded, 0 failed, 0 errored, 0 timeout" in out.stdout, out.stdout
    assert "status codes: 1000 2xx, 0 3xx, 0 4xx, 0 5xx" in out.stdout, out.stdout
    assert sum(engines.requests()) == 1000
    eventually(lambda: gateway.metric_sum("llm_d_epp_request_running") == 0, what="nothing running")
    eventually(lambda: gateway.metric_sum("penstock_body_bytes_buffered") == 0, what="no body held")


def test_generated_references_are_up_to_date():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    for name in ("settings", "picker-configuration", "plugins", "metrics"):
        out = subprocess.run([PENSTOCK, "reference", name], capture_output=True, text=True, timeout=20)
        assert out.returncode == 0, out.stderr
        assert (root / "docs" / "reference" / f"{name}.md").read_text() == out.stdout, f"run: penstock reference {name} > docs/reference/{name}.md"


def rollback(gateway, *flags):
    out = subprocess.run([PENSTOCK, "rollback", "--admin", gateway.admin, *flags], capture_output=True, text=True, timeout=60)
    return out.returncode, out.stdout + out.stderr


def test_a_rollback_takes_the_former_configuration_until_the_files_are_read_again(start, tmp_path):
    config = tmp_path / "picker.yaml"
    config.write_text("plugins: [{type: queue-scorer}]\n")
    engines = start.engines(1)
    gateway = start.gateway("--config-file", config, model_servers=engines.urls)

    def epoch():
        return httpx.get(f"{gateway.admin}/readyz", timeout=5).json()["pools"][0]["policy_epoch"]

    def scorer():
        page = httpx.get(f"{gateway.admin}/debug/config", timeout=5).text
        return next(name for name in ("queue-scorer", "load-aware-scorer", "random-picker") if f"Type: {name}" in page)

    def reload(text, reloads):
        config.write_text(text)
        gateway.program.signal(signal.SIGHUP)
        eventually(lambda: len(gateway.program.log_lines("reloaded")) == reloads, 20, "the reload is over")

    assert rollback(gateway) == (1, "penstock: pool default/default has had no other configuration\n")
    reload("plugins: [{type: load-aware-scorer}]\n", 1)
    assert (epoch(), scorer()) == (2, "load-aware-scorer")
    assert rollback(gateway) == (0, "pool default/default is back at its former configuration, as policy epoch 3\n")
    assert (epoch(), scorer()) == (3, "queue-scorer")
    answer = gateway.post("/v1/completions", {"model": "sim-model", "prompt": "p", "max_tokens": 1}, headers={"x-request-id": "r3"})
    assert answer.status_code == 200
    assert gateway.decision("r3")["policy_epoch"] == 3
    # Once more leads forward again; what can't be loaded changes nothing.
    assert rollback(gateway, "--pool", "default")[0] == 0
    assert (epoch(), scorer()) == (4, "load-aware-scorer")
    reload("plugins: [{type: no-such-type}]\n", 2)
    assert (epoch(), scorer()) == (4, "load-aware-scorer")
    reload("plugins: [{type: random-picker}]\n", 3)
    assert (epoch(), scorer()) == (5, "random-picker")
    assert rollback(gateway, "--pool", "other") == (1, "penstock: there is no pool 'other'; there are default/default\n")
    assert rollback(gateway, "--pool", "default/default")[0] == 0
    assert scorer() == "load-aware-scorer"
    assert httpx.get(f"{gateway.admin}/debug/rollback", timeout=5).status_code == 405
    told = gateway.program.log_lines("rolled back to the former configuration; the next reload takes what the files say")
    assert [line["policy_epoch"] for line in told] == [3, 4, 6]


def test_tls_listener_and_reloaded_certificate(start, tmp_path):
    engines = start.engines(1, decode_ms=5)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    make_certificate(cert, key)
    gateway = start.gateway("--tls-cert", cert, "--tls-key", key, model_servers=engines.urls)
    secure = f"https://127.0.0.1:{gateway.port}{CHAT}"
    assert httpx.post(secure, json=body(), verify=str(cert), timeout=10).status_code == 200
    assert shows_certificate(gateway.port, cert)
    request = {"json": body(stream=True, max_tokens=400, ignore_eos=True), "verify": str(cert), "timeout": 30}
    with httpx.stream("POST", secure, **request) as answer:
        lines = answer.iter_lines()
        next(lines)
        make_certificate(cert, key)
        gateway.program.signal(signal.SIGHUP)
        eventually(lambda: shows_certificate(gateway.port, cert), what="new certificate served")
        assert [line for line in lines if line][-1] == "data: [DONE]", "a stream under the old one goes on"
    assert httpx.post(secure, json=body(), verify=str(cert), timeout=10).status_code == 200
    # What is no certificate changes nothing.
    good = tmp_path / "good.crt"
    good.write_text(cert.read_text())
    cert.write_text("no certificate")
    gateway.program.signal(signal.SIGHUP)
    eventually(lambda: any(str(cert) in json.dumps(line) and line["level"] in ("error", "warn")
                           for line in gateway.program.log_lines()), what="complaint in the log")
    assert shows_certificate(gateway.port, good)
