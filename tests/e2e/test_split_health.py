"""Requests that are split into prefill and decode: which of the two engines is ejected for what the sidecar answers."""
import http.server
import threading

import httpx
import pytest

from harness import eventually, free_port

CHAT = "/v1/chat/completions"
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- type: always-disagg-pd-decider
- type: prefill-filter
- type: decode-filter
- type: random-picker
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: random-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: random-picker}]}
"""


class Sidecar(http.server.ThreadingHTTPServer):
    """What llm-d's sidecar does with nixlv2: prefill first, whose failure it passes on (502 without a body where it cannot be
    reached), then decode."""
    daemon_threads = True

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, body, kind="application/json"):
            self.send_response(status)
            if body:
                self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.answer(*self.server.pass_on("GET", self.server.decode, self.path))

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            prefill = self.headers.get("x-prefiller-host-port")
            self.server.prefilled.append(prefill)
            if prefill:
                status, answer, kind = self.server.pass_on("POST", f"http://{prefill}", self.path, body)
                if status != 200:
                    return self.answer(status, answer, kind)
            return self.answer(*self.server.pass_on("POST", self.server.decode, self.path, body))

        def log_message(self, *_):
            pass

    def handle_error(self, *_):
        pass  # scrapes that were given up

    def __init__(self, decode):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.decode, self.prefilled = decode, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @staticmethod
    def pass_on(method, base, path, body=None):
        try:
            answer = httpx.request(method, base + path, content=body, headers={"content-type": "application/json"}, timeout=20)
        except httpx.HTTPError:
            return 502, b"", ""
        return answer.status_code, answer.content, answer.headers.get("content-type", "")


@pytest.fixture
def split(start, tmp_path):
    """A gateway, two decode engines behind sidecars, one prefill engine that is well and a port for another."""
    engines = start.engines(3)
    sidecars = [Sidecar(url) for url in engines.urls[:2]]
    broken = free_port()
    roles = [("d0", "decode", sidecars[0].server_address[1]), ("d1", "decode", sidecars[1].server_address[1]),
             ("well", "prefill", engines.ports[2]), ("broken", "prefill", broken)]
    servers, config = tmp_path / "servers.yaml", tmp_path / "split.yaml"
    servers.write_text("endpoints:\n" + "".join(
        f"- {{name: {name}, address: 127.0.0.1, port: {port}, labels: {{llm-d.ai/role: {role}}}}}\n" for name, role, port in roles))
    config.write_text(CONFIG)
    gateway = start.gateway("--endpoints-file", servers, "--config-file", config, ready=False)
    yield gateway, engines, sidecars, broken
    for sidecar in sidecars:
        sidecar.shutdown()


def state(gateway, name):
    pools = httpx.get(f"{gateway.admin}/debug/endpoints", timeout=5).json()["pools"]
    return next(one for pool in pools.values() for one in pool["endpoints"] if one["endpoint"].endswith("/" + name))


def ask(gateway):
    return gateway.post(CHAT, {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}).status_code


def test_a_dead_prefill_engine_is_ejected_and_the_decode_engines_are_not(split):
    gateway, engines, sidecars, broken = split

    def ejected():
        ask(gateway)
        return gateway.metric_sum("penstock_endpoint_ejections_total") >= 1

    eventually(ejected, 30, "somebody is ejected")
    assert state(gateway, "broken")["reason"] == "reset"
    assert [state(gateway, name)["state"] for name in ("d0", "d1", "well")] == ["healthy"] * 3
    assert gateway.metric_sum("penstock_endpoint_failures_total", kind="reset") == 3
    assert gateway.metric_sum("penstock_endpoint_failures_total", kind="status") == 0
    for sidecar in sidecars:
        sidecar.prefilled.clear()
    assert {ask(gateway) for _ in range(10)} <= {200, 502}  # a trial may be among them
    tried = [prefill for sidecar in sidecars for prefill in sidecar.prefilled]
    assert len(tried) == 10 and tried.count(f"127.0.0.1:{broken}") <= 2


def test_a_prefill_engine_that_answers_5xx_is_told_from_its_partners(split):
    gateway, engines, sidecars, broken = split
    ask_until = lambda condition, what: eventually(lambda: (ask(gateway), condition())[1], 40, what)  # noqa: E731
    ask_until(lambda: state(gateway, "broken")["state"] != "healthy", "the dead one is out")
    engines.fault(2, status=500)
    ask_until(lambda: state(gateway, "well")["state"] != "healthy", "the failing one is out")
    # With nobody to prefill requests are decoded as they are.
    eventually(lambda: ask(gateway) == 200 and any(sidecar.prefilled[-1] is None for sidecar in sidecars if sidecar.prefilled),
               40, "decoded without prefill")
