"""HTTP/2 on both sides of the gateway: clients with prior knowledge and by ALPN, engines where the pool says so."""
import asyncio
import json
import socket
import subprocess
import threading

import httpx
import pytest

from harness import Engines, Exposition, Program, eventually, free_port, make_certificate

MODEL = "sim-model"


class Gateway(Exposition):
    """Its listeners come from the settings."""

    def __init__(self, log, path):
        self.admin = f"http://127.0.0.1:{free_port()}"
        self.program = Program(log, "serve", "--settings", path, "--admin", self.admin.removeprefix("http://"))
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/readyz")


def settings(folder, urls, tls=False):
    plain, secure = free_port(), free_port()
    document = {
        "listeners": [{"name": "plain", "address": f"127.0.0.1:{plain}"}],
        "pools": [{"name": "pool", "discovery": {"static": urls}, "engine": {"http2": True}}],
    }
    if tls:
        make_certificate(folder / "cert.pem", folder / "key.pem")
        document["listeners"].append({"name": "tls", "address": f"127.0.0.1:{secure}",
                                      "tls": {"certFile": str(folder / "cert.pem"), "keyFile": str(folder / "key.pem")}})
    path = folder / "settings.yaml"
    path.write_text(json.dumps(document))
    return path, f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{secure}"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("http2")
    engines = Engines(folder / "engines.log", 2, model=MODEL)
    path, plain, secure = settings(folder, engines.urls, tls=True)
    gateway = Gateway(folder / "gateway.log", path)
    yield plain, secure, gateway
    gateway.program.stop()
    engines.program.stop()


def completion(prompt="hello", **more):
    return {"model": MODEL, "prompt": prompt, "max_tokens": 4, "ignore_eos": True, **more}


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("tls", [False, True])
def test_a_request_is_the_same_in_either_version(served, version, tls):
    plain, secure, _ = served
    http2 = version == "HTTP/2"
    with httpx.Client(http1=not http2 or tls, http2=http2, verify=False, timeout=30) as client:
        base = secure if tls else plain
        answer = client.post(f"{base}/v1/completions", json=completion())
        assert answer.http_version == version
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert answer.headers["x-penstock-endpoint"]
        with client.stream("POST", f"{base}/v1/completions", json=completion(stream=True)) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) > 4
        assert client.post(f"{base}/v1/completions", content=b"{").status_code == 400
        assert client.get(f"{base}/v1/models").json()["data"]


def test_many_streams_share_one_connection(served):
    plain, _, _ = served

    async def ask():
        async with httpx.AsyncClient(http1=False, http2=True, timeout=60,
                                     limits=httpx.Limits(max_connections=1)) as client:
            return await asyncio.gather(*(client.post(f"{plain}/v1/completions", json=completion(f"number {i}"))
                                          for i in range(64)))

    assert all(a.status_code == 200 and a.http_version == "HTTP/2" for a in asyncio.run(ask()))


def test_large_bodies_pass(served):
    plain, _, _ = served
    with httpx.Client(http1=False, http2=True, timeout=60) as client:
        answer = client.post(f"{plain}/v1/completions", json=completion("word " * 60_000))
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 50_000


def test_curl_with_prior_knowledge_and_by_alpn(served):
    plain, secure, _ = served
    for arguments in (["--http2-prior-knowledge", f"{plain}/v1/models"], ["--http2", "-k", f"{secure}/v1/models"]):
        done = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", *arguments],
                              capture_output=True, text=True, timeout=30)
        assert done.stdout == "2 200", done


def test_a_client_that_goes_away_ends_its_request(served):
    plain, _, gateway = served
    done = subprocess.run(["curl", "-sS", "--http2-prior-knowledge", "--max-time", "1", "-o", "/dev/null", "-H",
                           "content-type: application/json", "-d",
                           json.dumps(completion(stream=True, max_tokens=4000)), f"{plain}/v1/completions"],
                          capture_output=True, timeout=30)
    assert done.returncode == 28  # ran out of time
    eventually(lambda: gateway.metric_sum("penstock_requests_active") == 0, what="the request's end")
    assert gateway.metric_sum("penstock_http2_connections_ended_total") == 0


def test_an_engine_that_comes_back_is_reached_again(tmp_path):
    engines = Engines(tmp_path / "engines.log", 1, model=MODEL)
    path, plain, _ = settings(tmp_path, engines.urls)
    gateway = Gateway(tmp_path / "gateway.log", path)
    try:
        with httpx.Client(http1=False, http2=True, timeout=30) as client:
            assert client.post(f"{plain}/v1/completions", json=completion()).status_code == 200
            engines.program.stop()
            assert client.post(f"{plain}/v1/completions", json=completion()).status_code in (502, 503)
            port = int(engines.urls[0].rsplit(":", 1)[1])
            engines = Engines(tmp_path / "engines2.log", 1, model=MODEL, ports=[port])
            eventually(lambda: client.post(f"{plain}/v1/completions", json=completion()).status_code == 200,
                       seconds=20, what="an answer of the restarted engine")
    finally:
        gateway.program.stop()
        engines.program.stop()


def test_a_pool_whose_manifest_says_h2c_is_spoken_to_over_http2(start, tmp_path):
    """The engine notes how each connection begins, and closes it."""
    begins = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                begins.append(connection.recv(16))

    thread = threading.Thread(target=serve)
    thread.start()
    endpoints, manifest = tmp_path / "endpoints.yaml", tmp_path / "pool.yaml"
    endpoints.write_text(json.dumps({"endpoints": [{"name": "engine", "address": "127.0.0.1",
                                                    "port": str(listener.getsockname()[1]), "labels": {"app": "engine"}}]}))
    manifest.write_text(json.dumps({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "pool"},
        "spec": {"selector": {"matchLabels": {"app": "engine"}}, "targetPorts": [{"number": 8000}],
                 "appProtocol": "kubernetes.io/h2c"}}))
    try:
        gateway = start.gateway("--manifests", manifest, "--endpoints-file", endpoints)
        assert gateway.post("/v1/completions", completion()).status_code in (502, 503)
        assert any(begin.startswith(b"PRI * HTTP/2.0") for begin in begins), begins
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
