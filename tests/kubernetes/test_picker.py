"""The picker as it is shipped, at work: the objects of deploy/kubernetes/gateway/ on an API server, `penstock epp` with
the flags of their Deployment as their account, Envoy before it, simulated engines as pods. On the stand-in and on the
real server; of `make test-kubernetes` only, since it starts a dozen programs (tests/e2e/test_kubernetes.py is for every
day)."""
import contextlib
import os
import pathlib
import socket
import sys

import httpx
import pytest
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))

import shipped  # noqa: E402
from charts import ROOT  # noqa: E402
from data_plane import Envoy, Picker  # noqa: E402
from harness import Exposition, Program, eventually, free_port  # noqa: E402

PENSTOCK = pathlib.Path(os.environ.get("PENSTOCK", ROOT / "build/release/penstock"))
MANIFESTS = (ROOT / "deploy/kubernetes/gateway/penstock.yaml").read_text()
LABELS = {"app": "llama"}
pytestmark = pytest.mark.skipif("PENSTOCK_NEED_KUBERNETES" not in os.environ, reason="of make test-kubernetes")
CHAT = "/v1/chat/completions"
SECONDS = 60  # for what takes milliseconds: a machine of two cores may be busy


def port_free_on(addresses):
    """One port that is free on all of them."""
    for _ in range(200):
        port = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for address in addresses:
                stack.enter_context(socket.socket()).bind((address, port))
            return port
    raise RuntimeError("no free port")


class ShippedPicker(Exposition):
    """`penstock epp` as the Deployment runs it; only ports, addresses and files are this machine's."""
    is_serving = Picker.is_serving
    admin = Picker.admin

    def __init__(self, folder, cluster, namespace, objects, *more, ready=True):
        folder.mkdir(parents=True, exist_ok=True)
        deployment = next(o for o in objects if o["kind"] == "Deployment")
        config = next(o for o in objects if o["kind"] == "ConfigMap")
        flags = shipped.flags(deployment)
        file = folder / pathlib.Path(flags["config-file"]).name
        file.write_text(config["data"][file.name])
        self.port, self.health_port, self.metrics_port = free_port(), free_port(), free_port()
        flags |= {"config-file": file, "grpc-port": self.port, "grpc-health-port": self.health_port, "metrics-port": self.metrics_port,
                  "metrics-endpoint-auth": "false", "bind-address": "127.0.0.1", "secure-serving": "false", "drain-timeout": "0s"}
        account = shipped.pod_spec(deployment)["serviceAccountName"]
        config = cluster.kubeconfig(cluster.token_of(namespace, account), f"picker-{self.port}", namespace)
        environment = {"NAMESPACE": namespace, "POD_NAME": f"{deployment['metadata']['name']}-0-0", "KUBECONFIG": str(config)}
        self.program = Program(folder / f"picker-{self.port}.log", "epp", *[f"--{k}={v}" for k, v in flags.items()], *more,
                               env=environment, binary=PENSTOCK)
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/metrics", SECONDS)
            if ready:
                eventually(lambda: self.is_serving("readiness"), SECONDS, "the picker is ready")

    def endpoints(self):
        return self.metric_sum("llm_d_epp_ready_endpoints")

    def wait_for_endpoints(self, count):
        eventually(lambda: self.endpoints() == count, SECONDS, f"{count} endpoints")


class Team:
    """A namespace with the shipped objects, engines that are its pods, and programs that end with the test."""
    count = 0

    def __init__(self, cluster, folder):
        Team.count += 1
        self.cluster, self.folder, self.namespace = cluster, folder, f"team-{Team.count}"
        self.addresses = [f"127.0.1.{n}" for n in range(1, 7)]
        self.port, self.other_port = port_free_on(self.addresses), port_free_on(self.addresses)
        self.programs, self.pods = [], {}
        self.http = httpx.Client(timeout=SECONDS, trust_env=False, verify=False)
        cluster.create_namespace(self.namespace)
        text = MANIFESTS.replace("namespace: inference", f"namespace: {self.namespace}").replace("number: 8000", f"number: {self.port}")
        self.objects = list(yaml.safe_load_all(text))
        for each in self.objects:
            cluster.admin.apply(each)
        self.pool = next(o for o in self.objects if o["kind"] == "InferencePool")

    def engine(self, index, port=None):
        """A simulated engine at an address of its own."""
        address = self.addresses[index]
        program = Program(self.folder / f"engine-{index}-{port or self.port}.log", "sim", "engine", "--host", address, "--port",
                          port or self.port, "--model", "sim-model", "--time-scale", "0", binary=PENSTOCK)
        self.programs.append(program)
        with program.stopped_on_failure():
            program.wait_for_http(f"http://{address}:{port or self.port}/health", SECONDS)

    def pod(self, index, labels=LABELS, ready=True):
        self.engine(index)
        self.pods[index] = self.cluster.ready_pod(self.namespace, f"engine-{index}", self.addresses[index], labels, ready=ready)
        return self.pods[index]

    def picker(self, *more, **keywords):
        picker = ShippedPicker(self.folder / "picker", self.cluster, self.namespace, self.objects, *more, **keywords)
        self.programs.append(picker.program)
        return picker

    def envoy(self, picker):
        envoy = Envoy(self.folder / "envoy", "fail-close.yaml", picker.port, picker.health_port)
        self.programs.append(envoy.program)
        eventually(envoy.picker_is_healthy, SECONDS, "Envoy finds the picker healthy")
        return envoy

    def requests(self, index, port=None):
        """Inference requests that an engine has received."""
        return self.http.get(f"http://{self.addresses[index]}:{port or self.port}/sim/state").json()["requests"]

    def ask(self, envoy, number=0, **headers):
        # Prompts that share nothing, so that no engine is the one that holds the prefix.
        body = {"model": "sim-model", "max_tokens": 1, "messages": [{"role": "user", "content": f"{number} " * 40}]}
        answer = self.http.post(envoy.url + CHAT, json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def serve(self, envoy, indices, others=(), port=None):
        """Requests, each of which must be answered, until each of these engines has had one; the others have none."""
        before = {i: self.requests(i, port) for i in [*indices, *others]}
        missing = set(indices)
        for number in range(300):
            self.ask(envoy, number)
            missing -= {i for i in missing if self.requests(i, port) > before[i]}
            if not missing and number >= 5:
                break
        assert not missing, f"engines {missing} have had no request"
        assert all(self.requests(i, port) == before[i] for i in others)

    def apply(self, kind, name, spec, group="llm-d.ai"):
        thing = {"apiVersion": f"{group}/v1alpha2", "kind": kind, "metadata": {"name": name, "namespace": self.namespace},
                 "spec": {"poolRef": {"name": self.pool["metadata"]["name"], "group": "inference.networking.k8s.io", "kind": "InferencePool"}, **spec}}
        return self.cluster.admin.apply(thing)

    def stop(self):
        for program in reversed(self.programs):
            program.stop()
        self.http.close()


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


def test_pods_are_selected_without_a_pool(stand_in_team):
    team = stand_in_team
    team.pod(0), team.pod(1, {"app": "other"})
    team.objects = [o for o in yaml.safe_load_all((ROOT / "deploy/kubernetes/standalone/penstock.yaml").read_text().replace(
        "namespace: inference", f"namespace: {team.namespace}").replace("=8000", f"={team.port}")) if o["kind"] != "InferencePool"]
    team.objects = [o for o in team.objects if not o["metadata"]["name"].endswith("-envoy")]
    for each in team.objects:
        team.cluster.admin.apply(each)
    asked = len(team.cluster.denied)
    picker = team.picker()
    picker.wait_for_endpoints(1)
    assert team.cluster.denied[asked:] == []


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
