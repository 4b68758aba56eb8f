"""What tests that speak to `penstock epp` directly share: the messages of an exchange, and what they expect back."""
import json

import extproc_messages as m
from extproc_messages import FULL_DUPLEX_STREAMED
from harness import eventually

DUPLEX = (FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED)
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 8, 12


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


def leaves_nothing(picker):
    eventually(lambda: picker.running() == 0, what="counters back at zero")
