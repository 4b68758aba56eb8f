"""A picker that is away, stopped or slow, behind the shipped Envoy configurations for both failure modes."""
import contextlib
import signal
import socket
import threading

import httpx
import pytest

import extproc_messages as messages
from grpc_client import Connection
from harness import eventually, free_port
from load import Load

CHAT = "/v1/chat/completions"


def chat(text="hello", **more):
    return {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more}


LONG = chat(stream=True, max_tokens=600, ignore_eos=True)


class Bed:
    def __init__(self, start, mode):
        self.engines = start.engines(2, decode_ms=3)
        self.picker = start.picker(self.engines.ports, "--drain-timeout", "0s")
        self.envoy = start.envoy(f"fail-{mode}.yaml", self.picker.port, self.picker.health_port, self.engines.ports)
        self.url = self.envoy.url + CHAT
        eventually(self.envoy.picker_is_healthy, 20, "Envoy finds the picker healthy")

    def served(self):
        return sum(self.engines.requests())


@pytest.fixture
def closed(start):
    return Bed(start, "close")


@pytest.fixture
def opened(start):
    return Bed(start, "open")


def statuses(load, action, more=12):
    """What clients see from `action()` on."""
    load.more_than(more)
    action()
    load.more_than(more)
    return load.stop()


def test_fail_close_answers_503_without_a_picker_and_recovers_with_it(closed):
    closed.picker.program.process.kill()
    eventually(lambda: closed.envoy.post(CHAT, chat()).status_code == 503, what="the picker's death is noticed")
    before = closed.served()
    for body in (chat(), chat("x" * 220_000), chat(stream=True)):
        assert closed.envoy.post(CHAT, body).status_code == 503
    assert httpx.get(closed.envoy.url + "/v1/models", timeout=10).status_code == 503
    assert closed.served() == before, "a request reached an engine without the picker"
    closed.picker.start()
    eventually(lambda: closed.envoy.post(CHAT, chat()).status_code == 200, what="recovery")


def test_fail_close_lets_no_client_choose_the_server_while_the_picker_is_away(closed):
    closed.picker.program.process.kill()
    before = closed.served()
    address = {messages.DESTINATION: f"127.0.0.1:{closed.engines.ports[0]}"}
    for _ in range(5):
        assert closed.envoy.post(CHAT, chat(), headers=address).status_code == 503
    assert closed.served() == before


@pytest.mark.parametrize("action", ["kill", "stop", "restart"])
def test_fail_close_under_load_answers_200_or_503_only(closed, action):
    load = Load(closed.url, chat())
    load.more_than(12)
    away = {"kill": closed.picker.program.process.kill, "restart": closed.picker.program.stop,
            "stop": lambda: closed.picker.program.signal(signal.SIGSTOP)}
    back = {"kill": closed.picker.start, "restart": closed.picker.start, "stop": lambda: closed.picker.program.signal(signal.SIGCONT)}
    try:
        away[action]()
        eventually(lambda: load.results[-1][0] == 503, 30, "refusals while the picker is away")
        load.more_than(12)
    finally:
        back[action]()
    eventually(lambda: load.results[-1][0] == 200, 30, "recovery under load")
    assert load.stop() == {200, 503}
    eventually(lambda: closed.picker.running() == 0, what="counters back at zero")


def test_fail_close_bounds_the_wait_for_a_stopped_picker(closed):
    closed.picker.program.signal(signal.SIGSTOP)
    try:
        answer = closed.envoy.post(CHAT, chat(), timeout=15)
        assert answer.status_code == 503
        eventually(lambda: closed.envoy.post(CHAT, chat(), timeout=15).elapsed.total_seconds() < 0.5, 15, "refused at once")
    finally:
        closed.picker.program.signal(signal.SIGCONT)
    eventually(lambda: closed.envoy.post(CHAT, chat()).status_code == 200, 15, "recovery")


def test_fail_close_cuts_streams_whose_picker_died(closed):
    with pytest.raises(httpx.HTTPError):
        with httpx.stream("POST", closed.url, json=LONG, timeout=20) as answer:
            lines = answer.iter_lines()
            next(lines)
            closed.picker.program.process.kill()
            for _ in lines:
                pass
    eventually(lambda: all(closed.engines.state(i)["in_flight"] == 0 for i in range(2)), what="engines stopped")


def test_fail_open_serves_everything_without_a_picker(opened):
    opened.picker.program.process.kill()
    for body in (chat(), chat("x" * 220_000), chat("x" * 5_000_000)):
        assert opened.envoy.post(CHAT, body).status_code in (200, 400), "an engine's answer"
    assert opened.envoy.post(CHAT, chat()).status_code == 200
    assert opened.envoy.post(CHAT, chat(stream=True)).text.endswith("data: [DONE]\n\n")
    assert httpx.get(opened.envoy.url + "/v1/models", timeout=10).status_code == 200
    assert all(count >= 2 for count in opened.engines.requests()), "in turn"
    picked = opened.picker
    picked.start()
    eventually(lambda: opened.envoy.post(CHAT, chat()).status_code == 200 and picked.metric_sum("llm_d_epp_request_total") > 0,
               15, "the picker decides again")


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_fail_open_refuses_bodies_beyond_its_buffer(start, http2):
    engines = start.engines(1)
    picker = start.picker(engines.ports)
    envoy = start.envoy("fail-open.yaml", picker.port, picker.health_port, engines.ports * 2, changes=[
        (f"{name}: 33554432", f"{name}: 65536") for name in ("per_connection_buffer_limit_bytes", "initial_stream_window_size")])
    with httpx.Client(http1=not http2, http2=http2, timeout=20) as client:
        assert client.post(envoy.url + CHAT, json=chat("x" * 60_000)).status_code == 200
    if http2:
        with Connection(envoy.port) as connection:
            large = connection.request(CHAT, [("content-type", "application/json")])
            while not large.headers:
                with contextlib.suppress(ConnectionError):
                    large.send_bytes(b"x" * 10_000)
                connection.pump(0.05)
        assert large.headers[":status"] == "413"
    else:
        with socket.create_connection(("127.0.0.1", envoy.port), timeout=20) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 150_000)
            assert s.recv(12) == b"HTTP/1.1 413"
    assert sum(engines.requests()) == 1
    eventually(lambda: picker.running() == 0, what="counters back at zero")


def test_fail_open_takes_large_bodies_over_either_version(start):
    engines = start.engines(1, max_model_len=64_000_000, num_blocks=4_000_000, prefill_tokens_per_second=0)
    picker = start.picker(engines.ports)
    envoy = start.envoy("fail-open.yaml", picker.port, picker.health_port, engines.ports * 2)
    for http2 in (False, True):
        with httpx.Client(http1=not http2, http2=http2, timeout=60) as client:
            assert client.post(envoy.url + CHAT, json=chat("x" * 20_000_000)).status_code == 200
    eventually(lambda: picker.running() == 0, what="counters back at zero")


def test_fail_open_never_sends_a_request_where_its_client_says(opened):
    trap = f"127.0.0.1:{free_port()}"
    for _ in range(3):
        assert opened.envoy.post(CHAT, chat(), headers={messages.DESTINATION: trap}).status_code == 200
    opened.picker.program.process.kill()
    for _ in range(3):
        assert opened.envoy.post(CHAT, chat(), headers={messages.DESTINATION: trap}).status_code == 200


@pytest.mark.parametrize("action", ["kill", "stop", "restart"])
def test_fail_open_under_load_loses_no_request(opened, action):
    load = Load(opened.url, chat())

    def act():
        if action == "kill":
            opened.picker.program.process.kill()
        elif action == "stop":
            opened.picker.program.signal(signal.SIGSTOP)
        else:
            opened.picker.restart()

    try:
        seen = statuses(load, act, 40)
    finally:
        if action == "stop":
            opened.picker.program.signal(signal.SIGCONT)
    assert seen == {200}, seen  # the load gives up on what takes 30 s


def test_fail_open_streams_outlive_their_picker_and_lose_nothing(opened):
    answers = []

    def one(number):
        with httpx.stream("POST", opened.url, json={**LONG, "user": str(number)}, timeout=30) as answer:
            lines = [line for line in answer.iter_lines() if line]
        answers.append((sum('"content":"' in line and '"content":""' not in line for line in lines), lines[-1]))

    clients = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for client in clients:
        client.start()
    eventually(lambda: opened.picker.metric_sum("llm_d_epp_request_running") == 8, what="eight streams under way")
    opened.picker.program.process.kill()
    for client in clients:
        client.join(30)
    assert answers == [(600, "data: [DONE]")] * 8


def test_fail_open_shows_the_picker_the_answers_while_it_is_there(opened):
    body = chat(stream=True, model="public", stream_options={"include_usage": True})
    answer = opened.envoy.post(CHAT, body, headers={"x-llm-d-model-name-rewrite": "sim-model"})
    assert '"model":"public"' in answer.text
    assert "sim-model" not in answer.text
    eventually(lambda: opened.picker.metric_sum("llm_d_epp_request_output_tokens_sum") == 4, what="usage was read")
    assert opened.envoy.stats()["streams_failed"] == 0


def test_a_picker_that_refuses_is_obeyed_in_both_modes(start):
    engines = start.engines(1)
    picker = start.picker(engines.ports)
    picker.set_endpoints([])
    eventually(lambda: picker.metric_sum("llm_d_epp_ready_endpoints") == 0, what="endpoints gone")
    for mode in ("open", "close"):
        envoy = start.envoy(f"fail-{mode}.yaml", picker.port, picker.health_port, engines.ports * 2)
        answer = envoy.post(CHAT, chat())
        assert answer.status_code == 503
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        bad = httpx.post(envoy.url + CHAT, content=b"{", timeout=10)
        assert bad.status_code == 400
    assert sum(engines.requests()) == 0
