"""`penstock epp` spoken to directly: the exchange with Envoy, splits that Envoy does not produce, refusals and ends.

Every stream gets a defined end, and the picker's counters are back at zero after each test.
"""
import json
import random
import signal

import httpx
import pytest

import extproc_messages as m
from extproc_messages import BUFFERED, BUFFERED_PARTIAL, DESTINATION, NONE, STREAMED
from grpc_client import CANCEL
from harness import eventually
from picker_streams import (DUPLEX, UNIMPLEMENTED, answer_response, chat_body, cut, decided, fails, leaves_nothing, pick,
                            refused, request_headers, response_headers, send_request)

TOKEN = set("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")

# --- the plain exchange

def test_headers_and_metadata_name_the_same_endpoint(picker, engines, connection):
    stream = connection.open()
    headers, body = pick(stream)
    assert body == chat_body()
    assert headers.destination in {f"127.0.0.1:{port}" for port in engines.ports}
    assert headers.clear_route_cache
    assert headers.metadata["envoy.lb"][DESTINATION] == headers.destination
    scores = headers.metadata["envoy.lb"]["x-gateway-destination-endpoint-scores"]
    assert set(scores) == {f"127.0.0.1:{port}" for port in engines.ports}
    assert headers.header("content-length") == str(len(body))
    assert answer_response(stream) == b'{"choices":[]}'
    stream.cancel()


def test_only_headers_that_change_are_sent_and_all_are_valid(connection):
    nasty = "m\r\nx-evil: 1\0 \x80\xff"
    stream = connection.open()
    headers, _ = pick(stream, chat_body(user=nasty), x_session_token="a\r\nb", x_llm_d_inference_fairness_id="f\r\ng")
    for key, value in headers.set_headers:
        assert key and set(key) <= TOKEN, key
        assert not set(value) & set("\r\n\0"), (key, value)
    assert {key for key, _ in headers.set_headers} <= {DESTINATION, "content-length", "x-request-id"}
    stream.cancel(CANCEL)
    for name in ("x-llm-d-model-name-rewrite", "x-request-id"):
        stream = connection.open()
        send_request(stream, chat_body(), **{name: nasty})
        answer = stream.answer()
        assert answer.kind in ("request_headers", "immediate")
        for _, value in answer.set_headers:
            assert not set(value) & set("\r\n\0")
        stream.cancel()


@pytest.mark.parametrize("size", [1, 61_999, 62_000, 62_001, 124_000, 1_000_003])
def test_bodies_come_back_whole_in_both_directions(connection, size):
    body = chat_body("x" * size)
    random.seed(size)
    pieces = cut(body, [random.randint(1, max(2, len(body) // 7)) for _ in range(14)])
    stream = connection.open()
    assert pick(stream, body, pieces=[p for p in pieces if p])[1] == body
    response = b"y" * size
    parts = cut(response, [size // 14 + 1] * 14)
    assert answer_response(stream, response, "text/event-stream", parts) == response
    stream.cancel()
    stream = connection.open()
    pick(stream)
    assert answer_response(stream, response, "application/octet-stream", parts) == response
    stream.cancel()


def test_any_split_of_a_request_gives_the_same_answer(connection):
    body = chat_body("split me", max_tokens=7)
    expected = None
    for pieces in ([body], [body, b""], [b"", body], [bytes([b]) for b in body], cut(body, [1]), cut(body, [len(body) - 1])):
        stream = connection.open()
        headers, echoed = pick(stream, body, pieces=pieces)
        assert echoed == body
        seen = (sorted(key for key, _ in headers.set_headers), headers.header("content-length"))
        assert expected in (None, seen)
        expected = seen
        stream.cancel()


def test_usage_is_read_whatever_the_split(picker, connection):
    event = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
    before = picker.metric_sum("llm_d_epp_request_output_tokens_sum")
    splits = range(1, len(event))
    for at in splits:
        stream = connection.open()
        pick(stream, chat_body(stream=True))
        assert answer_response(stream, kind="text/event-stream", pieces=[event[:at], event[at:]]) == event
        stream.cancel()
    stream = connection.open()
    pick(stream, chat_body(stream=True))
    assert answer_response(stream, kind="text/event-stream", pieces=[bytes([b]) for b in event]) == event
    stream.cancel()
    eventually(lambda: picker.metric_sum("llm_d_epp_request_output_tokens_sum") == before + 3 * (len(splits) + 1), what="token sums")


@pytest.mark.parametrize("kind, body", [
    ("text/event-stream", b'{"a":1}\n\n{"b":2}\n{"c":3}\n\n[DONE]'), ("text/event-stream", b"data: {broken\n\ndata: \xff\xfe\n\n"),
    ("application/json", b"no json"), ("application/json", b""), ("application/json", b'{"usage":"text"}')])
def test_answers_that_cannot_be_read_pass_unchanged(connection, kind, body):
    stream = connection.open()
    pick(stream, chat_body(stream=kind.startswith("text")))
    assert answer_response(stream, body, kind) == body
    stream.cancel()


def test_a_restored_model_name_survives_every_split(connection):
    event = b'data: {"id":"1","model":"sim-model","choices":[]}\n\n'
    want = event.replace(b"sim-model", b"public")
    for at in range(1, len(event)):
        stream = connection.open()
        _, body = pick(stream, chat_body().replace(b"sim-model", b"public"), x_llm_d_model_name_rewrite="sim-model")
        assert json.loads(body)["model"] == "sim-model"
        assert answer_response(stream, kind="text/event-stream", pieces=[event[:at], event[at:]]) == want, at
        stream.cancel()


# --- body modes

@pytest.mark.parametrize("mode", [NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL])
def test_each_body_mode_gets_the_answers_its_data_plane_expects(connection, mode):
    stream = connection.open()
    body = chat_body()
    stream.send(m.headers_message("request_headers", request_headers(len(body)), modes=(mode, mode)))
    first = stream.answer()
    assert first.kind == "request_headers" and first.streamed is None and first.body is None
    if mode in (NONE, STREAMED):
        assert first.destination
    if mode == STREAMED:
        for piece, last in ((body[:10], False), (body[10:], True)):
            stream.send(m.body_message("request_body", piece, last))
            answer = stream.answer()
            assert answer.kind == "request_body" and answer.streamed is None
    if mode in (BUFFERED, BUFFERED_PARTIAL):
        assert not first.destination
        stream.send(m.body_message("request_body", body, True))
        answer = stream.answer()
        assert answer.kind == "request_body" and answer.streamed is None
        assert answer.destination and answer.clear_route_cache
        assert answer.metadata["envoy.lb"][DESTINATION] == answer.destination
    stream.send(m.headers_message("response_headers", response_headers()))
    assert stream.answer().kind == "response_headers"
    if mode != NONE:
        stream.send(m.body_message("response_body", b"{}", True))
        answer = stream.answer()
        assert answer.kind == "response_body" and answer.streamed is None
    stream.cancel()


@pytest.mark.parametrize("mode", [BUFFERED, BUFFERED_PARTIAL])
def test_a_buffered_body_is_replaced_as_a_whole_when_its_model_changes(connection, mode):
    stream = connection.open()
    body = chat_body().replace(b"sim-model", b"public")
    stream.send(m.headers_message("request_headers", request_headers(len(body), x_llm_d_model_name_rewrite="sim-model"), modes=(mode, NONE)))
    stream.answer()
    stream.send(m.body_message("request_body", body, True))
    answer = stream.answer()
    assert json.loads(answer.body)["model"] == "sim-model"
    assert answer.header("content-length") in (None, str(len(answer.body)))
    stream.cancel()


def test_an_unknown_body_mode_is_named_in_the_error(connection):
    stream = connection.open()
    stream.send(m.headers_message("request_headers", request_headers(), modes=(9, 4)))
    fails(stream, UNIMPLEMENTED)
    assert "9" in stream.status_text


def test_requests_without_a_body_are_decided_at_once(connection, engines):
    for method, path in (("GET", "/v1/models"), ("DELETE", "/v1/x"), ("POST", "/v1/chat/completions")):
        stream = connection.open()
        stream.send(m.headers_message("request_headers", request_headers(path=path, method=method), True, modes=DUPLEX))
        answer = stream.answer()
        assert answer.kind == "request_headers" and answer.destination
        answer_response(stream)
        stream.cancel()


# --- trailers

def test_request_trailers_end_the_body(connection):
    body = chat_body()
    for pieces in ([body], [body[:5], body[5:]], [bytes([b]) for b in body]):
        stream = connection.open()
        send_request(stream, body, pieces=pieces, end_of_stream=False)
        assert stream.is_silent(0.05)
        stream.send(m.trailers_message("request_trailers", [("x-checksum", "1")]))
        answers = stream.answers(lambda a: a.kind == "request_trailers")
        assert answers[0].destination
        assert b"".join(a.streamed for a in answers[1:-1]) == body
        assert not any(a.end_of_stream for a in answers[1:-1])
        answer_response(stream)
        stream.cancel()


def test_response_trailers_end_the_answer(picker, connection):
    for kind in ("application/grpc", "text/event-stream", "application/json"):
        stream = connection.open()
        pick(stream)
        stream.send(m.headers_message("response_headers", response_headers(kind)))
        stream.send(m.body_message("response_body", b"abc"))
        stream.send(m.trailers_message("response_trailers", [("grpc-status", "0")]))
        answers = stream.answers(lambda a: a.kind == "response_trailers")
        assert b"".join(a.streamed for a in answers if a.streamed) == b"abc"
        assert not any(a.end_of_stream for a in answers)
        stream.cancel()


def test_several_destinations_are_one_list_in_header_and_metadata(start, engines):
    picker = start.picker(engines.ports)
    config = picker.folder / "epp.yaml"
    two = "- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}"
    config.write_text(config.read_text().replace("- type: max-score-picker", two))
    picker.program.signal(signal.SIGHUP)
    eventually(lambda: picker.program.log_lines("reloaded"), what="a reload")
    with picker.connect() as connection:
        stream = connection.open()
        headers, body = pick(stream)
        assert sorted(headers.destination.split(",")) == sorted(f"127.0.0.1:{port}" for port in engines.ports[:2])
        assert headers.metadata["envoy.lb"][DESTINATION] == headers.destination
        assert body == chat_body()
        answer_response(stream)
        stream.cancel()
    leaves_nothing(picker)


# --- refusals

@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"model":"sim-model"}', b"[" * 3000, b'{"model":"sim-model",'
                                  b'"messages":[{"role":"user","content":"x"}]} {}'])
def test_a_bad_body_is_an_immediate_400_and_the_stream_ends_with_ok(connection, body):
    stream = connection.open()
    send_request(stream, body)
    status, text = refused(stream)
    assert status == 400
    assert text.startswith("inference error: BadRequest - ")


def test_a_body_over_the_limit_is_413(picker, connection):
    stream = connection.open()
    stream.send(m.headers_message("request_headers", request_headers(), modes=DUPLEX))
    try:
        for _ in range(80):
            stream.send(m.body_message("request_body", b" " * (1 << 20)))
    except ConnectionError:
        pass
    assert refused(stream)[0] == 413


def test_headers_over_the_limit_are_431(connection):
    stream = connection.open()
    send_request(stream, chat_body(), x_large="a" * 80_000)
    assert refused(stream)[0] == 431


@pytest.mark.parametrize("subset, allowed", [
    (["{0}"], [0]), ("{1}", [1]), ("{0},{1}", [0, 1]), (["127.0.0.1:9"], [0, 1]), (["192.168.1.99:8000"], []), ([], []), (["{1}", 5], [1])])
def test_the_subset_hint_is_obeyed(connection, engines, subset, allowed):
    addresses = [f"127.0.0.1:{port}" for port in engines.ports]
    given = [one.format(*addresses) if isinstance(one, str) else one for one in subset] if isinstance(subset, list) else \
        subset.format(*addresses)
    for _ in range(4):
        stream = connection.open()
        send_request(stream, chat_body(str(random.random())),
                     metadata={"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": given}})
        if not allowed:
            status, _ = refused(stream)
            assert status == 503
        else:
            assert decided(stream)[0].destination in [addresses[i] for i in allowed]
            stream.cancel()


# --- ends

@pytest.mark.parametrize("end", ["half-close", "reset", "connection"])
@pytest.mark.parametrize("phase", ["opened", "headers", "half a body", "decided", "response headers", "half a response", "done"])
def test_a_stream_may_end_anywhere_and_leaves_nothing(picker, phase, end):
    body = chat_body("x" * 200_000)
    with picker.connect() as connection:
        stream = connection.open()
        if phase in ("headers", "half a body"):
            stream.send(m.headers_message("request_headers", request_headers(len(body)), modes=DUPLEX))
        if phase == "half a body":
            stream.send(m.body_message("request_body", body[:100_000]))
        if phase in ("decided", "response headers", "half a response", "done"):
            pick(stream, body)
        if phase in ("response headers", "half a response"):
            stream.send(m.headers_message("response_headers", response_headers()))
            stream.answer()
        if phase == "half a response":
            stream.send(m.body_message("response_body", b"abc"))
        if phase == "done":
            answer_response(stream)
        if end == "half-close":
            stream.half_close()
            assert stream.wait_for_end(5) == 0
        elif end == "reset":
            stream.cancel()
        else:
            connection.close()
    leaves_nothing(picker)
    eventually(lambda: picker.metric_sum("penstock_body_bytes_buffered") == 0, what="no body held")


def test_a_body_that_never_comes_is_answered_by_the_pickers_own_deadline(start, engines):
    picker = start.picker(engines.ports, "--request-body-timeout", "300ms")
    with picker.connect() as connection:
        stream = connection.open()
        stream.send(m.headers_message("request_headers", request_headers(100), modes=DUPLEX))
        stream.send(m.body_message("request_body", b"{"))
        status, text = refused(stream)
        assert status == 408
        assert "nothing more of the request body came for 0.3 s" in text
    leaves_nothing(picker)


# --- fallback

def test_decisions_without_fresh_signals_are_a_named_state(start):
    engines = start.engines(1)
    picker = start.picker(engines.ports, "--metrics-staleness-threshold", "200ms")
    engines.fault(0, metrics_status=500)

    def fallen_back():
        with picker.connect() as connection:
            stream = connection.open()
            assert pick(stream, x_request_id="fallback")[0].destination
            answer_response(stream)
            stream.cancel()
        return picker.metric_sum("penstock_decision_fallback_total", state="no_fresh_signals") > 0

    eventually(fallen_back, what="the state is counted")
    record = httpx.get(f"{picker.admin}/debug/decisions/fallback", timeout=5).json()
    assert record["fallback"] == "no_fresh_signals"


@pytest.mark.parametrize("phase", ["always", "never"])
def test_the_moments_of_a_record_are_in_their_order_however_the_request_ended(start, engines, phase):
    picker = start.picker(engines.ports, "--response-phase", phase)
    with picker.connect() as connection:
        stream = connection.open()
        pick(stream, x_request_id="served")
        if phase == "always":
            answer_response(stream)
        stream.cancel()
        for name, body in [("no model", b'{"messages": [{"role": "user", "content": "x"}]}'), ("no JSON", b"{")]:
            stream = connection.open()
            send_request(stream, body, x_request_id=name.replace(" ", "-"))
            assert refused(stream)[0] == 400
    for name in ["served", "no-model", "no-JSON"]:
        answer = eventually(lambda: (r := httpx.get(f"{picker.admin}/debug/decisions/{name}", timeout=5)).status_code == 200 and r)
        moments = answer.json()["moments_ms"]
        known = [moments[key] for key in ["pool_chosen", "decision_started", "endpoint_chosen", "first_token", "ended"] if key in moments]
        assert len(known) >= 2 and known == sorted(known), (name, moments)
