"""Clients through a real Envoy that asks `penstock epp` where each request goes."""
import concurrent.futures
import http.server
import json
import pathlib
import re
import signal
import socket
import subprocess
import threading

import httpx
import openai
import pytest

import extproc_messages as messages
from data_plane import SHIPPED, envoy_binary
from grpc_client import CANCEL, Connection
from harness import PENSTOCK, ROOT, eventually, free_port, free_ports

CHAT = "/v1/chat/completions"
MODEL = "sim-model"
SMALL_BUFFERS = ("per_connection_buffer_limit_bytes: 1048576", "per_connection_buffer_limit_bytes: 32768")
LARGE_BUFFERS = ("per_connection_buffer_limit_bytes: 1048576", "per_connection_buffer_limit_bytes: 16777216")


def chat(text="hello", **more):
    return {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture(scope="module")
def bed(start_for_module):
    """Two engines, a picker, and an Envoy that fails closed."""
    engines = start_for_module.engines(2, adapter=["alpha=adapters/alpha", "beta=adapters/beta"], record_requests=8,
                                       max_model_len=8_000_000, num_blocks=1_000_000, prefill_tokens_per_second=0, decode_ms=1)
    picker = start_for_module.picker(engines.ports, "--emit-endpoint-scores")
    envoy = start_for_module.envoy("fail-close.yaml", picker.port, picker.health_port)
    envoy.engines, envoy.picker = engines, picker
    return envoy


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def client(bed, request):
    two = request.param == "HTTP/2"
    with httpx.Client(base_url=bed.url, http1=not two, http2=two, timeout=20) as client:
        yield client


def received(engines, request_id):
    """The request as an engine got it: (headers, body)."""
    for url in engines.urls:
        for one in httpx.get(f"{url}/sim/requests", timeout=20).json():
            headers = dict(one["headers"])
            if headers.get("x-request-id") == request_id:
                return headers, one["body"]
    raise AssertionError(f"no engine got {request_id}")


def settled(picker):
    eventually(lambda: picker.running() == 0, what="counters back at zero")


def ended(picker, reason):
    return picker.metric_sum("penstock_extproc_streams_ended_total", reason=reason)


def test_a_chat_answer_comes_whole(bed, client):
    answer = client.post(CHAT, json=chat())
    assert answer.status_code == 200, answer.text
    assert answer.http_version == ("HTTP/2" if client._transport._pool._http2 else "HTTP/1.1")
    assert answer.json()["usage"]["completion_tokens"] == 4
    settled(bed.picker)


def test_an_event_stream_passes_piece_by_piece_and_whole(bed, client):
    events = []
    with client.stream("POST", CHAT, json=chat(stream=True, max_tokens=1500, ignore_eos=True)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                if not events:
                    assert sum(bed.engines.state(i)["in_flight"] for i in range(2)) == 1, "the answer was held back"
                events.append(line[6:])
    assert events[-1] == "[DONE]"
    assert len([e for e in events[:-1] if json.loads(e)["choices"][0]["delta"].get("content")]) == 1500
    settled(bed.picker)


@pytest.mark.parametrize("size", [220_000, 5_000_000])
def test_large_bodies_reach_the_engine_byte_for_byte(bed, client, size):
    payload = json.dumps(chat("water " * (size // 6))).encode()
    request_id = f"large-{size}-{client._transport._pool._http2}"
    answer = client.post(CHAT, content=payload, headers={"content-type": "application/json", "x-request-id": request_id})
    assert answer.status_code == 200, answer.text
    assert received(bed.engines, request_id)[1].encode() == payload
    settled(bed.picker)


@pytest.mark.parametrize("buffers", [SMALL_BUFFERS, LARGE_BUFFERS], ids=["32 KiB", "16 MiB"])
@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_envoys_buffer_limits_change_nothing_for_the_client(bed, start, buffers, http2):
    envoy = start.envoy("fail-close.yaml", bed.picker.port, bed.picker.health_port, changes=[buffers])
    with httpx.Client(base_url=envoy.url, http1=not http2, http2=http2, timeout=30) as client:
        for size in (32_767, 32_768, 32_769, 220_000, 1_048_577, 5_000_000):
            payload = json.dumps(chat("x" * size)).encode()
            answer = client.post(CHAT, content=payload, headers={"content-type": "application/json", "x-request-id": f"b{size}"})
            assert answer.status_code == 200, (size, answer.text)
            assert received(bed.engines, f"b{size}")[1].encode() == payload


def test_a_chunked_upload_in_tiny_pieces_arrives(bed):
    payload = json.dumps(chat("tiny")).encode()
    answer = httpx.post(bed.url + CHAT, content=iter(payload[i:i + 3] for i in range(0, len(payload), 3)),
                        headers={"content-type": "application/json", "x-request-id": "tiny"}, timeout=20)
    assert answer.status_code == 200
    assert received(bed.engines, "tiny")[1].encode() == payload


def test_request_trailers_end_a_body_that_never_had_end_of_stream(bed):
    with Connection(bed.port) as connection:
        stream = connection.request(CHAT, [("content-type", "application/json"), ("x-request-id", "trailed")])
        payload = json.dumps(chat("with trailers")).encode()
        stream.send_bytes(payload[:20])
        stream.send_bytes(payload[20:])
        stream.send_trailers([("x-checksum", "1")])
        stream.wait_for_end(10)
        assert stream.headers[":status"] == "200"
        assert json.loads(stream.buffer)["choices"]
    assert received(bed.engines, "trailed")[1].encode() == payload
    settled(bed.picker)


def test_requests_without_a_body_are_picked_too(bed, client):
    answer = client.get("/v1/models")
    assert answer.status_code == 200
    assert MODEL in [model["id"] for model in answer.json()["data"]]


def test_a_clients_own_destination_header_leads_nowhere(bed, client):
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.settimeout(0.1)
        address = f"127.0.0.1:{trap.getsockname()[1]}"
        answer = client.post(CHAT, json=chat(), headers={messages.DESTINATION: address})
        assert answer.status_code == 200
        with pytest.raises(TimeoutError):
            trap.accept()


@pytest.mark.parametrize("data, status", [(b"{", 400), (b"[]", 400), (b'{"model":"sim-model"}', 400),
                                          (b'{"messages":[{"role":"user","content":"x"}]}', 400)])
def test_a_bad_body_is_the_clients_400(bed, client, data, status):
    before = sum(bed.engines.requests())
    answer = client.post(CHAT, content=data, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.text.startswith("inference error: BadRequest - ")
    assert sum(bed.engines.requests()) == before
    settled(bed.picker)


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("file", ["fail-close.yaml", "fail-open.yaml"])
def test_headers_beyond_the_pickers_limit_are_its_431(bed, start, file, http2):
    envoy = start.envoy(file, bed.picker.port, bed.picker.health_port, bed.engines.ports)
    with httpx.Client(base_url=envoy.url, http1=not http2, http2=http2, timeout=20) as client:
        for size, status in ((62_000, 200), (66_000, 431), (90_000, 431)):
            answer = client.post(CHAT, json=chat(), headers={f"x-large-{i}": "h" * (size // 10) for i in range(10)})
            assert answer.status_code == status, size
    settled(bed.picker)


def test_a_clusters_name_that_is_no_host_is_taken_as_authority(bed, start):
    """As a control plane names clusters, and Envoy then calls the picker and asks for its health."""
    name = "outbound|9002||picker.inference.svc.cluster.local"
    envoy = start.envoy("fail-close.yaml", bed.picker.port, bed.picker.health_port, changes=[
        ("envoy_grpc: { cluster_name: picker }", f'envoy_grpc: {{ cluster_name: "{name}" }}'),
        ("- name: picker\n", f'- name: "{name}"\n')])
    eventually(lambda: envoy.post(CHAT, chat()).status_code == 200, what="a request through the picker")


def test_envoy_can_tell_the_client_the_id_under_which_the_decision_is_found(bed, start):
    own = "generate_request_id: true"
    envoy = start.envoy("fail-close.yaml", bed.picker.port, bed.picker.health_port,
                        changes=[(own, f"{own}\n          always_set_request_id_in_response: true")])
    served, refused = envoy.post(CHAT, chat()), envoy.post(CHAT, {"model": MODEL})
    assert (served.status_code, refused.status_code) == (200, 400)
    assert len(refused.headers["x-request-id"]) == 36
    decision = httpx.get(f"{bed.picker.admin}/debug/decisions/{served.headers['x-request-id']}", timeout=5).json()
    assert decision["outcome"]["status"] == 200


def test_an_engines_429_reaches_the_client_with_its_retry_after(bed, client):
    answer = client.post(CHAT, json=chat(), headers={"x-sim-fault": '{"status": 429, "retry_after": "7"}'})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert "error" in answer.json()
    settled(bed.picker)


def test_a_request_no_endpoint_may_take_is_429(bed, start):
    picker = start.picker(bed.engines.ports, plugins="- {type: label-selector-filter, name: none, parameters: {matchLabels: {a: b}}}",
                          profile="  - pluginRef: none")
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    answer = envoy.post(CHAT, chat())
    assert answer.status_code == 429
    assert answer.text.startswith("inference error: ResourceExhausted - ")
    with pytest.raises(openai.RateLimitError):
        openai.OpenAI(base_url=envoy.url + "/v1", api_key="x", max_retries=0).chat.completions.create(**chat())
    settled(picker)


def test_no_endpoint_is_503_with_its_reason_and_the_next_one_is_used_at_once(bed, start):
    picker = start.picker(bed.engines.ports)
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    picker.set_endpoints([])
    eventually(lambda: picker.metric_sum("llm_d_epp_ready_endpoints") == 0, what="endpoints gone")
    answer = envoy.post(CHAT, chat())
    assert answer.status_code == 503
    assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
    assert answer.text == ("inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request")
    assert envoy.stats()["immediate_responses_sent"] >= 1
    assert picker.metric_sum("penstock_decision_fallback_total", state="no_endpoint") == 1
    assert httpx.get(f"{picker.admin}/debug/decisions", timeout=5).json()[0]["fallback"] == "no_endpoint"
    picker.set_endpoints(bed.engines.ports)
    eventually(lambda: envoy.post(CHAT, chat()).status_code == 200, what="endpoints back")
    settled(picker)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "SSE"])
def test_a_rewritten_model_reaches_the_engine_and_its_own_name_comes_back(bed, client, stream):
    request_id = f"rewritten-{stream}-{client._transport._pool._http2}"
    answer = client.post(CHAT, json=chat(model="public-name", stream=stream),
                         headers={"x-llm-d-model-name-rewrite": MODEL, "x-request-id": request_id})
    assert answer.status_code == 200, answer.text
    assert json.loads(received(bed.engines, request_id)[1])["model"] == MODEL
    assert '"model":"public-name"' in answer.text.replace(" ", "")
    assert MODEL not in answer.text
    settled(bed.picker)


def test_lora_adapters_are_routed_and_answer_under_their_names(bed, client):
    for adapter in ("alpha", "beta"):
        answer = client.post(CHAT, json=chat(model=adapter))
        assert answer.status_code == 200
        assert answer.json()["model"] == adapter


def test_the_subset_and_the_scores_travel_in_envoys_metadata(bed, start, tmp_path):
    wanted = f"127.0.0.1:{bed.engines.ports[1]}"
    log = tmp_path / "access.log"
    before = """          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: LOG
              log_format: { json_format: { picked: "%DYNAMIC_METADATA(envoy.lb)%" } }
          http_filters:
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata:
              - metadata_namespace: envoy.lb.subset_hint
                value: { x-gateway-destination-endpoint-subset: ["WANTED"] }
""".replace("LOG", str(log)).replace("WANTED", wanted)
    listed = """failure_mode_allow: false
              metadata_options:
                forwarding_namespaces: { untyped: [envoy.lb.subset_hint] }
                receiving_namespaces: { untyped: [envoy.lb] }
"""
    envoy = start.envoy("fail-close.yaml", bed.picker.port, bed.picker.health_port,
                        changes=[("          http_filters:\n", before), ("failure_mode_allow: false\n", listed)])
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    for _ in range(6):
        assert envoy.post(CHAT, chat()).status_code == 200
    envoy.program.stop()
    picked = [json.loads(line)["picked"] for line in log.read_text().splitlines()]
    assert [one[messages.DESTINATION] for one in picked] == [wanted] * 6
    assert [list(one[f"{messages.DESTINATION}-scores"]) for one in picked] == [[wanted]] * 6


def test_a_prompt_goes_where_its_prefix_is(bed):
    before = bed.engines.requests()
    text = "the same long beginning " * 200
    for i in range(10):
        assert bed.post(CHAT, chat(text + str(i))).status_code == 200
    assert sorted(b - a for a, b in zip(before, bed.engines.requests())) == [0, 10]


def test_the_openai_client_streams_and_reads_errors(bed):
    client = openai.OpenAI(base_url=bed.url + "/v1", api_key="x", max_retries=0)
    assert client.chat.completions.create(**chat()).choices[0].message.content
    stream = client.chat.completions.create(**chat(stream=True, max_tokens=20, stream_options={"include_usage": True}))
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens == 20
    assert client.completions.create(model=MODEL, prompt="hello", max_tokens=3).usage.completion_tokens == 3
    assert client.embeddings.create(model=MODEL, input="hello").data
    assert {m.id for m in client.models.list()} >= {MODEL, "alpha", "beta"}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[])
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**chat(model="nobody"))
    settled(bed.picker)


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_a_client_that_leaves_stops_the_engine_and_is_counted_once(bed, version):
    gone = ended(bed.picker, "client_disconnect")
    body = chat(stream=True, max_tokens=100_000, ignore_eos=True)
    if version == "HTTP/1.1":
        with httpx.stream("POST", bed.url + CHAT, json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert bed.picker.metric_sum("llm_d_epp_request_running") == 1
    else:
        with Connection(bed.port) as connection:
            stream = connection.request(CHAT, [("content-type", "application/json")])
            stream.send_bytes(json.dumps(body).encode(), end=True)
            eventually(lambda: connection.pump(0.05) or stream.buffer, what="first bytes")
            assert bed.picker.metric_sum("llm_d_epp_request_running") == 1
            stream.cancel(CANCEL)
    eventually(lambda: all(bed.engines.state(i)["in_flight"] == 0 for i in range(2)), 5, "engine stopped")
    settled(bed.picker)
    assert ended(bed.picker, "client_disconnect") == gone + 1


def test_a_client_that_leaves_before_its_body_is_complete_leaves_nothing(bed):
    s = socket.create_connection(("127.0.0.1", bed.port), timeout=10)
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n" + b'{"model":"sim-model",')
    eventually(lambda: bed.stats()["streams_started"] > bed.stats()["streams_closed"], what="the picker was asked")
    s.close()
    eventually(lambda: bed.stats()["streams_started"] == bed.stats()["streams_closed"], what="its stream is closed")
    settled(bed.picker)


def test_envoys_own_error_is_not_booked_on_the_engine(start):
    picker = start.picker([free_port()], "--outlier-detection", ready=False)
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    for _ in range(5):
        answer = envoy.post(CHAT, chat())
        assert answer.status_code == 503
        assert answer.text.startswith("upstream connect error")
    settled(picker)
    assert picker.metric_sum("penstock_extproc_local_replies_total", code="503") == 5
    assert ended(picker, "envoy_reply") == 5
    assert picker.metric_sum("penstock_endpoint_ejections_total") == 0


def test_envoys_own_error_without_a_body_is_not_booked_on_the_engine(bed, start):
    # A route that matches no more once the picker has answered.
    unpicked = '{ prefix: "/", headers: [{ name: x-gateway-destination-endpoint, present_match: true, invert_match: true }] }'
    picker = start.picker(bed.engines.ports)
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port, changes=[('{ prefix: "/" }', unpicked)])
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    assert envoy.post(CHAT, chat()).status_code == 404
    settled(picker)
    assert picker.metric_sum("penstock_extproc_local_replies_total", code="404") == 1
    assert picker.metric_sum("llm_d_epp_request_error_total", error_code="404") == 0


def test_envoys_own_error_to_a_grpc_client_is_not_booked_on_the_engine(start):
    picker = start.picker([free_port()], "--outlier-detection", ready=False)
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    for _ in range(3):
        with Connection(envoy.port) as connection:
            call = connection.open("/vllm.grpc.engine.VllmEngine/Abort", end=True)
            assert call.wait_for_end(20) == 14
            assert call.headers[":status"] == "200"
    settled(picker)
    assert picker.metric_sum("penstock_extproc_local_replies_total") == 3
    assert ended(picker, "envoy_reply") == 3
    assert picker.metric_sum("penstock_endpoint_ejections_total") == 0


# What Envoy 1.40 asks for in each mode is an answer of its own kind; what it doesn't expect it counts as spurious.
MODES = {
    "FULL_DUPLEX_STREAMED": [("request_trailer_mode: SKIP", "request_trailer_mode: SEND")],
    "STREAMED": [],
    "STREAMED, not waiting": [("stat_prefix: picker", "stat_prefix: picker\n              send_body_without_waiting_for_header_response: true")],
    "BUFFERED": [],
    "BUFFERED_PARTIAL": [("per_connection_buffer_limit_bytes: 33554432", "per_connection_buffer_limit_bytes: 65536")],
    "NONE": [],
}


@pytest.mark.parametrize("mode", MODES)
def test_every_request_body_mode_of_envoy_gets_the_answers_it_expects(bed, start, mode):
    picker = start.picker(bed.engines.ports)
    changes = [("failure_mode_allow: true", "failure_mode_allow: false"), *MODES[mode],
               ("request_body_mode: BUFFERED", f"request_body_mode: {mode.split(',')[0]}")]
    envoy = start.envoy("fail-open.yaml", picker.port, picker.health_port, bed.engines.ports, changes=changes)
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    sizes = (10, 220_000, 3_000_000)
    for size in sizes:
        payload = json.dumps(chat("x" * size)).encode()
        request_id = f"mode-{mode}-{size}".replace(", ", "-").replace(" ", "-")
        answer = httpx.post(envoy.url + CHAT, content=payload, timeout=20,
                            headers={"content-type": "application/json", "x-request-id": request_id})
        assert answer.status_code == 200, (size, answer.text)
        assert received(bed.engines, request_id)[1].encode() == payload
        assert answer.json()["usage"]["completion_tokens"] == 4
    assert httpx.get(envoy.url + "/v1/models", timeout=20).status_code == 200
    settled(picker)
    stats = envoy.stats()
    assert {name: stats[name] for name in ("streams_failed", "spurious_msgs_received", "failure_mode_allowed")} == {
        "streams_failed": 0, "spurious_msgs_received": 0, "failure_mode_allowed": 0}
    assert picker.metric_sum("penstock_extproc_streams_total", mode=mode.split(",")[0]) == len(sizes) + 1
    cut = picker.metric_sum("penstock_extproc_unparsed_bodies_total", why="partial")
    # 512 KiB is as much of a streamed body as the picker holds back; of a partial one it sees what Envoy's buffer takes.
    assert cut == {"STREAMED, not waiting": 1, "BUFFERED_PARTIAL": 2}.get(mode, 0)
    # Where the picker saw the body, it can change it.
    renamed = envoy.post(CHAT, chat(model="public"), headers={"x-llm-d-model-name-rewrite": MODEL})
    sees = mode not in ("NONE", "STREAMED")
    assert (renamed.status_code, renamed.json().get("model")) == (200, "public") if sees else renamed.status_code == 404


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "NONE"])
def test_every_response_body_mode_of_envoy_gets_the_answers_it_expects(bed, start, mode):
    picker = start.picker(bed.engines.ports)
    changes = [("failure_mode_allow: true", "failure_mode_allow: false"), ("response_body_mode: STREAMED", f"response_body_mode: {mode}")]
    if mode == "FULL_DUPLEX_STREAMED":
        changes.append(("response_trailer_mode: SKIP", "response_trailer_mode: SEND"))
    envoy = start.envoy("fail-open.yaml", picker.port, picker.health_port, bed.engines.ports, changes=changes)
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    for _ in range(2):
        assert envoy.post(CHAT, chat()).json()["usage"]["completion_tokens"] == 4
        answer = envoy.post(CHAT, chat(stream=True, max_tokens=50, ignore_eos=True))
        assert answer.text.count('"content"') >= 50
        assert answer.text.endswith("data: [DONE]\n\n")
    settled(picker)
    stats = envoy.stats()
    assert {name: stats[name] for name in ("streams_failed", "spurious_msgs_received", "failure_mode_allowed")} == {
        "streams_failed": 0, "spurious_msgs_received": 0, "failure_mode_allowed": 0}
    eventually(lambda: picker.metric_sum("penstock_extproc_streams_ended_total") == 4, what="the streams' ends")
    assert ended(picker, "ok") == 4


def test_an_engine_that_dies_in_mid_stream_cuts_its_client_only(start):
    first, second = (start.engines(1, decode_ms=5) for _ in range(2))
    picker = start.picker([*first.ports, *second.ports])
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    with pytest.raises(httpx.HTTPError):
        with httpx.stream("POST", envoy.url + CHAT, json=chat(stream=True, max_tokens=10_000, ignore_eos=True), timeout=20) as answer:
            lines = answer.iter_lines()
            next(lines)
            serving, other = (first, second) if first.state(0)["in_flight"] else (second, first)
            serving.program.process.kill()
            for _ in lines:
                pass
    settled(picker)
    # The dead one stays in the pool, as with the reference, until discovery takes it out: not every request is served.
    eventually(lambda: envoy.post(CHAT, chat()).status_code == 200, what="the other engine serves")
    assert other.state(0)["requests"] >= 1


def test_pieces_of_up_to_four_mebibytes_are_taken_by_envoy(bed, start):
    picker = start.picker(bed.engines.ports, "--body-piece-bytes", "4194304")
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    payload = json.dumps(chat("water " * 900_000)).encode()
    answer = httpx.post(envoy.url + CHAT, content=payload, timeout=20,
                        headers={"content-type": "application/json", "x-request-id": "pieces"})
    assert answer.status_code == 200
    assert received(bed.engines, "pieces")[1].encode() == payload


@pytest.mark.parametrize("phase", ["auto", "never"])
@pytest.mark.parametrize("file", ["fail-close.yaml", "fail-open.yaml"])
def test_leaving_the_response_phase_loses_no_byte(bed, start, phase, file):
    picker = start.picker(bed.engines.ports, "--response-phase", phase, "--response-metrics=false")
    envoy = start.envoy(file, picker.port, picker.health_port, bed.engines.ports)
    for size in (10, 220_000):
        payload = json.dumps(chat("x" * size)).encode()
        answer = httpx.post(envoy.url + CHAT, content=payload, timeout=20,
                            headers={"content-type": "application/json", "x-request-id": f"thrift-{phase}-{file}-{size}"})
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert received(bed.engines, f"thrift-{phase}-{file}-{size}")[1].encode() == payload
    answer = envoy.post(CHAT, chat(stream=True, max_tokens=50))
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.text.count('"content"') >= 50
    assert ended(picker, "left_response_phase") == 3
    assert envoy.stats()["streams_failed"] == 0
    settled(picker)


def test_never_looking_at_answers_is_warned_of_where_plugins_work_on_them(bed, start):
    affinity = "- {type: session-affinity-scorer}\n- {type: session-affinity-filter, parameters: {strategy: session_id}}"
    phases = {phase: start.picker(bed.engines.ports, "--allow-experimental-plugins", "--response-phase", phase, plugins=affinity)
              for phase in ("never", "always")}
    warned = {phase: [line["plugin"] for line in picker.program.log_lines("--response-phase never: this plugin works on answers and sees none")]
              for phase, picker in phases.items()}
    assert warned == {"never": ["session-affinity-scorer/session-affinity-scorer"], "always": []}


class TrailerEngine:
    """An engine over HTTP/1.1 that ends every chat with trailers."""

    def __init__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                page = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
                self.send_response(200)
                self.send_header("content-type", "text/plain")
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def take(self):
                if "chunked" not in self.headers.get("transfer-encoding", ""):
                    return self.rfile.read(int(self.headers["content-length"]))
                whole = b""
                while size := int(self.rfile.readline(), 16):
                    whole += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return whole

            def do_POST(self):
                stream = json.loads(self.take()).get("stream")
                answer = {"id": "x", "model": MODEL, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
                data = json.dumps(answer).encode()
                pieces = [b"data: " + data + b"\n\n", b"data: [DONE]\n\n"] if stream else [data[:20], data[20:]]
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if stream else "application/json")
                self.send_header("transfer-encoding", "chunked")
                self.send_header("trailer", "x-checksum")
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\nx-checksum: 1\r\n\r\n")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


TRAILERS = ("http_protocol_options: {} }", "http_protocol_options: { enable_trailers: true } }")


def test_an_answers_trailers_reach_the_client_and_end_it(start):
    engine = TrailerEngine()
    try:
        picker = start.picker([engine.port], "--outlier-detection")
        envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port, changes=[TRAILERS])
        eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
        for number, stream in enumerate((False, True)):
            with Connection(envoy.port) as connection:
                asked = connection.request(CHAT, [("content-type", "application/json"), ("te", "trailers")])
                asked.send_bytes(json.dumps(chat(stream=stream)).encode(), end=True)
                asked.wait_for_end(10)
                assert asked.headers[":status"] == "200"
                assert asked.trailers == {"x-checksum": "1"}
                if stream:
                    assert asked.buffer.endswith(b"data: [DONE]\n\n")
                else:
                    assert json.loads(asked.buffer)["model"] == MODEL
            settled(picker)
            eventually(lambda: ended(picker, "ok") == number + 1, what="the request has ended well")
        assert picker.metric_sum("llm_d_epp_request_output_tokens_sum") == 6
        assert picker.metric_sum("penstock_extproc_streams_ended_total") == 2
        assert picker.metric_sum("penstock_extproc_local_replies_total") == 0
        assert picker.metric_sum("penstock_endpoint_ejections_total") == 0
        assert envoy.stats()["streams_failed"] == 0
    finally:
        engine.stop()


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_envoys_408_for_a_request_that_never_ends_is_no_engines_fault(bed, start, http2):
    picker = start.picker(bed.engines.ports, "--outlier-detection")
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port, changes=[("request_timeout: 60s", "request_timeout: 2s")])
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    before = sum(bed.engines.requests())
    started = b'{"model":"sim-model",'
    for number in range(3):
        if http2:
            with Connection(envoy.port) as connection:
                asked = connection.request(CHAT, [("content-type", "application/json")])
                asked.send_bytes(started)
                eventually(lambda: connection.pump(0.05) or asked.headers, 20, "an answer")
                assert asked.headers[":status"] == "408"
        else:
            with socket.create_connection(("127.0.0.1", envoy.port), timeout=20) as s:
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n" + started)
                assert s.recv(12) == b"HTTP/1.1 408"
        eventually(lambda: ended(picker, "envoy_reply") == number + 1, what="the picker has learned of it")
        settled(picker)
    assert sum(bed.engines.requests()) == before
    assert picker.metric_sum("penstock_endpoint_ejections_total") == 0
    assert picker.metric_sum("penstock_extproc_streams_ended_total") == 3
    # Each engine is as eligible as before.
    eventually(lambda: envoy.post(CHAT, chat()).status_code == 200, what="the next request is served")
    settled(picker)


def waits_by_thread(pid):
    out = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                out[task.name] = int(line.split()[1])
    return out


def test_two_workers_of_envoy_are_served_by_two_loops(bed, start):
    picker = start.picker(bed.engines.ports, "--loops", "2", "--refresh-metrics-interval", "5s")
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port, workers=2)
    before = waits_by_thread(picker.program.process.pid)

    def many(_):  # a connection each, so that both workers have some
        with httpx.Client(base_url=envoy.url, timeout=20) as client:
            return {client.post(CHAT, json=chat()).status_code for _ in range(20)}

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert set().union(*pool.map(many, range(32))) == {200}
    after = waits_by_thread(picker.program.process.pid)
    busy = [thread for thread in after if after[thread] - before.get(thread, 0) > 60]
    assert len(busy) >= 2, "one loop did all the work"
    settled(picker)


def test_tls_with_a_certificate_of_its_own_and_envoys_health_check(bed, start):
    picker = start.picker(bed.engines.ports, "--health-checking", tls=True)
    shipped = (SHIPPED / "fail-close.yaml").read_text()
    plain = shipped[shipped.index("  - name: picker\n    type"):]
    tls = (SHIPPED / "picker-tls.yaml").read_text().replace("port_value: 9002 ", f"port_value: {picker.port} ")
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port, changes=[(plain, tls)])
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    assert envoy.post(CHAT, chat()).status_code == 200
    with httpx.stream("POST", envoy.url + CHAT, json=chat(stream=True, max_tokens=30), timeout=20) as answer:
        assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
    settled(picker)


def test_a_picker_that_drains_says_so_and_serves_what_still_comes(bed, start):
    picker = start.picker(bed.engines.ports, "--drain-timeout", "60s")
    # An Envoy that doesn't ask again soon once it was told SERVING.
    seldom = [("interval: 2s", "interval: 600s"), ("- timeout: 1s", "- timeout: 5s\n      unhealthy_interval: 1s")]
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port, changes=seldom)
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    process = picker.program.process
    picker.program.signal(signal.SIGTERM)
    eventually(lambda: not picker.is_serving(), what="NOT_SERVING while it drains")
    assert envoy.post(CHAT, chat()).status_code == 200
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    assert envoy.post(CHAT, chat()).status_code == 200, "it serves on although nothing came"
    picker.program.signal(signal.SIGTERM)
    assert process.wait(20) == 0, "a second signal ends it"


def test_the_ten_minutes_of_the_documentation_work_as_written(tmp_path):
    text = (ROOT / "docs" / "envoy.md").read_text()
    chapter = text[text.index("## Ten minutes"):text.index("**An Envoy that you have.**")]
    engines, picker, envoy, ask = re.findall(r"```\n(.*?)```", chapter, re.S)[1:]
    first = free_ports(2)
    ports = {"8001": first, "8002": first + 1, "8080": free_port(), "9901": free_port(), "9002": free_port(), "9003": free_port(),
             "9090": free_port()}

    def moved(part):
        return re.sub(r"\b(8001|8002|8080|9901|9002|9003|9090)\b", lambda match: str(ports[match.group()]), part)

    shipped = tmp_path / "deploy" / "envoy"
    shipped.mkdir(parents=True)
    (shipped / "fail-close.yaml").write_text(moved((SHIPPED / "fail-close.yaml").read_text()))
    script = f"""
        trap 'kill -KILL $(jobs -p); wait' EXIT
        penstock() {{ exec {PENSTOCK} "$@"; }}
        envoy() {{ exec {envoy_binary()} "$@" --disable-hot-restart -l error; }}
        there() {{ until curl -sf -o /dev/null localhost:$1; do sleep 0.05; done; }}
        {moved(engines)}
        there {ports["8002"]}/health
        {moved(picker).replace("epp ", f"epp --grpc-port {ports['9002']} --grpc-health-port {ports['9003']} --metrics-port {ports['9090']} ")}
        there {ports["9090"]}/readyz
        {moved(envoy)}
        there {ports["9901"]}/ready
        {moved(ask)}"""
    # Each command in the background is a shell function: its own process by exec.
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert '"chat.completion"' in done.stdout, done
    assert re.search(r"^llm_d_epp_request_total\{.*\} 1$", done.stdout, re.M), done.stdout
    assert re.search(r"ext_proc\.picker\.streams_started: 1$", done.stdout, re.M), done.stdout
