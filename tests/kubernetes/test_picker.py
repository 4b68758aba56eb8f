"""The picker as it is shipped, at work: the objects of deploy/kubernetes/gateway/ on an API server, `penstock epp` with
the flags of their Deployment as their account, Envoy before it, simulated engines as pods. On the stand-in and on the
real server; of `make test-kubernetes` only, since it starts a dozen programs (tests/e2e/test_kubernetes.py is for every
day)."""
import httpx
import pytest
import yaml

import shipped
from charts import many_programs
from harness import ROOT, eventually
from node import Clients
from workload import CHAT, LABELS, SECONDS, Team

pytestmark = many_programs


@pytest.fixture
def team(cluster, tmp_path):
    team = Team(cluster, tmp_path)
    yield team
    team.stop()


@pytest.fixture
def stand_in_team(stand_in, tmp_path):
    team = Team(stand_in, tmp_path)
    yield team
    team.stop()


def test_requests_go_to_the_pods_of_the_pool_and_follow_them(team):
    team.pod(0), team.pod(1)
    team.pod(2, {"app": "other"})
    picker = team.picker()
    picker.wait_for_endpoints(2)
    envoy = team.envoy(picker)
    team.serve(envoy, [0, 1], others=[2])
    # Scaled up; by relabelling; not ready; relabelled away; deleted.
    third = team.pod(3)
    picker.wait_for_endpoints(3)
    team.cluster.admin.merge(team.pods[2], {"metadata": {"labels": LABELS}})
    picker.wait_for_endpoints(4)
    team.serve(envoy, [0, 1, 2, 3])
    team.cluster.set_pod_status(third, team.addresses[3], ready=False)
    picker.wait_for_endpoints(3)
    team.cluster.admin.merge(team.pods[2], {"metadata": {"labels": {"app": "other"}}})
    picker.wait_for_endpoints(2)
    team.cluster.admin.delete(team.pods[0])
    picker.wait_for_endpoints(1)
    team.serve(envoy, [1], others=[0, 2, 3])


def test_a_pool_that_gets_another_port_leads_there(team):
    team.pod(0), team.pod(1)
    team.engine(0, team.other_port), team.engine(1, team.other_port)
    picker = team.picker()
    picker.wait_for_endpoints(2)
    envoy = team.envoy(picker)
    team.serve(envoy, [0, 1])
    team.cluster.admin.merge(team.pool, {"spec": {"targetPorts": [{"number": team.other_port}]}})
    eventually(lambda: str(team.other_port) in httpx.get(f"{picker.admin}/debug/endpoints", timeout=10).text, SECONDS, "the new port")
    picker.wait_for_endpoints(2)
    team.serve(envoy, [0, 1], port=team.other_port)
    team.cluster.admin.merge(team.pool, {"spec": {"targetPorts": [{"number": team.port}, {"number": team.other_port}]}})
    picker.wait_for_endpoints(4)


def test_objectives_and_rewrites_take_effect_and_go(team):
    team.pod(0)
    picker = team.picker()
    picker.wait_for_endpoints(1)
    envoy = team.envoy(picker)
    objective = team.apply("InferenceObjective", "high", {"priority": 7})

    def counted(priority):
        team.ask(envoy, **{"x-llm-d-inference-objective": "high"})
        return picker.metric_sum("llm_d_epp_request_total", priority=str(priority)) > 0
    eventually(lambda: counted(7), SECONDS, "priority 7")
    team.cluster.admin.merge(objective, {"spec": {"priority": 3}})
    eventually(lambda: counted(3), SECONDS, "priority 3")
    rewrite = team.apply("InferenceModelRewrite", "public", {"rules": [
        {"matches": [{"model": {"type": "Exact", "value": "public"}}], "targets": [{"modelRewrite": "sim-model"}]}]})

    def rewritten(status):
        body = {"model": "public", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
        return team.http.post(envoy.url + CHAT, json=body).status_code == status
    eventually(lambda: rewritten(200), SECONDS, "the rewrite")
    team.cluster.admin.delete(rewrite)
    eventually(lambda: rewritten(404), SECONDS, "the rewrite is gone")


def test_a_server_that_is_away_costs_no_request_and_what_it_missed_is_caught_up(team):
    team.pod(0), team.pod(1)
    picker = team.picker()
    picker.wait_for_endpoints(2)
    envoy = team.envoy(picker)
    team.cluster.stop_api_server()
    team.serve(envoy, [0, 1])
    team.cluster.start_api_server()
    team.pod(2)
    picker.wait_for_endpoints(3)
    team.serve(envoy, [0, 1, 2])


def test_a_picker_that_starts_while_the_server_is_away_is_ready_once_it_has_seen_all(team):
    team.pod(0)
    config = team.cluster.kubeconfig(team.cluster.token_of(team.namespace, "llama-epp"), f"early-{team.namespace}", team.namespace)
    team.cluster.stop_api_server()
    picker = team.picker(ready=False, kubeconfig=config)
    eventually(lambda: "error" in picker.known()[1]["inferencepools"], SECONDS, "the server is away")
    assert not picker.is_serving("readiness") and picker.known()[0] == "unknown"
    team.cluster.start_api_server()
    eventually(lambda: picker.is_serving("readiness"), 2 * SECONDS, "the picker is ready")
    picker.wait_for_endpoints(1)


def test_a_hundred_pods_that_restart_at_once_cost_no_request(team):
    """They share four addresses, as pods on their nodes' networks do; two pods stay."""
    for index in range(6):
        team.engine(index)
    team.pod(0), team.pod(1)

    def make():
        return [team.cluster.ready_pod(team.namespace, f"many-{n}", team.addresses[2 + n % 4], LABELS) for n in range(100)]
    many = make()
    picker = team.picker("--refresh-metrics-interval=1s", "--metrics-staleness-threshold=5s")
    picker.wait_for_endpoints(102)
    clients = Clients(team.envoy(picker).url + CHAT)
    try:
        clients.wait_for(10)
        for pod in many:
            team.cluster.admin.delete(pod)
        picker.wait_for_endpoints(2)
        make()
        picker.wait_for_endpoints(102)
        clients.wait_for(10)
    finally:
        clients.stop()
    assert clients.failures == []


def test_a_pool_that_is_deleted_and_made_again_is_served_again(team):
    team.pod(0)
    picker = team.picker()
    picker.wait_for_endpoints(1)
    envoy = team.envoy(picker)
    team.cluster.admin.delete(team.pool)
    team.cluster.admin.apply(team.pool)
    team.pod(1)
    picker.wait_for_endpoints(2)
    eventually(lambda: picker.is_serving("readiness"), SECONDS, "the picker is ready")
    team.serve(envoy, [0, 1])


def test_pods_are_selected_without_a_pool(team):
    team.pod(0), team.pod(1, {"app": "other"})
    team.objects = [o for o in yaml.safe_load_all((ROOT / "deploy/kubernetes/standalone/penstock.yaml").read_text().replace(
        "namespace: inference", f"namespace: {team.namespace}").replace("=8000", f"={team.port}")) if o["kind"] != "InferencePool"]
    team.objects = [o for o in team.objects if not o["metadata"]["name"].endswith("-envoy")]
    for each in team.objects:
        team.cluster.admin.apply(each)
    denied = getattr(team.cluster, "denied", [])  # the stand-in's
    asked = len(denied)
    picker = team.picker()
    picker.wait_for_endpoints(1)
    envoy = team.envoy(picker)
    team.cluster.admin.merge(team.pods[1], {"metadata": {"labels": LABELS}})
    picker.wait_for_endpoints(2)
    team.serve(envoy, [0, 1])
    assert denied[asked:] == []


def test_the_picker_needs_no_more_than_its_role_and_uses_what_is_in_it(stand_in_team):
    team = stand_in_team
    team.pod(0)
    team.apply("InferenceObjective", "high", {"priority": 7})
    denied = len(team.cluster.denied)
    picker = team.picker()
    picker.wait_for_endpoints(1)
    assert team.cluster.denied[denied:] == []
    account = f"system:serviceaccount:{team.namespace}:llama-epp"

    def used():
        return {(group, resource, verb) for user, verb, group, resource, namespace in team.cluster.used
                if user == account and namespace == team.namespace}
    needed = {(group, resource, "watch") for group, resource in [
        ("", "pods"), ("inference.networking.k8s.io", "inferencepools"), ("llm-d.ai", "inferenceobjectives"),
        ("llm-d.ai", "inferencemodelrewrites")]} | {("llm-d.ai", "inferenceobjectives/status", "patch")}
    eventually(lambda: used() >= needed, SECONDS, "all that it reads is watched")
    assert used() <= shipped.rules(team.objects)
    assert team.cluster.denied[denied:] == []


def test_what_was_accepted_is_said_on_the_object(team):
    team.pod(0)
    team.apply("InferenceObjective", "high", {"priority": 7})
    picker = team.picker()
    picker.wait_for_endpoints(1)

    def condition():
        found = team.cluster.admin.get("llm-d.ai/v1alpha2", "InferenceObjective", team.namespace, "high")
        return next((c for c in found.get("status", {}).get("conditions", []) if c["type"] == "Accepted" and c["status"] == "True"), None)
    assert eventually(condition, SECONDS, "Accepted")["reason"] == "Accepted"
