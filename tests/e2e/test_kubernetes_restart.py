"""Many pods of a cluster restart at once, under load through Envoy."""
import asyncio
import collections
import contextlib
import json
import threading

import pytest

from harness import eventually, free_port
from kubernetes_api import POD, KubernetesApi
from load import Load
from test_kubernetes import ClusterPicker

LASTING, RESTARTING = 5, 100
ANSWER = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
          "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
          "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


class Servers:
    """Engines that answer at once, one at each address, in one thread. `served` counts their requests by address."""

    def __init__(self):
        self.served, self.port = collections.Counter(), free_port()
        self.servers, self.connections = {}, collections.defaultdict(set)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def open(self, addresses):
        self.call(self._open(addresses))

    def close(self, addresses):
        """As a program that ends: nobody listens, connections are reset."""
        self.call(self._close(addresses))

    def stop(self):
        self.close(list(self.servers))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    async def _open(self, addresses):
        for address in addresses:
            self.servers[address] = await asyncio.start_server(lambda r, w, a=address: self._serve(a, r, w), address, self.port)

    async def _close(self, addresses):
        for address in addresses:
            self.servers.pop(address).close()
            for writer in list(self.connections[address]):
                writer.transport.abort()

    async def _serve(self, address, reader, writer):
        self.connections[address].add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                await reader.readexactly(int(fields.get("content-length", 0)))
                if "chunked" in fields.get("transfer-encoding", ""):
                    while await reader.readuntil(b"\r\n") != b"0\r\n":
                        pass
                    await reader.readuntil(b"\r\n")
                body = b"vllm:num_requests_waiting 0\n"
                if head.startswith("POST"):
                    self.served[address] += 1
                    body = json.dumps(ANSWER).encode()
                kind = b"application/json" if head.startswith("POST") else b"text/plain"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, len(body)) + body)
                await writer.drain()
        self.connections[address].discard(writer)
        writer.close()


@pytest.fixture
def servers():
    servers = Servers()
    yield servers
    servers.stop()


@pytest.fixture
def api():
    api = KubernetesApi()
    yield api
    api.stop()


class Bed:
    """Pods at these addresses, a picker that follows them, Envoy before it, and load."""

    def __init__(self, start, folder, api, servers, addresses):
        servers.open(addresses)
        api.put_pool(ports=(servers.port,))
        for i, ip in enumerate(addresses):
            api.put_pod(f"engine-{i}", ip)
        self.picker = start._keep(ClusterPicker(folder / "picker", api))
        self.wait_for(addresses, "all pods are endpoints")
        self.envoy = start.envoy("fail-close.yaml", self.picker.port, self.picker.health_port)
        eventually(self.envoy.picker_is_healthy, 30, "Envoy finds the picker healthy")

    def wait_for(self, addresses, what):
        eventually(lambda: {place.split(":")[0] for place in self.picker.endpoints().values()} == set(addresses), 30, what)

    def load(self):
        load = Load(self.envoy.url + "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hello"}]})
        load.more_than(40)
        return load


def test_a_hundred_pods_that_restart_at_once_cost_no_request(start, tmp_path, api, servers):
    address = [f"127.3.0.{i + 1}" for i in range(LASTING + RESTARTING)]
    lasting, old = address[:LASTING], address[LASTING:]
    new = [f"127.3.1.{i + 1}" for i in range(RESTARTING)]
    bed = Bed(start, tmp_path, api, servers, address)
    load = bed.load()

    # The kubelet says that they end, and they take what was sent to them before they do.
    for i, ip in enumerate(old):
        api.put_pod(f"engine-{LASTING + i}", ip, deleting=True)
    bed.wait_for(lasting, "the pods that end are no endpoints")
    load.more_than(40)  # more than were on their way
    served = sum(servers.served[ip] for ip in old)
    servers.close(old)
    for i in range(RESTARTING):
        api.delete(POD, f"engine-{LASTING + i}")
    load.more_than(40)
    assert sum(servers.served[ip] for ip in old) == served

    servers.open(new)
    for i, ip in enumerate(new):
        api.put_pod(f"engine-{LASTING + i}", ip)
    bed.wait_for(lasting + new, "the new pods are endpoints")
    eventually(lambda: any(servers.served[ip] for ip in new), 30, "a new pod is picked")
    load.more_than(40)
    assert load.stop() == {200}


def test_of_a_hundred_pods_that_are_killed_nothing_is_asked_once_the_cluster_knows(start, tmp_path, api, servers):
    address = [f"127.4.0.{i + 1}" for i in range(LASTING + RESTARTING)]
    bed = Bed(start, tmp_path, api, servers, address)
    load = bed.load()
    servers.close(address[LASTING:])
    for i, ip in enumerate(address[LASTING:]):
        api.put_pod(f"engine-{LASTING + i}", ip, ready=False)
    bed.wait_for(address[:LASTING], "the dead pods are no endpoints")
    assert load.stop() <= {200, 503}
    assert bed.load().stop() == {200}
