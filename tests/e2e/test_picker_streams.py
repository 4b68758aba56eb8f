"""`penstock epp` spoken to directly: orders, splits and abuse that Envoy does not produce.

Every stream gets a defined end, and the picker's counters are back at zero after each test.
"""
import contextlib
import gzip
import json
import random
import signal
import socket
import ssl
import struct
import subprocess
import time

import httpx
import pytest

import extproc_messages as m
from extproc_messages import BUFFERED, BUFFERED_PARTIAL, DESTINATION, FULL_DUPLEX_STREAMED, NONE, STREAMED
from grpc_client import CANCEL, Connection
from harness import ROOT, Program, eventually, free_port, make_certificate, shows_certificate

DUPLEX = (FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED)
INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 4, 8, 12
TOKEN = set("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


@pytest.fixture(scope="module")
def engines(start_for_module):
    return start_for_module.engines(2)


@pytest.fixture(scope="module")
def picker(start_for_module, engines):
    return start_for_module.picker(engines.ports, "--emit-endpoint-scores")


@pytest.fixture
def connection(picker):
    with picker.connect() as connection:
        yield connection
    eventually(lambda: picker.running() == 0, what="counters back at zero")
    assert picker.program.process.poll() is None, picker.program.log_text()[-2000:]


def chat_body(text="hello", **more):
    return json.dumps({"model": "sim-model", "messages": [{"role": "user", "content": text}], **more}).encode()


def request_headers(size=None, path="/v1/chat/completions", method="POST", **more):
    out = [(":authority", "127.0.0.1:8080"), (":path", path), (":method", method), (":scheme", "http"), ("accept", "*/*"),
           ("content-type", "application/json"), ("x-forwarded-proto", "http")]
    if size is not None:
        out.append(("content-length", str(size)))
    return out + [(name.replace("_", "-"), value) for name, value in more.items()]


def response_headers(kind="application/json", status="200"):
    return [(":status", status), ("server", "uvicorn"), ("content-type", kind), ("transfer-encoding", "chunked")]


def cut(body, sizes):
    pieces, at = [], 0
    for size in sizes:
        pieces.append(body[at:at + size])
        at += size
    if at < len(body):
        pieces.append(body[at:])
    return pieces


def send_request(stream, body, pieces=None, modes=DUPLEX, end_of_stream=True, metadata=None, **headers):
    """All messages of a request as Envoy would send them to an HTTP/2 client."""
    pieces = [body] if pieces is None else pieces
    stream.send(m.headers_message("request_headers", request_headers(len(body), **headers), modes=modes))
    for i, piece in enumerate(pieces):
        last = i + 1 == len(pieces)
        stream.send(m.body_message("request_body", piece, last and end_of_stream, metadata=metadata if last else None))


def decided(stream):
    """(headers answer, forwarded body) of a full-duplex request."""
    answers = stream.answers(lambda a: a.kind == "immediate" or a.kind == "request_body" and a.end_of_stream)
    assert [a.kind for a in answers] == ["request_headers"] + ["request_body"] * (len(answers) - 1), answers
    assert all(len(a.streamed) <= 62_000 for a in answers[1:])
    assert [a.end_of_stream for a in answers[1:]] == [False] * (len(answers) - 2) + [True]
    return answers[0], b"".join(a.streamed for a in answers[1:])


def pick(stream, body=None, **more):
    body = chat_body() if body is None else body
    send_request(stream, body, **more)
    return decided(stream)


def answer_response(stream, body=b'{"choices":[]}', kind="application/json", pieces=None):
    """The response phase; returns what comes back."""
    stream.send(m.headers_message("response_headers", response_headers(kind)))
    headers = stream.answer()
    assert headers.kind == "response_headers"
    for piece in [body] if pieces is None else pieces:
        stream.send(m.body_message("response_body", piece))
    stream.send(m.body_message("response_body", b"", True))
    answers = stream.answers(lambda a: a.end_of_stream)
    assert {a.kind for a in answers} == {"response_body"}
    return b"".join(a.streamed for a in answers)


def refused(stream):
    """The immediate response that ends a stream: (status, text)."""
    answer = stream.answer()
    assert answer is not None and answer.kind == "immediate", (answer, stream.status, stream.status_text)
    assert stream.wait_for_end() == 0
    return answer.status, answer.body.decode()


def fails(stream, code=INVALID_ARGUMENT):
    assert stream.wait_for_end() == code, (stream.status, stream.status_text, stream.queue)
    assert not [x for x in stream.queue if m.read_answer(x).kind == "immediate"]
    assert stream.status_text


def works(picker):
    with picker.connect() as connection:
        stream = connection.open()
        assert pick(stream)[0].destination
        answer_response(stream)
        stream.cancel()


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
    eventually(lambda: picker.running() == 0, what="counters back at zero")


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


# --- orders that break the protocol

def body_first(stream):
    stream.send(m.body_message("request_body", chat_body(), True, modes=DUPLEX))


def headers_twice(stream):
    for _ in range(2):
        stream.send(m.headers_message("request_headers", request_headers(), modes=DUPLEX))


def body_after_its_end(stream):
    send_request(stream, chat_body())
    stream.send(m.body_message("request_body", b"more", True))


def trailers_first(stream):
    stream.send(m.trailers_message("request_trailers", modes=DUPLEX))


def trailers_twice(stream):
    send_request(stream, chat_body(), end_of_stream=False)
    for _ in range(2):
        stream.send(m.trailers_message("request_trailers"))


def response_body_first(stream):
    send_request(stream, chat_body())
    stream.send(m.body_message("response_body", b"{}", True))


def response_headers_twice(stream):
    send_request(stream, chat_body())
    for _ in range(2):
        stream.send(m.headers_message("response_headers", response_headers()))


def response_body_after_its_end(stream):
    send_request(stream, chat_body())
    stream.send(m.headers_message("response_headers", response_headers()))
    for _ in range(2):
        stream.send(m.body_message("response_body", b"{}", True))


def request_after_response(stream):
    stream.send(m.headers_message("response_headers", response_headers(), modes=DUPLEX))
    stream.send(m.headers_message("request_headers", request_headers()))


def no_protobuf(stream):
    stream.send(b"\xff\xff\xff\xff\xff\xff")


def cut_protobuf(stream):
    stream.send(m.headers_message("request_headers", request_headers(), modes=DUPLEX)[:-3])


def broken_inner_headers(stream):
    stream.send(m.data(2, m.data(1, b"\x0a\xff\xff")))


def observability(stream):
    stream.send(m.headers_message("request_headers", request_headers(), modes=DUPLEX) + m.number(10, 1))


@pytest.mark.parametrize("script", [
    body_first, headers_twice, body_after_its_end, trailers_first, trailers_twice, response_body_first, response_headers_twice,
    response_body_after_its_end, request_after_response, no_protobuf, cut_protobuf, broken_inner_headers,
    observability], ids=lambda f: f.__name__)
def test_a_stream_that_breaks_the_protocol_ends_with_a_status(picker, connection, script):
    other = connection.open()
    stream = connection.open()
    script(stream)
    assert stream.wait_for_end(5) not in (None, 0)
    assert stream.status_text
    assert pick(other)[0].destination, "another stream of the connection suffered"
    other.cancel()


def test_random_messages_never_hang_a_stream_or_end_the_picker(picker, connection):
    rng = random.Random(4)
    kinds = [lambda: m.headers_message("request_headers", request_headers(), rng.random() < 0.2, modes=DUPLEX),
             lambda: m.body_message("request_body", chat_body(), rng.random() < 0.5),
             lambda: m.trailers_message("request_trailers"),
             lambda: m.headers_message("response_headers", response_headers(), rng.random() < 0.2),
             lambda: m.body_message("response_body", b"{}", rng.random() < 0.5),
             lambda: m.trailers_message("response_trailers"),
             lambda: b"", lambda: rng.randbytes(rng.randint(1, 40))]
    for _ in range(300):
        stream = connection.open()
        try:
            for _ in range(rng.randint(1, 6)):
                stream.send(rng.choice(kinds)())
            rng.choice([stream.half_close, stream.cancel])()
        except ConnectionError:
            pass
        if stream.number in connection.streams:
            stream.wait_for_end(5)
    works(picker)


def test_a_message_without_a_member_is_skipped(connection):
    stream = connection.open()
    stream.send(b"")
    stream.send(m.extras())
    stream.send(m.number(2, 7))  # of another wire type: an unknown field
    assert stream.is_silent(0.1)
    assert pick(stream)[0].destination
    stream.cancel()


# --- framing

def test_several_messages_in_one_frame_and_one_message_in_many(connection):
    body = chat_body()
    whole = m.frame(m.headers_message("request_headers", request_headers(len(body)), modes=DUPLEX)) + \
        m.frame(m.body_message("request_body", body, True))
    stream = connection.open()
    stream.send_bytes(whole)
    assert decided(stream)[1] == body
    stream.cancel()
    stream = connection.open()
    for byte in whole:
        stream.send_bytes(bytes([byte]))
    assert decided(stream)[1] == body
    stream.cancel()


def test_gzip_messages_are_read_when_announced(connection):
    body = chat_body()
    stream = connection.open(headers=[("grpc-encoding", "gzip")])
    stream.send(gzip.compress(m.headers_message("request_headers", request_headers(len(body)), modes=DUPLEX)), flag=1)
    stream.send(m.body_message("request_body", body, True))
    assert decided(stream)[1] == body
    stream.cancel()


def test_compressed_messages_of_no_announced_encoding_are_an_error(connection):
    stream = connection.open()
    stream.send(b"xxxx", flag=1)
    assert stream.wait_for_end(5) not in (None, 0)


def test_a_message_beyond_the_limit_ends_the_stream_before_it_is_read(connection):
    stream = connection.open()
    stream.send_bytes(struct.pack(">BI", 0, 0xFFFFFFFF) + b"x")
    assert stream.wait_for_end(5) == RESOURCE_EXHAUSTED


def test_a_cut_message_is_an_error(connection):
    stream = connection.open()
    stream.send_bytes(struct.pack(">BI", 0, 100) + b"short", end=True)
    assert stream.wait_for_end(5) not in (None, 0)


@pytest.mark.parametrize("path, status", [("/envoy.service.ext_proc.v3.ExternalProcessor/Nothing", UNIMPLEMENTED),
                                          ("/no.such.Service/Process", UNIMPLEMENTED)])
def test_unknown_methods_are_unimplemented(connection, path, status):
    stream = connection.open(path)
    stream.send(b"", end=True)
    assert stream.wait_for_end(5) == status


def test_a_call_that_is_not_grpc_is_refused(connection):
    stream = connection.request("/envoy.service.ext_proc.v3.ExternalProcessor/Process", [("content-type", "text/plain")], end=True)
    stream.wait_for_end(5)
    assert stream.headers[":status"] == "415" or stream.status not in (None, 0)


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
    eventually(lambda: picker.running() == 0, what="counters back at zero")
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
    eventually(lambda: picker.running() == 0, what="counters back at zero")


# --- many, fast and slow

def test_eleven_hundred_streams_wait_on_one_connection(picker, connection):
    streams = [connection.open() for _ in range(1100)]
    body = chat_body()
    for stream in streams:
        send_request(stream, body)
    for stream in streams:
        assert decided(stream)[0].destination
    assert picker.metric_sum("llm_d_epp_request_running") == 1100
    assert connection.goaway is None
    for stream in streams[:550]:
        answer_response(stream)
        stream.cancel()
    for stream in streams[550:]:
        stream.cancel()


def test_sixteen_streams_with_one_request_id_settle(picker, connection):
    streams = [connection.open() for _ in range(16)]
    for stream in streams:
        assert pick(stream, x_request_id="the-same")[0].destination
    for stream in streams:
        stream.cancel()


def test_a_slow_reader_holds_up_itself_only(picker):
    body = chat_body("x" * 1_000_000)
    with picker.connect(read_ahead=False, window=65_535) as slow, picker.connect() as quick:
        stream = slow.open()
        send_request(stream, body)
        for _ in range(20):
            other = quick.open()
            assert pick(other)[1] == chat_body()
            other.cancel()
        slow.pump(0.2)
        assert stream.raw <= 65_535
        got = []
        while not got or not got[-1].end_of_stream:
            slow.acknowledge()
            slow.pump(1)
            got += [m.read_answer(x) for x in stream.queue]
            stream.queue.clear()
        assert b"".join(a.streamed for a in got if a.streamed) == body
        stream.cancel()
    eventually(lambda: picker.running() == 0, what="counters back at zero")


def test_readers_that_never_read_bound_what_is_held_for_them(picker):
    body = chat_body("x" * 1_000_000)

    def rss():
        with open(f"/proc/{picker.program.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) // 1024

    before = rss()
    connections = [picker.connect(read_ahead=False, window=65_535) for _ in range(10)]
    try:
        for connection in connections:
            for _ in range(4):
                send_request(connection.open(), body)
        assert rss() - before < 200
        works(picker)
    finally:
        for connection in connections:
            connection.close()
    eventually(lambda: picker.running() == 0 and picker.metric_sum("penstock_body_bytes_buffered") == 0, what="all given back")


def test_streams_reset_before_any_answer_cost_their_connection_not_the_picker(start, engines, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("listeners: [{name: resets, address: '127.0.0.1:0', limits: {streamsPerConnection: 100}}]")
    picker = start.picker(engines.ports, "--settings", settings)
    with picker.connect() as connection:
        # As many streams a second as it likes, whatever the pace of this client: all in one write.
        for _ in range(10_000):
            number = connection.h2.get_next_available_stream_id()
            connection.h2.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":path", m.PROCESS), (":authority", "epp"),
                                                ("te", "trailers"), ("content-type", "application/grpc")])
            connection.h2.reset_stream(number, CANCEL)
        connection.flush()
        eventually(lambda: connection.goaway is not None or connection.closed or connection.pump(0.05), 10, "the abuse is noticed")
    works(picker)


# However slow the machine is.
@pytest.mark.timeout(600)
def test_a_hundred_thousand_exchanges_pass_over_one_connection_as_envoy_ends_them(picker, tmp_path):
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_bytes(b"\n".join(chat_body(f"prompt {i}") for i in range(64)) + b"\n")
    generator = ROOT / "build" / "release" / "bench" / "extproc_generator"
    done = subprocess.run([generator, "-p", str(picker.port), "-b", bodies, "-m", "100", "-w", "0", "-d", "580", "-n", "100000"],
                          capture_output=True, text=True, timeout=590, check=False)
    report = json.loads(done.stdout)
    assert report["requests"] >= 100_000
    assert (report["failed"], report["goaways"], report["reconnects"]) == (0, 0, 0), done.stderr
    eventually(lambda: picker.running() == 0, what="counters back at zero")


def test_four_thousand_streams_are_held_on_one_connection(picker, tmp_path):
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_bytes(chat_body() + b"\n")
    generator = ROOT / "build" / "release" / "bench" / "extproc_generator"
    process = subprocess.Popen([generator, "-p", str(picker.port), "-b", bodies, "-c", "1", "-m", "4000", "-H"], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "held 4000\n"
    assert picker.metric_sum("llm_d_epp_request_running") == 4000
    process.communicate("\n", timeout=30)
    assert process.returncode == 0
    eventually(lambda: picker.running() == 0, what="counters back at zero")


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


# --- health

def test_health_knows_check_list_and_watch(start, engines):
    picker = start.picker(engines.ports, "--health-checking", "--drain-timeout", "1s")
    with Connection(picker.health_port) as health, picker.connect() as beside:
        for service in ("", "liveness", "readiness", m.EXT_PROC_SERVICE, "inference-extension"):
            assert health.call(m.HEALTH + "Check", m.data(1, service))[0] == m.number(1, 1), service
        listed, status = health.call(m.HEALTH + "List")
        assert status == 0
        assert m.EXT_PROC_SERVICE.encode() in listed
        assert beside.call(m.HEALTH + "Check", m.data(1, m.EXT_PROC_SERVICE)) == (m.number(1, 1), 0)
        watch = health.open(m.HEALTH + "Watch")
        watch.send(m.data(1, m.EXT_PROC_SERVICE), end=True)
        assert watch.receive() == m.number(1, 1)
        picker.program.signal(15)
        assert watch.receive() == m.number(1, 2)
    assert picker.program.process.wait(10) == 0


def test_flags_without_effect_and_what_a_reload_does_not_take_are_named(start, engines, tmp_path):
    settings = tmp_path / "settings.yaml"

    def write(streams):
        settings.write_text(f"listeners: [{{name: limits, address: '127.0.0.1:0', limits: {{streams: {streams}}}}}]")

    write(100)
    picker = start.picker(engines.ports, "--settings", settings, "--refresh-prometheus-metrics-interval", "5s")
    assert [line for line in picker.program.log_lines() if line.get("flag") == "--refresh-prometheus-metrics-interval"]
    write(200)
    picker.program.signal(signal.SIGHUP)
    eventually(lambda: picker.program.log_lines("reloaded"), what="a reload")
    assert "limits" in [line.get("what") for line in picker.program.log_lines()]
    works(picker)


def test_flags_of_the_reference_that_change_what_a_stream_sees(start, engines):
    picker = start.picker(engines.ports, "--enable-grpc-stream-metrics", "--disable-endpoint-subset-filter",
                          "--grpc-max-send-msg-size", "1Ki", "--grpc-max-recv-msg-size", "100kB")
    nobody = {"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": ["10.9.9.9:1"]}}
    with picker.connect() as connection:
        stream = connection.open()
        assert pick(stream, metadata=nobody)[0].destination, "the filter is off"
        answer_response(stream)
        stream.cancel()
        stream = connection.open()
        send_request(stream, chat_body("x" * 2000))
        assert stream.wait_for_end() == RESOURCE_EXHAUSTED, "an answer is too large"
        stream = connection.open()
        send_request(stream, chat_body("x" * 101_000))
        assert stream.wait_for_end() == RESOURCE_EXHAUSTED, "a message is too large"
    eventually(lambda: picker.metric_sum("llm_d_epp_extproc_streams_total", code="ResourceExhausted") == 2, what="ends by code")
    eventually(lambda: picker.metric_sum("llm_d_epp_extproc_streams_inflight") == 0, what="no stream in flight")
    assert picker.metric_sum("llm_d_epp_extproc_stream_duration_seconds_count") == 3
    assert picker.metric_sum("penstock_extproc_streams_ended_total", reason="limit_message") == 2
    for page in ("decisions", "config", "plugins/state"):
        assert httpx.get(f"{picker.admin}/debug/{page}", timeout=5).status_code == 200


def tls_client(**versions):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    for name, version in versions.items():
        setattr(context, name, version)
    return context


def test_tls_versions_and_cipher_suites_are_those_of_the_flags(start, engines):
    def cipher(port, context):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as raw, context.wrap_socket(raw) as secured:
            return secured.cipher()[0]

    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    picker = start.picker(engines.ports, "--tls-cipher-suites", suite, tls=True)
    assert cipher(picker.port, tls_client(maximum_version=ssl.TLSVersion.TLSv1_2)) == "ECDHE-ECDSA-AES128-GCM-SHA256"
    assert cipher(picker.port, tls_client(minimum_version=ssl.TLSVersion.TLSv1_3)).startswith("TLS_")
    picker = start.picker(engines.ports, "--tls-min-version", "VersionTLS13", tls=True)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        cipher(picker.port, tls_client(maximum_version=ssl.TLSVersion.TLSv1_2))
    works(picker)


def test_metrics_may_be_for_clients_with_a_certificate(engines, tmp_path):
    make_certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    make_certificate(tmp_path / "client.crt", tmp_path / "client.key", name="scraper")
    port = free_port()
    program = Program(tmp_path / "picker.log", "epp", "--pool-name", "pool", "--model-server", engines.urls[0], "--bind-address", "127.0.0.1",
                      "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", port, "--tracing=false", "--drain-timeout", "0s",
                      "--metrics-cert-dir", tmp_path, "--metrics-client-ca-file", tmp_path / "client.crt")
    try:
        known, unknown = tls_client(), tls_client()
        for context in (known, unknown):
            context.set_alpn_protocols(["http/1.1"])
        known.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")

        def page(context):
            return httpx.get(f"https://127.0.0.1:{port}/metrics", verify=context, timeout=10)

        def answers():
            with contextlib.suppress(httpx.ConnectError):
                return page(known).status_code == 200

        eventually(answers, what="/metrics for who has a certificate")
        with pytest.raises(httpx.TransportError):
            page(unknown)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).raise_for_status()
    finally:
        program.stop()


def test_tls_and_plain_text_mixed_up_is_named_in_the_log_and_harms_nobody(start, engines):
    picker = start.picker(engines.ports, tls=True)
    with Connection(picker.port) as plain:
        peer = plain.socket.getsockname()
        stream = plain.open()
        assert stream.receive(10) is None and plain.closed
    line = eventually(lambda: bad_start(picker), what="a line in the log")
    assert line["reason"] == "the client speaks plain text, this port TLS" and line["level"] == "warn"
    assert line["listener"] == "ext-proc" and line["peer"] == f"127.0.0.1:{peer[1]}"
    works(picker)
    assert picker.is_serving()

    picker = start.picker(engines.ports)
    with pytest.raises((OSError, AssertionError)):
        Connection(picker.port, tls=True)
    line = eventually(lambda: bad_start(picker), what="a line in the log")
    assert line["reason"] == "the client speaks TLS, this port plain text"
    works(picker)
    assert picker.is_serving()


def bad_start(picker):
    lines = [json.loads(line) for line in picker.program.log_text().splitlines() if "a connection came to nothing" in line]
    assert len(lines) <= 1, "one line in ten seconds"
    return lines[0] if lines else None


def test_a_renewed_certificate_is_served_without_a_restart_and_open_streams_go_on(start, engines, tmp_path):
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    make_certificate(cert, key)
    picker = start.picker(engines.ports, "--cert-path", tmp_path, "--enable-cert-reload", tls=True)
    assert shows_certificate(picker.port, cert)
    with picker.connect() as connection:
        stream = connection.open()
        assert pick(stream)[0].destination
        make_certificate(cert, key)
        eventually(lambda: shows_certificate(picker.port, cert), 20, "new certificate served")
        answer_response(stream)
        stream.cancel()
    works(picker)
    # What is no certificate changes nothing.
    good = tmp_path / "good.crt"
    good.write_text(cert.read_text())
    cert.write_text("no certificate")
    eventually(lambda: any(str(cert) in json.dumps(line) and line["level"] in ("error", "warn")
                           for line in picker.program.log_lines()), 20, "complaint in the log")
    assert shows_certificate(picker.port, good)
    works(picker)
