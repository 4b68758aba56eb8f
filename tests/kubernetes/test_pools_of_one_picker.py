"""`penstock epp --all-pools` with the account and flags of the chart that serves several pools: on the stand-in and on the
real API server."""
import httpx
import pytest

from harness import eventually
from workload import SECONDS, Team

ANNOTATION = "penstock.dev/config"


@pytest.fixture
def team(cluster, helm, tmp_path):
    team = Team(cluster, tmp_path, lambda team: helm.example("several-pools", namespace=team.namespace))
    yield team
    team.stop()


def put_pool(team, name, config=None):
    metadata = {"name": name, "namespace": team.namespace, "annotations": {ANNOTATION: config} if config else {}}
    team.cluster.admin.apply({"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": metadata, "spec": {
        "selector": {"matchLabels": {"app": name}}, "targetPorts": [{"number": team.port}],
        "endpointPickerRef": {"name": f"{name}-picker", "port": {"number": 9002}}}})
    return {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": metadata}


def put_config(team, text):
    team.cluster.admin.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": team.namespace},
                              "data": {"picker.yaml": text}})


def test_pools_come_with_their_configuration_and_go(team):
    picker = team.picker("--pool-linger", "0s")

    def endpoints(pool):
        return picker.metric_sum("llm_d_epp_ready_endpoints", inference_pool=f"{team.namespace}/{pool}")

    def config_of(pool):
        page = httpx.get(f"{picker.admin}/readyz", timeout=10).json()
        return next((one for one in page["configurations"] if one["pool"] == f"{team.namespace}/{pool}"), {"state": "gone"})

    team.pod(0, {"app": "llama"}), team.pod(1, {"app": "qwen"}), team.pod(2, {"app": "qwen"})
    put_config(team, "plugins: [{type: random-picker}]\n")
    llama = put_pool(team, "llama")
    put_pool(team, "qwen", "mine/picker.yaml")
    eventually(lambda: (endpoints("llama"), endpoints("qwen")) == (1, 2), SECONDS, "the endpoints of both pools")
    assert config_of("llama")["config"] == "process" and config_of("qwen")["state"] == "current"
    eventually(lambda: picker.is_serving(f"{team.namespace}/qwen"), SECONDS, "the pool's own health")
    put_config(team, "plugins: [{type: no-such-plugin}]\n")
    eventually(lambda: config_of("qwen")["state"] == "former", SECONDS, "the bad configuration is refused")
    assert "no-such-plugin" in config_of("qwen")["error"] and endpoints("qwen") == 2
    eventually(lambda: any(e["reason"] == "BadConfiguration" and e["involvedObject"]["name"] == "qwen"
                           for e in team.cluster.admin.list("v1", "Event", team.namespace)), SECONDS, "an Event")
    put_config(team, "plugins: [{type: queue-scorer}]\n")
    eventually(lambda: config_of("qwen")["state"] == "current", SECONDS, "the good one is taken")
    team.cluster.admin.delete(llama)
    eventually(lambda: config_of("llama")["state"] == "gone" and endpoints("llama") == 0, SECONDS, "the deleted pool goes")
    assert endpoints("qwen") == 2 and picker.is_serving()
