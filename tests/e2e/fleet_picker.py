"""A picker of several pools of one cluster (`penstock epp --all-pools`), and what its stand-in for an API server holds."""
import contextlib

import h2.exceptions
import httpx
import pytest

from extproc_messages import read_answer
from grpc_client import Connection
from harness import eventually
from kubernetes_api import POOL, KubernetesApi
from picker_streams import chat_body, decided, send_request
from test_kubernetes import ClusterPicker

NOT_FOUND, FAILED_PRECONDITION = 5, 9
CONFIG = "penstock.dev/config"


def put_pool(api, name, app=None, *, port=8000, service=None, picker_port=9002, labels=None, config=None, namespace=None):
    api.put(POOL, name, namespace=namespace, labels=labels, annotations={CONFIG: config} if config else None,
            spec={"selector": {"matchLabels": {"app": app or name}}, "targetPorts": [{"number": port}], "appProtocol": "http",
                  "endpointPickerRef": {"group": "", "kind": "Service", "name": service or f"{name}-epp",
                                        "port": {"number": picker_port}, "failureMode": "FailClose"}})


def put_pod(api, name, ip, app, **more):
    api.put_pod(name, ip, labels={"app": app}, **more)


def asked(port, field=None, authority="epp", body=None, **headers):
    """(where a request goes, its body); without a body the HTTP status that refuses it, or the code of the status that
    its stream ends with."""
    metadata = [("x-penstock-pool", field)] if field else []
    with Connection(port) as connection:
        stream = connection.open(headers=metadata, authority=authority)
        with contextlib.suppress(ConnectionError):  # the server need not wait for the request
            send_request(stream, body or chat_body(), **headers)
        first = stream.receive()
        if first is None:
            return stream.status, None
        if (refusal := read_answer(first)).kind == "immediate":
            return refusal.status, None
        stream.queue.insert(0, first)
        answer, forwarded = decided(stream)
        stream.cancel()
        return answer.destination, forwarded


def asked_at(port):
    """Where a request at a pool's own port goes; None where nobody listens."""
    try:
        return asked(port)[0]
    except (OSError, h2.exceptions.ProtocolError):
        return None


@pytest.fixture
def api():
    api = KubernetesApi()
    yield api
    api.stop()


class FleetPicker(ClusterPicker):
    def pools(self):
        """{pool: set of addresses}"""
        pools = httpx.get(f"{self.admin}/debug/endpoints", timeout=5).json()["pools"]
        return {name: {one["address"] for one in pool["endpoints"]} for name, pool in pools.items()}

    def has_pools(self, **addresses):
        """Waits for exactly these of the cluster's namespace: pool={address, …}."""
        wanted = {f"{self.api.namespace}/{name}": value for name, value in addresses.items()}
        eventually(lambda: self.pools() == wanted, what=f"pools {wanted}, last {self.pools()}")

    def config_of(self, pool):
        pools = self.cluster_page()["configurations"]
        return next((one for one in pools if one["pool"] == f"{self.api.namespace}/{pool}"), None)

    def cluster_page(self):
        return httpx.get(f"{self.admin}/readyz", timeout=5).json()

    def asked(self, field=None, authority="epp", port=None, body=None, **headers):
        """Where a request goes, or the code of the status that its stream ends with."""
        where, self.forwarded = asked(port or self.port, field, authority, body, **headers)
        return where

    def metrics_text(self):
        return httpx.get(f"{self.admin}/metrics", timeout=5).text


@pytest.fixture
def fleet(start, tmp_path, api):
    """fleet(*flags): a picker of that API server's pools."""
    def begin(*flags, all_pools=True, **keywords):
        return start._keep(FleetPicker(tmp_path / f"picker-{len(start.parts)}", api, *(["--all-pools"] if all_pools else []), *flags,
                                       pool=None, **keywords))
    return begin
