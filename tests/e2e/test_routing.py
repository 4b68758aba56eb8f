"""Where requests go, and that the program can say why."""
import json
import subprocess
import uuid

import httpx
import pytest

from harness import PENSTOCK, ROOT, eventually, free_port

LONG = "The valley below the dam is quiet at night and the water waits behind the gate. " * 60


def chat(gateway, text, model="sim-model", max_tokens=4, headers=None, **more):
    return gateway.post("/v1/chat/completions", {"model": model, "max_tokens": max_tokens, **more,
                                                 "messages": [{"role": "user", "content": text}]}, headers=headers)


def test_a_prefix_returns_to_the_engine_that_holds_it(start):
    engines = start.engines(4)
    gateway = start.gateway(model_servers=engines.urls)
    for conversation in range(6):
        prefix = f"conversation {conversation} " + LONG
        homes = set()
        for turn in range(5):
            request_id = str(uuid.uuid4())
            answer = chat(gateway, prefix + " turn " * turn, headers={"x-request-id": request_id})
            assert answer.status_code == 200, answer.text
            homes.add(gateway.decision(request_id)["endpoint"])
        assert len(homes) == 1


def test_different_prefixes_spread_over_idle_engines(start):
    engines = start.engines(4)
    gateway = start.gateway(model_servers=engines.urls)
    for i in range(40):
        assert chat(gateway, f"{i} " + LONG).status_code == 200
    assert all(n > 0 for n in engines.requests())
    assert sum(engines.requests()) == 40


def test_an_adapter_request_goes_where_the_adapter_is_loaded(start, tmp_path):
    engines = start.engines(3, adapter=["alpha=adapters/alpha"], max_loras=1)
    config = tmp_path / "lora.yaml"
    config.write_text("""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: lora-affinity-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: lora-affinity-scorer
""")
    # One engine has the adapter in its batch: a long request sent to it directly.
    with httpx.Client(timeout=60) as direct:
        with direct.stream("POST", f"{engines.urls[1]}/v1/chat/completions", json={
                "model": "alpha", "stream": True, "max_tokens": 100000, "ignore_eos": True,
                "messages": [{"role": "user", "content": "Keep the adapter busy."}]}) as running:
            next(running.iter_lines())
            gateway = start.gateway("--config-file", config, model_servers=engines.urls)
            home = f"127.0.0.1:{engines.ports[1]}"
            eventually(lambda: [explain(gateway, "alpha")["address"] for _ in range(5)] == [home] * 5, what="adapter seen")
            for _ in range(5):
                request_id = str(uuid.uuid4())
                assert chat(gateway, "With alpha.", model="alpha", headers={"x-request-id": request_id}).status_code == 200
                assert gateway.decision(request_id)["address"] == home


def explain(gateway, model, text="hello"):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]})
    answer = httpx.post(f"{gateway.admin}/debug/explain?path=/v1/chat/completions", content=body, timeout=5)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_explain_tells_candidates_scores_and_winner_without_sending(shared, tmp_path):
    before = shared.engines.requests()
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "sim-model", "messages": [{"role": "user", "content": "SECRET " + LONG}]}))
    out = subprocess.run([PENSTOCK, "explain", "--admin", shared.admin, "--body", body], capture_output=True, text=True,
                         timeout=20)
    assert out.returncode == 0, out.stderr
    for word in ("queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer", "picked by max-score-picker", "winner"):
        assert word in out.stdout
    for port in shared.engines.ports:
        assert str(port) in out.stdout
    assert "SECRET" not in out.stdout
    assert shared.engines.requests() == before


def test_explain_marks_what_each_profile_picked_and_tells_ties_apart(start, tmp_path):
    engines = start.engines(2)
    roles = {"decode": engines.ports[0], "prefill": engines.ports[1]}
    servers, config = tmp_path / "servers.yaml", tmp_path / "split.yaml"
    servers.write_text("endpoints:\n" + "".join(f"- {{name: {role}, address: 127.0.0.1, port: {port}, labels: {{llm-d.ai/role: {role}}}}}\n"
                                                for role, port in roles.items()))
    config.write_text("""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- type: always-disagg-pd-decider
- type: prefill-filter
- type: decode-filter
- type: near-tie-picker
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: near-tie-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: near-tie-picker}]}
""")
    gateway = start.gateway("--endpoints-file", servers, "--config-file", config)
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "sim-model", "messages": [{"role": "user", "content": LONG}]}))
    out = subprocess.run([PENSTOCK, "explain", "--admin", gateway.admin, "--body", body], capture_output=True, text=True, timeout=20)
    for role in roles:
        part = out.stdout[out.stdout.index(f"profile {role}: 1 candidates, picked by near-tie-picker"):]
        assert f" * default/{role} " in part.splitlines()[2], out.stdout
        assert "0 tokens in flight, 0 requests" in part.splitlines()[3]


@pytest.mark.parametrize("path, body, why", [
    ("/v1/completions", b'{"prompt": "x"}', "refused: model not found in request body"),
    ("/v1/responses", b'{"model": "m", "input": "x", "previous_response_id": "resp_7"}', "refused: Response with id 'resp_7' not found"),
])
def test_explain_of_a_refusal_begins_with_the_reason_and_fails(shared, tmp_path, path, body, why):
    file = tmp_path / "body.json"
    file.write_bytes(body)
    command = [PENSTOCK, "explain", "--admin", shared.admin, "--body", file, "--path", path]
    out = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert out.returncode == 1, out.stdout
    assert out.stdout.startswith(why), out.stdout
    head = out.stdout.splitlines()[2]
    assert "()" not in head and "model ," not in head and "sent as ," not in head and "epoch 0" not in out.stdout
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=20)
    assert as_json.returncode == 1 and json.loads(as_json.stdout)["error"]


def test_prompt_text_appears_nowhere(start):
    engines = start.engines(2)
    gateway = start.gateway("--log-level", "debug", model_servers=engines.urls)
    request_id = str(uuid.uuid4())
    marker = "XYZZYPLUGH"
    assert chat(gateway, f"{marker} " + LONG, headers={"x-request-id": request_id}).status_code == 200
    eventually(lambda: gateway.program.log_lines("request"), what="access log line")
    pages = [gateway.program.log_text(), httpx.get(f"{gateway.admin}/metrics").text,
             httpx.get(f"{gateway.admin}/debug/decisions").text, json.dumps(gateway.decision(request_id))]
    assert not any(marker in page for page in pages)


def test_decision_record_has_the_five_moments_in_order(shared):
    request_id = str(uuid.uuid4())
    assert chat(shared, "hello", headers={"x-request-id": request_id}).status_code == 200
    record = eventually(lambda: shared.decision(request_id))
    # Milliseconds after the first moment, the arrival.
    moments = [record["moments_ms"][name] for name in ("pool_chosen", "decision_started", "endpoint_chosen", "first_token")]
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert record["policy_epoch"] >= 1


def test_access_log_names_model_endpoint_tokens_and_times(shared):
    request_id = str(uuid.uuid4())
    assert chat(shared, "hello", headers={"x-request-id": request_id}).status_code == 200
    line = eventually(lambda: next((entry for entry in shared.program.log_lines("request")
                                    if entry["request_id"] == request_id), None), what="access log line")
    assert line["model"] == "sim-model"
    assert line["status"] == 200
    assert line["tokens_out"] == 4
    assert line["tokens_in"] > 0
    for field in ("endpoint", "ttft_ms", "total_ms", "fallback"):
        assert field in line


def test_rewritten_model_name_reaches_the_engine_and_comes_back_as_the_clients(start, tmp_path):
    engines = start.engines(1, model="served-name")
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text("""
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec:
  selector: {matchLabels: {app: sim}}
  targetPorts: [{number: %d}]
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: rename}
spec:
  poolRef: {name: pool}
  rules:
  - matches: [{model: {type: Exact, value: public-name}}]
    targets: [{modelRewrite: served-name, weight: 1}]
""" % engines.ports[0])
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text('endpoints: [{name: sim-0, address: "127.0.0.1", labels: {app: sim}}]\n')
    gateway = start.gateway("--manifests", manifests, "--endpoints-file", endpoints)
    answer = chat(gateway, "hello", model="public-name")
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "public-name"
    streamed = gateway.post("/v1/chat/completions", {
        "model": "public-name", "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]})
    models = {json.loads(line[6:])["model"] for line in streamed.text.splitlines()
              if line.startswith("data: ") and line != "data: [DONE]"}
    assert models == {"public-name"}


def test_models_of_two_pools_live_behind_one_listener(start, tmp_path):
    first, second = (start.engines(1, model=model, responses_store=10) for model in ("llama", "qwen"))
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    pool = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %s}
spec:
  selector: {matchLabels: {app: %s}}
  targetPorts: [{number: %d}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %s}
spec:
  parentRefs: [{name: gateway}]
  rules:
  - matches: [{headers: [{name: X-Gateway-Model-Name, value: %s}]}]
    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: %s}]
"""
    (manifests / "a.yaml").write_text(pool % ("llama", "llama", first.ports[0], "llama", "llama", "llama"))
    (manifests / "b.yaml").write_text(pool % ("qwen", "qwen", second.ports[0], "qwen", "qwen", "qwen"))
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("""
endpoints:
- {name: llama-0, address: "127.0.0.1", labels: {app: llama}}
- {name: qwen-0, address: "127.0.0.1", labels: {app: qwen}}
""")
    gateway = start.gateway("--manifests", manifests, "--endpoints-file", endpoints)
    for model in ("llama", "qwen"):
        # What asks for a stored response names no model: the pool that holds it answers.
        stored = gateway.post("/v1/responses", {"model": model, "input": "hi", "max_output_tokens": 4}).json()
        shown = httpx.get(f"{gateway.url}/v1/responses/{stored['id']}", timeout=10)
        assert (shown.status_code, shown.json()) == (200, stored)
        assert httpx.get(f"{gateway.url}/v1/responses/resp_unknown", timeout=10).status_code == 404
        # A client that sets the header itself changes nothing: the body decides.
        answer = chat(gateway, "hi", model=model, headers={"X-Gateway-Model-Name": "qwen"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
    assert first.requests() == [2]
    assert second.requests() == [2]
    assert chat(gateway, "hi", model="gemma").status_code == 404
    compressed = httpx.post(gateway.url + "/v1/chat/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert compressed.status_code == 415, compressed.text
    unrouted = tmp_path / "gemma.json"
    unrouted.write_text('{"model": "gemma", "messages": [{"role": "user", "content": "hi"}]}')
    out = subprocess.run([PENSTOCK, "explain", "--admin", gateway.admin, "--body", unrouted],
                         capture_output=True, text=True, timeout=20)
    assert (out.returncode, out.stderr) == (1, "penstock: refused: no route matches the request: the model `gemma` does not exist behind /v1/chat/completions\n")
    unrouted.write_text('{"model": "gemma", ')
    out = subprocess.run([PENSTOCK, "explain", "--admin", gateway.admin, "--body", unrouted], capture_output=True, text=True, timeout=60)
    assert out.returncode == 1 and "unexpected end of JSON input" in out.stderr


def test_check_prints_the_effective_configuration_of_the_seed(tmp_path):
    out = subprocess.run([PENSTOCK, "check", "--config-file", ROOT / "deploy" / "examples" / "epp-seed.yaml"],
                         capture_output=True, text=True, timeout=20)
    assert out.returncode == 0, out.stderr + out.stdout
    assert "{PluginRef: queue-scorer, Weight: 2.00} {PluginRef: kv-cache-utilization-scorer, Weight: 2.00} " \
           "{PluginRef: prefix-cache-scorer, Weight: 3.00} {PluginRef: max-score-picker}" in out.stdout
    assert "approx-prefix-cache-producer" in out.stdout


@pytest.mark.parametrize("text, words", [
    ("plugins:\n- type: queue-scorer\n- type: queue-scorer\n", ["duplicate plugin name 'queue-scorer'"]),
    ("plugins:\n- type: nonsense-scorer\n", ["plugin type 'nonsense-scorer' is not registered"]),
    ("plugins:\n- type: precise-prefix-cache-scorer\n", ["precise-prefix-cache-scorer", "not part of this build"]),
    ("plugin:\n- type: queue-scorer\n", ["plugin", "line 1"]),
    ("plugins:\n- type: prefix-cache-scorer\n  parameters: {matchLengthWeight: often}\n", ["matchLengthWeight", "often", "line 3"]),
])
def test_a_wrong_configuration_names_field_value_and_line(tmp_path, text, words):
    config = tmp_path / "config.yaml"
    config.write_text(text)
    out = subprocess.run([PENSTOCK, "check", "--config-file", config], capture_output=True, text=True, timeout=20)
    assert out.returncode == 1
    for word in words:
        assert word in out.stderr


def test_serve_refuses_a_port_in_use_by_name(start):
    engines = start.engines(1)
    taken = free_port()
    gateway = start.gateway(model_servers=engines.urls)
    out = subprocess.run([PENSTOCK, "serve", "--listen", f"127.0.0.1:{gateway.port}", "--admin", f"127.0.0.1:{taken}",
                          "--model-server", engines.urls[0]], capture_output=True, text=True, timeout=20)
    assert out.returncode != 0
    assert str(gateway.port) in out.stderr
