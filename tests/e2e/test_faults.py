"""What goes wrong between client, gateway and engines, and what the client sees of it."""
import contextlib
import gzip
import json
import signal
import socket
import threading
import uuid

import httpx
import openai
import pytest

from harness import eventually, free_port

CHAT = "/v1/chat/completions"


def body(text="hello", **more):
    return {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more}


def raw(gateway, data, seconds=10):
    """Everything that comes back for raw bytes until the connection closes or is silent for a second."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=seconds) as s:
        s.sendall(data)
        s.settimeout(1)
        answer = b""
        with contextlib.suppress(TimeoutError):
            while piece := s.recv(65536):
                answer += piece
        return answer


def in_flight(gateway):
    return gateway.metric_sum("llm_d_epp_request_running")


@pytest.mark.parametrize("data, status", [
    (b"{", 400), (b"", 400), (b"[]", 400), (b"null", 400), (b'{"model":"sim-model","messages":', 400),
    (b'{"model":"sim-model","messages":[{"role":"user","content":"x"}]} trailing', 400),
    (b"[" * 3000, 400),
    (b'{"model":"sim-model","messages":"text"}', 400),
    (b'{"messages":[{"role":"user","content":"x"}]}', 400),
    (b'{"model":7,"messages":[{"role":"user","content":"x"}]}', 400),
])
def test_a_malformed_body_is_the_clients_400_with_the_request_id(shared, data, status):
    answer = httpx.post(shared.url + CHAT, content=data, headers={"content-type": "application/json", "x-request-id": "bad-1"})
    assert answer.status_code == status
    assert answer.headers["x-request-id"] == "bad-1"
    assert answer.json()["error"]["message"]


def test_the_last_of_duplicate_model_keys_decides_as_in_the_engine(shared):
    data = b'{"model":"nobody","messages":[{"role":"user","content":"x"}],"max_tokens":2,"model":"sim-model"}'
    answer = httpx.post(shared.url + CHAT, content=data, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["model"] == "sim-model"


def test_lone_surrogates_and_deep_nesting_reach_the_engine_or_fail_clearly(shared):
    lone = b'{"model":"sim-model","max_tokens":2,"messages":[{"role":"user","content":"x \\ud800 y"}]}'
    assert httpx.post(shared.url + CHAT, content=lone, headers={"content-type": "application/json"}).status_code in (200, 400)
    deep = b'{"model":"sim-model","max_tokens":2,"metadata":' + b"[" * 90 + b"]" * 90 + \
           b',"messages":[{"role":"user","content":"x"}]}'
    assert httpx.post(shared.url + CHAT, content=deep, headers={"content-type": "application/json"}).status_code == 200


def test_a_body_over_the_limit_is_413(start, tmp_path):
    engines = start.engines(1)
    settings = tmp_path / "settings.yaml"
    settings.write_text("listeners: [{address: ':0', limits: {bodyBytes: 100Ki}}]\n")
    gateway = start.gateway("--settings", settings, model_servers=engines.urls)
    assert gateway.post(CHAT, body("x" * 50_000)).status_code == 200
    answer = gateway.post(CHAT, body("x" * 200_000))
    assert answer.status_code == 413
    assert "error" in answer.json()
    chunked = httpx.post(gateway.url + CHAT, content=iter([b"{" + b" " * 65536] * 4))
    assert chunked.status_code == 413


def test_unknown_paths_and_methods_are_errors_of_the_gateways_own_or_the_engines(shared):
    assert httpx.get(shared.url + "/no/such/path").status_code == 404
    assert httpx.get(shared.url + CHAT).status_code == 405


def test_a_head_request_gets_the_engines_head(shared):
    answer = httpx.head(shared.url + "/v1/no-such-route")
    assert answer.status_code == 404
    assert answer.content == b""


@pytest.mark.parametrize("request_bytes", [
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost : x\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\x00y\r\n\r\n",
    b"GARBAGE\r\n\r\n",
])
def test_smuggling_shapes_are_refused_and_the_connection_closed(shared, request_bytes):
    before = sum(shared.engines.requests())
    answer = raw(shared, request_bytes + b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert sum(shared.engines.requests()) == before


def test_expect_100_continue_is_answered_before_the_body(shared):
    payload = json.dumps(body()).encode()
    with socket.create_connection(("127.0.0.1", shared.port), timeout=10) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
                  b"content-length: %d\r\nconnection: close\r\n\r\n" % len(payload))
        assert s.recv(100).startswith(b"HTTP/1.1 100")
        s.sendall(payload)
        answer = b""
        while piece := s.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_clients_disconnect_stops_the_engine(start):
    engines = start.engines(1, decode_ms=5)
    gateway = start.gateway(model_servers=engines.urls)
    with httpx.stream("POST", gateway.url + CHAT, json=body(stream=True, max_tokens=10000, ignore_eos=True), timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert engines.state(0)["in_flight"] == 1
    # Left to itself it would go on for fifty seconds.
    eventually(lambda: engines.state(0)["in_flight"] == 0, what="engine stopped")
    assert engines.state(0)["aborted"] == 1
    eventually(lambda: in_flight(gateway) == 0, what="counters back at zero")


def test_a_client_that_leaves_before_the_first_byte_stops_the_engine(start):
    engines = start.engines(1)
    engines.fault(0, delay_ms=30_000)
    gateway = start.gateway(model_servers=engines.urls)
    payload = json.dumps(body()).encode()
    s = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(payload) + payload)
    eventually(lambda: sum(engines.requests()) == 1, what="request at the engine")
    s.close()
    eventually(lambda: engines.state(0)["aborted"] >= 1, 3, "engine saw the disconnect")


def test_a_dead_engine_costs_no_request(start):
    engines = start.engines(2)
    dead = free_port()
    gateway = start.gateway(model_servers=[*engines.urls, f"http://127.0.0.1:{dead}"], ready=False)
    for i in range(60):
        answer = gateway.post(CHAT, body(f"request {i} " * 40))
        assert answer.status_code == 200, answer.text
    assert sum(engines.requests()) == 60


def test_a_busy_engine_is_retried_on_another_and_its_503_passes_when_all_are_busy(start):
    engines = start.engines(2)
    gateway = start.gateway(model_servers=engines.urls)
    engines.fault(0, status=503)
    for i in range(20):
        assert gateway.post(CHAT, body(f"request {i}")).status_code == 200
    engines.fault(1, status=503)
    answer = gateway.post(CHAT, body("all busy"))
    assert answer.status_code == 503
    assert gateway.metric_sum("penstock_request_retries_total") > 0


def test_an_engines_other_errors_pass_unchanged_and_are_not_retried(start):
    engines = start.engines(2)
    gateway = start.gateway(model_servers=engines.urls)
    for i in range(2):
        engines.fault(i, status=500)
    before = sum(engines.requests())
    assert gateway.post(CHAT, body()).status_code == 500
    assert sum(engines.requests()) == before + 1


def test_an_engine_that_dies_in_mid_stream_ends_the_stream_with_an_error(start):
    engines = start.engines(1, decode_ms=2)
    engines.fault(0, reset_after_bytes=2000)
    gateway = start.gateway(model_servers=engines.urls)
    text = ""
    with contextlib.suppress(httpx.HTTPError):
        with httpx.stream("POST", gateway.url + CHAT, json=body(stream=True, max_tokens=500, ignore_eos=True), timeout=20) as answer:
            for piece in answer.iter_text():
                text += piece
    assert "data:" in text
    assert "[DONE]" not in text
    assert '"error"' in text
    assert sum(engines.requests()) == 1
    eventually(lambda: in_flight(gateway) == 0, what="counters back at zero")


def test_a_stream_cut_in_mid_event_is_an_error_the_sdk_raises(start):
    engines = start.engines(1, decode_ms=2)
    engines.fault(0, reset_after_bytes=2005)
    gateway = start.gateway(model_servers=engines.urls)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0)
    stream = client.chat.completions.create(model="sim-model", messages=[{"role": "user", "content": "x"}],
                                            stream=True, max_tokens=500, extra_body={"ignore_eos": True})
    with pytest.raises(openai.APIError) as failure:
        for _ in stream:
            pass
    assert "BadGateway" in str(failure.value)


@pytest.mark.parametrize("path, content, shape", [
    (CHAT, body(), lambda answer: answer["error"]["code"] == "GatewayTimeout"),
    ("/v1/messages", body(), lambda answer: answer["type"] == "error" and answer["error"]["type"] == "timeout_error"),
])
def test_engines_that_stand_still_are_a_504_in_the_clients_shape(start, tmp_path, path, content, shape):
    engines = start.engines(2)
    settings = tmp_path / "settings.yaml"
    settings.write_text("listeners: [{address: ':0'}]\npools:\n- name: p\n  discovery: {static: [" +
                        ", ".join(f"'{url}'" for url in engines.urls) + "]}\n  deadlines: {firstByte: 1s}\n")
    gateway = start.gateway("--settings", settings)
    engines.program.signal(signal.SIGSTOP)
    try:
        answer = gateway.post(path, content, headers={"x-request-id": "still"})
        assert answer.status_code == 504
        assert shape(answer.json()), answer.text
        assert answer.json()["request_id"] == "still"
    finally:
        engines.program.signal(signal.SIGCONT)
    line = eventually(lambda: [l for l in gateway.program.log_lines("request") if l["request_id"] == "still"], what="access log")[0]
    assert line["reason"] == "first_byte_timeout"
    eventually(lambda: gateway.post(path, content).status_code == 200, what="served again")


def test_engines_restart_under_load_and_only_what_was_in_flight_fails(start):
    groups = [start.engines(1), start.engines(1)]
    ports = [group.ports[0] for group in groups]
    gateway = start.gateway(model_servers=[url for group in groups for url in group.urls])
    stop = threading.Event()
    results, lock = [], threading.Lock()

    def load(worker):
        with httpx.Client(timeout=20) as client:
            turn = 0
            while not stop.is_set():
                turn += 1
                answer = client.post(gateway.url + CHAT, json=body(f"{worker} {turn} " * 20))
                with lock:
                    results.append(answer.status_code)

    workers = [threading.Thread(target=load, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    try:
        for i, group in enumerate(groups):
            before = len(results)
            eventually(lambda: len(results) > before + 20, what="load before the restart")
            group.program.process.kill()
            group.program.process.wait(5)
            down = len(results)
            eventually(lambda: len(results) > down + 20, 20, "load while one engine is away")
            restarted = start.engines(1, ports=[ports[i]])
            eventually(lambda: sum(restarted.requests()) > 0, 40, "the restarted engine serves again")
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    failed = [status for status in results if status != 200]
    assert len(failed) <= 2 * len(workers), failed  # what an engine had in hand when it was killed
    assert set(failed) <= {502}
    eventually(lambda: in_flight(gateway) == 0, what="counters back at zero")


def test_an_outage_is_two_lines_in_the_log_and_counted_once_a_request(start):
    engines = start.engines(2)
    gateway = start.gateway(model_servers=engines.urls)
    engines.program.process.kill()
    engines.program.process.wait(5)
    eventually(lambda: gateway.post(CHAT, body()).status_code == 502 and
               gateway.metric_sum("penstock_decision_fallback_total") > 0, what="signals are old")
    before = gateway.metric_sum("penstock_decision_fallback_total")
    for i in range(20):
        assert gateway.post(CHAT, body(f"request {i}")).status_code in (502, 503)
    assert gateway.metric_sum("penstock_decision_fallback_total") == before + 20
    assert len(gateway.program.log_lines("decisions are made in a fallback state")) == 1


def test_an_engine_that_lies_about_its_length_does_not_hang_the_client(start):
    engines = start.engines(1)
    engines.fault(0, lying_content_length=True)
    gateway = start.gateway(model_servers=engines.urls)
    with contextlib.suppress(httpx.ProtocolError, httpx.NetworkError):  # not httpx.TimeoutException
        gateway.post(CHAT, body())
    eventually(lambda: in_flight(gateway) == 0, what="counters back at zero")


def test_no_engine_at_all_is_503_in_the_clients_shape(start):
    gateway = start.gateway(model_servers=[f"http://127.0.0.1:{free_port()}"], ready=False)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0)
    with pytest.raises(openai.InternalServerError) as failure:
        client.chat.completions.create(model="sim-model", messages=[{"role": "user", "content": "x"}])
    assert failure.value.status_code in (502, 503)
    assert failure.value.request_id


def test_a_client_that_stops_reading_holds_nobody_up(start):
    engines = start.engines(1)
    gateway = start.gateway(model_servers=engines.urls)
    payload = json.dumps(body(stream=True, max_tokens=200_000, ignore_eos=True)).encode()
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        s.connect(("127.0.0.1", gateway.port))
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(payload) + payload)
        s.recv(100)
        assert gateway.post(CHAT, body()).status_code == 200
        eventually(lambda: in_flight(gateway) == 1, what="only the stream is left")
    eventually(lambda: in_flight(gateway) == 0, what="counters back at zero")
    assert gateway.post(CHAT, body()).status_code == 200


def test_what_cannot_be_routed_well_is_refused_clearly(shared):
    assert httpx.post(shared.url + "/v1/responses", json={"model": "sim-model", "input": "x", "previous_response_id": "resp_1"}).status_code == 404
    assert httpx.post(shared.url + "/v1/responses", json={"model": "sim-model", "input": "x", "conversation": "conv_1"}).status_code in (400, 501)
    assert httpx.post(shared.url + "/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "y"}).status_code in (403, 501)
    assert httpx.post(shared.url + "/v1/audio/transcriptions", files={"file": b"abc"}, data={"model": "sim-model"}).status_code in (400, 415, 501)
    upgrade = raw(shared, b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    assert upgrade.split(b" ")[1] in (b"400", b"501", b"426")


def test_a_compressed_body_is_refused_or_passed_never_misread(shared):
    answer = httpx.post(shared.url + CHAT, content=gzip.compress(json.dumps(body()).encode()),
                        headers={"content-type": "application/json", "content-encoding": "gzip"})
    assert answer.status_code in (400, 415)


def test_request_ids_are_kept_or_made(shared):
    mine = str(uuid.uuid4())
    assert shared.post(CHAT, body(), headers={"x-request-id": mine}).headers["x-request-id"] == mine
    assert shared.post(CHAT, body()).headers["x-request-id"]


FORGED = """
plugins:
- type: agent-identity
- type: disagg-headers-handler
- type: p2p-source-producer
- {type: session-affinity-filter, name: by-token}
- {type: session-affinity-filter, name: by-id, parameters: {strategy: session_id}}
- type: prefix-cache-scorer
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: by-token}, {pluginRef: by-id}, {pluginRef: prefix-cache-scorer}, {pluginRef: queue-scorer}]
"""
HUGE = "9" * 40000


@pytest.mark.parametrize("headers", [
    {"x-session-token": "ZGVmYXVsdC9ub2JvZHk="}, {"x-session-token": "%%%"}, {"x-session-token": HUGE}, {"x-session-id": HUGE},
    {"session-id": HUGE}, {"x-claude-code-session-id": b"\xff\xfe"}, {"x-llm-d-inference-fairness-id": HUGE},
    {"x-llm-d-inference-fairness-id": b"\xff\xfe"}, {"x-llm-d-inference-objective": HUGE}, {"x-request-id": HUGE},
    {"x-llm-d-slo-ttft-ms": HUGE}, {"x-llm-d-slo-ttft-ms": "nan", "x-llm-d-slo-tpot-ms": "-1e999"}, {"traceparent": HUGE},
    {"x-gateway-model-name": "other"}, {"x-gateway-destination-endpoint": "192.0.2.1:1"}, {"x-prefiller-host-port": "192.0.2.1:1"},
    {"x-encoder-hosts-ports": "192.0.2.1:1"}, {"x-kv-cache-source-host-port": "192.0.2.1:1"}, {"x-penstock-endpoint": "192.0.2.1:1"},
], ids=lambda headers: next(iter(headers)))
def test_forged_and_huge_headers_do_no_harm(forged, headers):
    """It is served by an endpoint of the pool, and what is kept and shown of it is short."""
    gateway, engines = forged
    before = sum(engines.requests())
    answer = gateway.post("/v1/completions", {"model": "sim-model", "prompt": "hello", "max_tokens": 1}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-penstock-endpoint"] in [f"127.0.0.1:{port}" for port in engines.ports]
    assert sum(engines.requests()) == before + 1
    kept = eventually(lambda: gateway.decision(answer.headers["x-request-id"]).get("outcome") and
                      gateway.decision(answer.headers["x-request-id"]), what="the record is complete")
    assert len(json.dumps(kept)) < 8192
    # What plugins say to engines no client says in their place.
    received = [r for url in engines.urls for r in httpx.get(f"{url}/sim/requests", timeout=5).json()]
    for name in ("x-prefiller-host-port", "x-encoder-hosts-ports", "x-kv-cache-source-host-port"):
        assert not any("192.0.2.1" in str(value) for r in received for key, value in dict(r["headers"]).items() if key == name), name


def test_what_clients_made_up_is_short_in_the_metrics_too(forged):
    gateway, _ = forged
    headers = {"x-llm-d-inference-fairness-id": HUGE}
    assert gateway.post("/v1/completions", {"model": "sim-model", "prompt": "hello", "max_tokens": 1}, headers=headers).status_code == 200
    page = httpx.get(f"{gateway.admin}/metrics", timeout=20).text
    assert 'fairness_id="other"' in page
    assert all(len(line) < 2000 for line in page.split("\n"))


@pytest.fixture(scope="module")
def forged(start_for_module, tmp_path_factory):
    config = tmp_path_factory.mktemp("forged") / "picker.yaml"
    config.write_text(FORGED)
    engines = start_for_module.engines(2, time_scale=0, record_requests=100)
    return start_for_module.gateway("--allow-experimental-plugins", "--config-file", config, model_servers=engines.urls), engines
