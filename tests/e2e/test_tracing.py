"""Traces of `penstock serve` and `epp`: what arrives at a collector, and what goes on to the engine."""
import http.server
import json
import secrets
import ssl
import threading

import pytest

from harness import eventually, make_certificate
from otlp_collector import Collector
from picker_streams import answer_response, pick

CHAT = "/v1/chat/completions"


def body(**more):
    return {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}], **more}


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.stop()


class HeaderEngine:
    """An engine that answers every chat alike and keeps the headers it was sent."""

    def __init__(self):
        engine = self
        self.seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, data, kind="application/json"):
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.answer(b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n",
                            "text/plain")

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                engine.seen.append(dict(self.headers.items()))
                self.answer(json.dumps({"id": "x", "object": "chat.completion", "model": "sim-model", "choices": [],
                                        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}).encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def engine():
    engine = HeaderEngine()
    yield engine
    engine.stop()


def settings(tmp_path, engine, collector, **tracing):
    document = {
        "pools": [{"name": "default", "discovery": {"static": [engine.url]}}],
        "telemetry": {"tracing": {"exporter": "otlp", "protocol": "http/protobuf", "endpoint": collector.url, **tracing}},
    }
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps(document))
    return ["--settings", path]


FAST = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


def test_a_trace_arrives_under_the_callers_span_with_the_decision_in_it(start, tmp_path, engine, collector):
    gateway = start.gateway(*settings(tmp_path, engine, collector),
                            env={**FAST, "OTEL_SERVICE_NAME": "edge", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=p-1"})
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    answer = gateway.post(CHAT, body(), headers={"traceparent": f"00-{trace_id}-{parent_id}-01", "tracestate": "vendor=x",
                                                 "x-request-id": "traced-1"})
    assert answer.status_code == 200
    spans = {span["name"]: span for span in eventually(lambda: collector.trace(trace_id), what="the trace")}
    root = spans["gateway.request"]
    assert root["parent_id"] == parent_id
    assert root["tracestate"] == "vendor=x"
    assert root["kind"] == 2
    assert root["scope"] == "llm-d-router/pkg/epp/handlers"
    assert root["resource"]["service.name"] == "edge"
    assert root["resource"]["k8s.pod.name"] == "p-1"
    assert not root["failed"]
    assert root["attributes"]["http.response.status_code"] == 200
    assert root["attributes"]["gen_ai.request.id"] == "traced-1"
    assert root["attributes"]["gen_ai.usage.output_tokens"] == 3
    orchestration = spans["gateway.request_orchestration"]
    assert orchestration["parent_id"] == root["span_id"]
    assert orchestration["attributes"] == {"target_model": "sim-model", "request_prio": 0}
    profile = spans["run_scheduler_profile"]
    assert profile["parent_id"] == orchestration["span_id"]
    assert profile["attributes"]["llm_d.epp.scheduling.profile.name"] == "default"
    for name in ("filter_endpoints", "llm_d.epp.scoring", "pick_endpoints"):
        assert spans[name]["parent_id"] == profile["span_id"], name
        assert spans[name]["scope"] == "llm-d-router/pkg/epp/scheduling"
        assert spans[name]["attributes"]["gen_ai.request.model"] == "sim-model"
    scorer = spans["llm_d.epp.scorer.queue-scorer"]
    assert scorer["parent_id"] == spans["llm_d.epp.scoring"]["span_id"]
    assert scorer["attributes"]["llm_d.epp.scorer.weight"] == 2
    assert scorer["attributes"]["llm_d.epp.scorer.score.max"] == 1
    assert len(spans["pick_endpoints"]["attributes"]["llm_d.epp.picker.top_endpoints"]) == 1
    for span in spans.values():
        assert root["start"] <= span["start"] <= span["end"] <= root["end"]
    # What the engine was sent joins the gateway's span.
    sent = engine.seen[-1]
    assert sent["traceparent"] == f"00-{trace_id}-{root['span_id']}-01"
    assert sent["tracestate"] == "vendor=x"
    assert gateway.metric_sum("penstock_trace_spans_total", outcome="exported") >= len(spans)


def test_what_the_caller_did_not_sample_is_passed_on_and_not_recorded(start, tmp_path, engine, collector):
    gateway = start.gateway(*settings(tmp_path, engine, collector, sampleRatio=1), env=FAST)
    trace_id = secrets.token_hex(16)
    gateway.post(CHAT, body(), headers={"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-00"})
    sent = engine.seen[-1]["traceparent"]
    assert sent.startswith(f"00-{trace_id}-") and sent.endswith("-00")
    # A root of ours is sampled and arrives after it.
    gateway.post(CHAT, body())
    eventually(lambda: collector.spans, what="the second trace")
    assert collector.trace(trace_id) == []


def test_refusals_are_errors_and_a_collector_that_is_away_costs_nothing(start, tmp_path, engine, collector):
    collector.answers = [503]
    gateway = start.gateway(*settings(tmp_path, engine, collector, sampleRatio=1), env=FAST)
    assert gateway.post(CHAT, None, content=b"{no json", timeout=5).status_code == 400
    root = eventually(lambda: [s for s in collector.spans if s["name"] == "gateway.request"], what="the trace")[0]
    assert root["failed"] and root["error"]
    assert root["attributes"]["http.response.status_code"] == 400


def test_spans_that_wait_are_sent_at_the_end(start, tmp_path, engine, collector):
    gateway = start.gateway(*settings(tmp_path, engine, collector, sampleRatio=1),
                            env={"OTEL_BSP_SCHEDULE_DELAY": "3600000"})
    gateway.post(CHAT, body())
    gateway.program.stop()
    assert any(span["name"] == "gateway.request" for span in collector.spans)


def test_without_tracing_a_callers_context_passes_unchanged(start, engine):
    gateway = start.gateway(model_servers=[engine.url])
    header = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    gateway.post(CHAT, body(), headers={"traceparent": header, "tracestate": "a=b"})
    assert engine.seen[-1]["traceparent"] == header
    assert engine.seen[-1]["tracestate"] == "a=b"


def test_the_console_exporter_writes_a_line_a_span(start, engine):
    gateway = start.gateway(model_servers=[engine.url],
                            env={**FAST, "OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER": "always_on"})
    gateway.post(CHAT, body())

    def lines():
        return [line for line in gateway.program.log_text().splitlines() if line.startswith('{"Name":"gateway.request"')]
    line = json.loads(eventually(lines, what="a span on standard output")[0])
    assert line["SpanKind"] == "server" and line["Service"] == "penstock"


def test_the_picker_joins_the_callers_trace_and_envoy_is_told_to_pass_its_span_on(start, tmp_path, collector):
    engines = start.engines(1)
    document = tmp_path / "picker.yaml"
    document.write_text(json.dumps({"telemetry": {"tracing": {
        "exporter": "otlp", "protocol": "http/protobuf", "endpoint": collector.url}}}))
    picker = start.picker(engines.ports, "--settings", document, "--tracing=true")
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    with picker.connect() as connection:
        stream = connection.open()
        headers, _ = pick(stream, traceparent=f"00-{trace_id}-{parent_id}-01", tracestate="vendor=x")
        answer_response(stream)
        stream.cancel()
    # Envoy's reset does not say how the request ended, and the last bytes of the answer do: the span is whole.
    spans = {span["name"]: span for span in eventually(lambda: collector.trace(trace_id), 20, "the trace")}
    root = spans["gateway.request"]
    assert headers.header("traceparent") == f"00-{trace_id}-{root['span_id']}-01"
    assert headers.header("tracestate") == "vendor=x"
    assert root["parent_id"] == parent_id
    assert not root["failed"], root["error"]
    assert root["resource"]["service.name"] == "llm-d-epp"
    assert root["attributes"]["http.response.status_code"] == 200
    assert spans["pick_endpoints"]["attributes"]["llm_d.epp.picker.candidate_endpoints"] == 1


def secured_collector(folder, of_clients=None):
    """A collector with a certificate in `folder`; it asks for one of its clients where they have a CA."""
    make_certificate(folder / "collector.pem", folder / "collector.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "collector.pem", folder / "collector.key")
    if of_clients:
        context.load_verify_locations(of_clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return Collector(context)


@pytest.mark.parametrize("mutual", [False, True], ids=["its CA", "and our certificate"])
def test_spans_go_to_a_collector_over_tls(start, tmp_path, engine, mutual):
    ours = {"CLIENT_CERTIFICATE": tmp_path / "ours.pem", "CLIENT_KEY": tmp_path / "ours.key"} if mutual else {}
    if mutual:
        make_certificate(ours["CLIENT_CERTIFICATE"], ours["CLIENT_KEY"], "gateway")
    collector = secured_collector(tmp_path, ours.get("CLIENT_CERTIFICATE"))
    try:
        files = {"CERTIFICATE": tmp_path / "collector.pem", **ours}
        gateway = start.gateway(*settings(tmp_path, engine, collector, sampleRatio=1),
                                env={**FAST, **{f"OTEL_EXPORTER_OTLP_{name}": str(file) for name, file in files.items()}})
        assert gateway.post(CHAT, body()).status_code == 200
        eventually(lambda: [s for s in collector.spans if s["name"] == "gateway.request"], what="the trace")
    finally:
        collector.stop()


def test_a_collector_that_cannot_prove_who_it_is_gets_no_span(start, tmp_path, engine):
    collector = secured_collector(tmp_path)
    make_certificate(tmp_path / "other.pem", tmp_path / "other.key")
    try:
        gateway = start.gateway(*settings(tmp_path, engine, collector, sampleRatio=1),
                                env={**FAST, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "other.pem")})
        assert gateway.post(CHAT, body()).status_code == 200
        eventually(lambda: collector.broken, what="a handshake that is broken off")
        eventually(lambda: any("certificate" in json.dumps(line) for line in gateway.program.log_lines()), 20, "its reason in the log")
        assert gateway.post(CHAT, body()).status_code == 200
        assert not collector.spans
    finally:
        collector.stop()


def test_the_picker_sends_its_spans_over_tls(start, tmp_path):
    engines, collector = start.engines(1), secured_collector(tmp_path)
    try:
        picker = start.picker(engines.ports, "--tracing=true", env={
            **FAST, "OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.url, "OTEL_TRACES_SAMPLER": "always_on",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "collector.pem")})
        with picker.connect() as connection:
            stream = connection.open()
            pick(stream)
            answer_response(stream)
            stream.cancel()
        eventually(lambda: [s for s in collector.spans if s["name"] == "gateway.request"], 20, "the trace")
    finally:
        collector.stop()
