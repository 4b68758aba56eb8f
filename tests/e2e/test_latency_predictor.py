"""The external latency predictor: asked before each decision, never waited for beyond the deadline."""
import concurrent.futures
import contextlib
import http.server
import json
import re
import socket
import threading

import httpx
import pytest

import extproc_messages as messages
from extproc_messages import FULL_DUPLEX_STREAMED
from harness import eventually

CHAT = "/v1/chat/completions"
CONFIG = """
plugins:
- {{type: predicted-latency-producer, parameters: {{predictionServerURL: '{url}', trainingServerURL: '{url}', predictionDeadline: {deadline}}}}}
- {{type: latency-scorer}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: latency-scorer}}
"""


class Predictor:
    """Speaks the protocol, or misbehaves as `mode` says. Endpoints with fewer requests waiting are faster."""

    def __init__(self):
        self.mode, self.bulks, self.samples, self.lock = "good", [], [], threading.Lock()
        self.released = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/add_training_data_bulk":
                    with outer.lock:
                        outer.samples += body["entries"]
                    return self.answer(202, b"{}")
                assert self.path == "/predict/bulk/strict"
                with outer.lock:
                    outer.bulks.append(body["requests"])
                if outer.mode == "hang":
                    outer.released.wait(60)
                    self.close_connection = True
                elif outer.mode == "garbage":
                    self.answer(200, b"<html>no predictor here</html>")
                elif outer.mode == "error":
                    self.answer(500, b"{}")
                elif outer.mode == "short":
                    self.answer(200, b'{"predictions":[]}')
                elif outer.mode == "break":
                    self.close_connection = True
                else:
                    rows = [{"ttft_ms": 10.0 + row["num_request_waiting"], "tpot_ms": 1.0} for row in body["requests"]]
                    self.answer(200, json.dumps({"predictions": rows, "total_requests": len(rows)}).encode())

            def answer(self, status, body):
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a client that has stopped waiting

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.stopped = False

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self):
        if self.stopped:
            return
        self.stopped = True
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def predictor():
    one = Predictor()
    yield one
    one.stop()


def gateway_of(start, folder, engines, predictor, deadline="20s", env=None):
    """The deadline is one that only a predictor which hangs misses, on the slowest machine."""
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(url=predictor.url, deadline=deadline))
    return start.gateway("--config-file", config, "--allow-experimental-plugins", model_servers=engines.urls, env=env)


def ask(gateway, number):
    answer = gateway.post(CHAT, {"model": "sim-model", "max_tokens": 2,
                                 "messages": [{"role": "user", "content": f"question {number}"}]},
                          headers={"x-request-id": f"r{number}"})
    assert answer.status_code == 200, answer.text
    return gateway.decision(f"r{number}")


def calls(gateway, outcome):
    return gateway.metric_sum("penstock_latency_predictor_calls_total", outcome=outcome)


def test_the_predictor_is_asked_before_each_decision_and_learns_from_the_answers(start, tmp_path, predictor):
    engines = start.engines(2)
    gateway = gateway_of(start, tmp_path, engines, predictor)
    for i in range(5):
        decision = ask(gateway, i)
        assert decision["fallback"] == "none"
    eventually(lambda: calls(gateway, "ok") == 5, 20, "the calls are counted")
    assert [len(bulk) for bulk in predictor.bulks] == [2] * 5
    row = predictor.bulks[0][0]
    assert 0 <= row["kv_cache_percentage"] <= 1 and row["input_token_length"] > 0 and row["num_tokens_generated"] == 1
    eventually(lambda: len(predictor.samples) == 5, 20, "the samples arrive")
    assert all(sample["actual_ttft_ms"] > 0 and sample["timestamp"].endswith("Z") for sample in predictor.samples)
    eventually(lambda: gateway.metric_sum("penstock_latency_training_samples_total", outcome="sent") == 5, 20, "they are counted")


def test_what_was_measured_last_is_told_when_the_process_ends(start, tmp_path, predictor):
    engines = start.engines(1)
    gateway = gateway_of(start, tmp_path, engines, predictor, env={"LATENCY_FLUSH_INTERVAL_SEC": "3600"})
    for i in range(3):
        ask(gateway, i)
    assert predictor.samples == []
    gateway.program.stop()
    assert len(predictor.samples) == 3


@pytest.mark.parametrize("mode, outcome", [("hang", "timeout"), ("garbage", "garbage"), ("short", "garbage"),
                                           ("error", "status"), ("break", "connect")])
def test_a_predictor_that_misbehaves_costs_no_request_and_is_a_fallback_with_a_name(start, tmp_path, predictor, mode, outcome):
    engines = start.engines(2)
    gateway = gateway_of(start, tmp_path, engines, predictor, "500ms" if mode == "hang" else "20s")
    predictor.mode = mode
    for i in range(3):
        decision = ask(gateway, i)
        assert decision["fallback"] == "producer_failed"
    eventually(lambda: calls(gateway, outcome) == 3, 20, "each call is counted")
    assert gateway.metric_sum("penstock_decision_fallback_total", state="producer_failed") == 3
    eventually(lambda: gateway.metric_sum("penstock_latency_predictor_up") == 0, 20, "it counts as down")
    assert len(gateway.program.log_lines("the latency predictor keeps failing, decisions go on without it")) == 1
    # It recovers, and is asked again.
    predictor.mode = "good"
    predictor.released.set()
    number = iter(range(100, 100000))
    eventually(lambda: ask(gateway, next(number))["fallback"] == "none", 30, "it is asked again")
    assert gateway.metric_sum("penstock_latency_predictor_up") == 1


def test_a_predictor_that_is_dead_costs_no_request(start, tmp_path, predictor):
    engines = start.engines(2)
    predictor.stop()
    gateway = gateway_of(start, tmp_path, engines, predictor)
    for i in range(8):
        decision = ask(gateway, i)
        assert decision["fallback"] == "producer_failed"
    assert calls(gateway, "connect") >= 3
    assert calls(gateway, "connect") + calls(gateway, "down") == 8
    assert httpx.get(f"{gateway.admin}/readyz", timeout=5).status_code == 200


def raw_request(number, words="hello"):
    data = json.dumps({"model": "sim-model", "max_tokens": 2, "messages": [{"role": "user", "content": words}]}).encode()
    return (f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-request-id: r{number}\r\n"
            f"content-length: {len(data)}\r\n\r\n").encode() + data


def active(gateway):
    return gateway.metric_sum("penstock_requests_active")


def nothing_is_left(gateway):
    eventually(lambda: active(gateway) == 0, 20, "no request is active")
    assert gateway.metric_sum("llm_d_epp_request_running") == 0
    assert gateway.metric_sum("llm_d_epp_inflight_requests") == 0
    assert gateway.metric_sum("penstock_body_bytes_buffered") == 0


def ends(gateway):
    """{request id: (status, reason, endpoint)} of the log."""
    return {line["request_id"]: (line["status"], line["reason"], line.get("endpoint", ""))
            for line in gateway.program.log_lines("request")}


def test_clients_that_leave_while_the_predictor_is_asked_leave_nothing_behind(start, tmp_path, predictor):
    engines = start.engines(2)
    settings = tmp_path / "settings.yaml"
    settings.write_text("listeners: [{address: ':0', limits: {connections: 3}}]\n")
    config = tmp_path / "config.yaml"
    # Nobody but the clients ends the waiting.
    config.write_text(CONFIG.format(url=predictor.url, deadline="30s"))
    gateway = start.gateway("--settings", settings, "--config-file", config, "--allow-experimental-plugins",
                            model_servers=engines.urls)
    predictor.mode = "hang"
    with contextlib.ExitStack() as clients:
        for number in range(3):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=20))
            client.sendall(raw_request(number))
        eventually(lambda: active(gateway) == 3 and rows(predictor) == 6, 20, "all three wait for the predictor")
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as fourth, contextlib.suppress(ConnectionError):
            assert fourth.recv(1) == b"", "there is no place for a fourth connection"
    nothing_is_left(gateway)
    assert engines.requests() == [0, 0]
    eventually(lambda: len(ends(gateway)) == 3, 20, "they are in the log")
    assert ends(gateway) == {f"r{i}": (499, "client_disconnect", "") for i in range(3)}
    # Their places are free, and decisions are made with the predictor as before.
    predictor.mode = "good"
    predictor.released.set()

    def is_served_with_a_prediction():
        with contextlib.suppress(httpx.TransportError):
            return ask(gateway, "later")["fallback"] == "none"
        return False
    eventually(is_served_with_a_prediction, 30, "a new client is served")
    nothing_is_left(gateway)


BURST = """
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 6000}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer}
"""


def test_a_client_that_leaves_a_burst_leaves_nothing_behind_and_the_others_go_on(start, tmp_path):
    engines = start.engines(2)
    config = tmp_path / "config.yaml"
    config.write_text(BURST)
    gateway = start.gateway("--config-file", config, "--allow-experimental-plugins", model_servers=engines.urls)

    def stay(number):
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as client:
            client.sendall(raw_request(number, "the same words " * 40))
            return client.recv(100)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as client:
            client.sendall(raw_request("gone", "the same words " * 40))
            staying = [threads.submit(stay, number) for number in range(4)]
            eventually(lambda: active(gateway) == 5, 5, "all five wait for the window")
        eventually(lambda: active(gateway) == 4, 5, "the one that left is gone")
        assert engines.requests() == [0, 0], "the others wait on"
        for one in staying:
            assert one.result().startswith(b"HTTP/1.1 200 ")
    nothing_is_left(gateway)
    assert sorted(engines.requests()) == [0, 4], "prompts that are alike went to one engine"
    eventually(lambda: len(ends(gateway)) == 5, 20, "all are in the log")
    assert ends(gateway)["rgone"] == (499, "client_disconnect", "")


def test_the_built_in_predictor_says_how_sure_it_is_of_both_times(start, tmp_path):
    engines = start.engines(1)
    config = tmp_path / "config.yaml"
    config.write_text("plugins:\n- {type: predicted-latency-producer, parameters: {streamingMode: true}}\n- type: latency-scorer\n")
    gateway = start.gateway("--config-file", config, model_servers=engines.urls)
    chat = {"model": "sim-model", "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}

    def learn(number):
        answer = gateway.post(CHAT, {**chat, "messages": [{"role": "user", "content": f"question {number} " * (1 + number % 5)}]})
        assert answer.status_code == 200, answer.text

    def learnt():
        models = httpx.get(f"{gateway.admin}/debug/plugins/state", timeout=5).text
        return '"predicts":true' in models and '"tpotSamples":0' not in models
    for number in range(24):
        learn(number)
    eventually(learnt, 20, "it has learnt")
    explained = gateway.explain(CHAT, {**chat, "messages": [{"role": "user", "content": "why"}]})
    text = json.dumps(explained["explanations"], ensure_ascii=False)
    assert re.search(r"TTFT [0-9.e-]+ ± [0-9.e-]+ ms \(no objective\), TPOT [0-9.e-]+ ± [0-9.e-]+ ms \(no objective\)", text), text
    for kind in ("ttft", "tpot"):
        assert gateway.metric_sum("penstock_latency_prediction_error_ms", type=kind) > 0
        assert gateway.metric_sum("penstock_latency_prediction_standard_error_ms", type=kind) > 0


BODY = json.dumps({"model": "sim-model", "messages": [{"role": "user", "content": "hello"}]}).encode()


def picker_of(start, engines, predictor, parameters=""):
    return start.picker(engines.ports, plugins=f"- {{type: predicted-latency-producer{parameters}}}\n- type: latency-scorer",
                        profile="  - {pluginRef: latency-scorer, weight: 1}", env={"PREDICTION_SERVER_URL": predictor.url})


def send(connection):
    stream = connection.open()
    headers = [(":authority", "a"), (":path", CHAT), (":method", "POST"), ("content-type", "application/json"),
               ("content-length", str(len(BODY)))]
    stream.send(messages.headers_message("request_headers", headers, modes=(FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED)))
    stream.send(messages.body_message("request_body", BODY, True))
    return stream


def destination(stream):
    return stream.answers(lambda a: a.kind == "request_body" and a.end_of_stream)[0].destination


def rows(predictor):
    return sum(len(bulk) for bulk in predictor.bulks)


def test_the_picker_asks_too(start, predictor):
    engines = start.engines(2)
    picker = picker_of(start, engines, predictor, ", parameters: {predictionDeadline: 20s}")
    with picker.connect() as connection:
        streams = [send(connection) for _ in range(20)]
        assert {destination(stream) for stream in streams} <= {f"127.0.0.1:{port}" for port in engines.ports}
        assert rows(predictor) == 40
        assert picker.metric_sum("penstock_decision_fallback_total", state="producer_failed") == 0
        for stream in streams:
            stream.cancel()


def test_a_stream_that_ends_while_the_picker_waits_for_the_predictor_leaves_nothing_behind(start, predictor):
    engines = start.engines(2)
    picker = picker_of(start, engines, predictor)
    predictor.mode = "hang"
    with picker.connect() as connection:
        left = send(connection)
        eventually(lambda: rows(predictor) == 2, what="the question is asked")
        left.cancel()
        patient = send(connection)
        assert destination(patient)
        assert picker.metric_sum("penstock_decision_fallback_total", state="producer_failed") >= 1
        patient.cancel()
        eventually(lambda: picker.running() == 0, what="counters back at zero")
