"""`penstock epp` spoken to directly: what its flags change: health, limits, TLS, certificates."""
import contextlib
import json
import signal
import socket
import ssl

import httpx
import pytest

import extproc_messages as m
from grpc_client import Connection
from harness import Program, eventually, free_port, make_certificate, shows_certificate
from picker_streams import RESOURCE_EXHAUSTED, answer_response, chat_body, pick, send_request, works


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
