"""`penstock epp --all-pools` with the account and flags of the chart that serves several pools: on the stand-in and on the
real API server."""
import httpx
import pytest

from fleet_picker import asked_at
from harness import eventually, free_ports
from workload import SECONDS, Team

ANNOTATION = "penstock.dev/config"


@pytest.fixture
def team(cluster, helm, tmp_path):
    team = Team(cluster, tmp_path, lambda team: helm.example("several-pools", namespace=team.namespace))
    yield team
    team.stop()


@pytest.fixture
def ports():
    """Of loopback, that pools may have for themselves."""
    first = free_ports(3)
    return range(first, first + 3)


@pytest.fixture
def team_of_ports(cluster, helm, tmp_path, ports):
    values = ["--set", "router.allPools=true,router.inferencePool.create=false", "--set", f"router.poolPorts={ports[0]}-{ports[-1]}"]
    team = Team(cluster, tmp_path, lambda team: helm.template("penstock-epp", *values, namespace=team.namespace))
    yield team
    team.stop()


def put_pool(team, name, config=None, service=None, port=9002):
    metadata = {"name": name, "namespace": team.namespace, "annotations": {ANNOTATION: config} if config else {}}
    team.cluster.admin.apply({"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": metadata, "spec": {
        "selector": {"matchLabels": {"app": name}}, "targetPorts": [{"number": team.port}],
        "endpointPickerRef": {"name": service or f"{name}-picker", "port": {"number": port}}}})
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


def test_pools_of_the_charts_service_are_told_apart_by_its_ports(team_of_ports, ports):
    """The worked example of docs/kubernetes.md."""
    team = team_of_ports
    service = next(o for o in team.objects if o["kind"] == "Service")
    by_name = {p["name"]: p["port"] for p in service["spec"]["ports"]}
    assert [by_name[f"pool-{port}"] for port in ports] == list(ports)
    team.pod(0, {"app": "llama"}), team.pod(1, {"app": "qwen"})
    engines = [f"{address}:{team.port}" for address in team.addresses[:2]]
    picker = team.picker("--pool-linger", "0s")
    assert [asked_at(port) for port in ports] == [None] * 3
    put_pool(team, "llama", service=service["metadata"]["name"], port=ports[0])
    qwen = put_pool(team, "qwen", service=service["metadata"]["name"], port=ports[1])
    eventually(lambda: [asked_at(port) for port in ports[:2]] == engines, SECONDS, "each port leads to its pool")
    assert asked_at(ports[2]) is None
    put_pool(team, "llama", service=service["metadata"]["name"], port=ports[2])
    eventually(lambda: [asked_at(port) for port in ports] == [None, engines[1], engines[0]], SECONDS, "a pool takes another port")
    team.cluster.admin.delete(qwen)
    eventually(lambda: [asked_at(port) for port in ports] == [None, None, engines[0]], SECONDS, "a pool goes")
    assert picker.is_serving()
