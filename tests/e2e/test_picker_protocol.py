"""`penstock epp` spoken to directly: orders and framing that no data plane should produce. Every stream gets a defined end."""
import gzip
import random
import struct

import pytest

import extproc_messages as m
from picker_streams import (DUPLEX, RESOURCE_EXHAUSTED, UNIMPLEMENTED, chat_body, decided, pick, request_headers,
                            response_headers, send_request, works)

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
