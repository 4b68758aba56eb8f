"""`penstock epp` spoken to directly: many streams, slow readers, abuse of the connection."""
import json
import subprocess

import pytest

import extproc_messages as m
from grpc_client import CANCEL
from harness import ROOT, eventually
from picker_streams import answer_response, chat_body, decided, leaves_nothing, pick, send_request, works


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
    leaves_nothing(picker)


def test_readers_that_never_read_bound_what_is_held_for_them(picker):
    body = chat_body("x" * 1_000_000)
    connections = [picker.connect(read_ahead=False, window=65_535) for _ in range(10)]
    try:
        for connection in connections:
            for _ in range(4):
                send_request(connection.open(), body)
        eventually(lambda: picker.metric_sum("llm_d_epp_request_running") == 40, what="all are decided")
        assert picker.metric_sum("penstock_body_bytes_buffered") <= 40 * len(body), "each body is held once"
        assert picker.metric_sum("penstock_http2_queued_bytes") <= 40 * 65_536, "of its answer one piece"
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
    leaves_nothing(picker)


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
    leaves_nothing(picker)
