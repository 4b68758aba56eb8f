"""What a real API server refuses, lacks or takes away: the picker says so by name, serves on with what it knew, and
finds its way back."""
import signal

import httpx
import pytest
import yaml

from charts import many_programs
from control_plane import TOOLS, running_plane
from harness import ROOT, eventually
from workload import LABELS, SECONDS, Team

pytestmark = many_programs
POOL_CRD = TOOLS / "crds/inference.networking.k8s.io_inferencepools.yaml"
AGAIN = "the API server is followed again"
REFUSED = "the API server can't be followed, the last good picture stays"
# The picker asks again within a minute where it is refused, or where something isn't there.
LONG = 2 * SECONDS


@pytest.fixture
def team(plane, tmp_path):
    team = Team(plane, tmp_path)
    yield team
    team.stop()


def of_chart(helm, name):
    """Team(objects=...): an example of the chart, whose pods have the team's port and label."""
    return lambda team: [o for o in helm.example(name, namespace=team.namespace) if o["kind"] != "InferencePool"]


def with_token_file(team, token):
    """(kubeconfig, token file) for the picker."""
    file = team.folder / "token"
    file.write_text(token)
    return team.cluster.kubeconfig(None, f"by-file-{team.namespace}", team.namespace, tokenFile=str(file)), file


def says(picker, resource, reason):
    _, resources = picker.known()
    return resources.get(resource, {}).get("reason") == reason


def test_a_token_that_has_expired_is_said_and_the_next_in_its_file_is_taken(team):
    team.pod(0)
    config, file = with_token_file(team, team.cluster.expired_token(team.namespace, "llama-epp"))
    picker = team.picker(kubeconfig=config, ready=False)
    eventually(lambda: says(picker, "inferencepools", "unauthorized"), SECONDS, "the token is refused")
    assert not picker.is_serving() and not picker.is_serving("readiness")
    assert picker.has_said(REFUSED, "unauthorized: watch inferencepools.inference.networking.k8s.io in namespace")
    file.write_text(team.cluster.token_of(team.namespace, "llama-epp"))
    picker.wait_for_endpoints(1, LONG)
    eventually(lambda: picker.is_serving("readiness"), SECONDS, "the picker is ready")


def test_a_token_that_is_revoked_while_serving_costs_nothing_but_news(team):
    team.pod(0), team.pod(1)
    first, revoke = team.cluster.revocable_token(team.namespace, "llama-epp")
    config, file = with_token_file(team, first)
    picker = team.picker(kubeconfig=config)
    picker.wait_for_endpoints(2)
    envoy = team.envoy(picker)
    revoke()
    team.cluster.stop_api_server()  # or its watches would go on for minutes
    team.cluster.start_api_server()
    eventually(lambda: says(picker, "pods", "unauthorized"), LONG, "the token is refused")
    team.serve(envoy, [0, 1])
    assert picker.is_serving("readiness")
    team.pod(2)
    file.write_text(team.cluster.token_of(team.namespace, "llama-epp"))
    picker.wait_for_endpoints(3, LONG)
    team.serve(envoy, [0, 1, 2])


def test_a_client_certificate_is_a_user_of_the_role(team):
    team.pod(0)
    plane = team.cluster
    plane.make_certificate("picker", f"picker-of-{team.namespace}")
    binding = team.object("RoleBinding")
    plane.admin.apply({**binding, "metadata": {"name": "by-certificate", "namespace": team.namespace},
                       "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": f"picker-of-{team.namespace}"}]})
    config = plane.kubeconfig(None, f"by-certificate-{team.namespace}", team.namespace,
                              **{"client-certificate": str(plane.folder / "picker.crt"), "client-key": str(plane.folder / "picker.key")})
    picker = team.picker(kubeconfig=config)
    picker.wait_for_endpoints(1)


def test_a_program_gives_the_token_and_is_asked_again_when_it_is_refused(team):
    team.pod(0)
    plane = team.cluster
    first, revoke = plane.revocable_token(team.namespace, "llama-epp")
    token, login = team.folder / "token", team.folder / "login"
    token.write_text(first)
    login.write_text('#!/bin/sh\necho "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",\\"kind\\":\\"ExecCredential\\",'
                     f'\\"status\\":{{\\"token\\":\\"$(cat {token})\\"}}}}"\n')
    login.chmod(0o700)
    config = plane.kubeconfig(None, f"by-program-{team.namespace}", team.namespace, exec={
        "apiVersion": "client.authentication.k8s.io/v1", "command": str(login), "interactiveMode": "Never"})
    picker = team.picker(kubeconfig=config)
    picker.wait_for_endpoints(1)
    token.write_text(plane.token_of(team.namespace, "llama-epp"))
    revoke()
    plane.stop_api_server()  # or its watches would go on for minutes
    plane.start_api_server()
    team.pod(1)
    picker.wait_for_endpoints(2, LONG)


@pytest.mark.parametrize("resource, group", [("pods", ""), ("inferencepools", "inference.networking.k8s.io"),
                                             ("inferenceobjectives", "llm-d.ai")])
def test_a_verb_that_the_role_lacks_is_named_with_its_resource(team, resource, group):
    team.pod(0)
    role = team.object("Role")
    rules = [r for r in role["rules"] if resource not in r["resources"]]
    others = [r for r in [*role["rules"]] if resource in r["resources"]]
    kept = [{**r, "resources": [x for x in r["resources"] if x != resource]} for r in others]
    less = [*rules, *[r for r in kept if r["resources"]], {"apiGroups": [group], "resources": [resource], "verbs": ["list"]}]
    team.cluster.admin.merge(role, {"rules": less})
    picker = team.picker(ready=False)
    eventually(lambda: says(picker, resource, "forbidden"), SECONDS, "the refusal")
    full = f"{resource}.{group}" if group else resource
    assert picker.known()[1][resource]["error"].startswith(f'forbidden: watch {full} in namespace "{team.namespace}": ')
    assert picker.has_said(REFUSED, f"watch {full}")
    if resource == "inferenceobjectives":
        picker.wait_for_endpoints(1)
        eventually(lambda: picker.is_serving("readiness"), SECONDS, "ready without them")
    else:
        assert not picker.is_serving("readiness")
    team.cluster.admin.merge(role, {"rules": role["rules"]})
    eventually(lambda: picker.known()[1][resource]["state"] == "followed", LONG, "followed once it may")
    eventually(lambda: picker.is_serving("readiness"), SECONDS, "the picker is ready")


def test_without_the_verb_for_conditions_the_log_says_so_and_the_rest_works(team):
    team.pod(0)
    role = team.object("Role")
    team.cluster.admin.merge(role, {"rules": [r for r in role["rules"] if not any("/status" in x for x in r["resources"])]})
    team.apply("InferenceObjective", "high", {"priority": 7})
    picker = team.picker()
    picker.wait_for_endpoints(1)
    eventually(lambda: any("patch inferenceobjectives.llm-d.ai/status" in str(line) for line in picker.program.log_lines()), SECONDS,
               "the verb and resource in the log")
    team.envoy(picker)
    assert picker.is_serving("readiness")


def test_a_deleted_pool_serves_on_by_what_it_said_last(team):
    team.pod(0)
    picker = team.picker()
    picker.wait_for_endpoints(1)
    envoy = team.envoy(picker)
    team.cluster.admin.delete(team.pool)
    eventually(lambda: picker.known()[0] == "deleted", SECONDS, "the deletion is seen")
    team.pod(1)
    picker.wait_for_endpoints(2)
    team.serve(envoy, [0, 1])
    assert picker.is_serving("readiness")
    team.engine(0, team.other_port), team.engine(1, team.other_port)
    team.pool["spec"]["targetPorts"] = [{"number": team.other_port}]
    team.cluster.admin.apply(team.pool)
    eventually(lambda: picker.known()[0] == "known", SECONDS, "the new pool is seen")
    eventually(lambda: str(team.other_port) in httpx.get(f"{picker.admin}/debug/endpoints", timeout=10).text, SECONDS, "its port")
    team.serve(envoy, [0, 1], port=team.other_port)


def test_a_pool_of_the_older_group_is_served(plane, helm, tmp_path):
    def objects(team):
        made = of_chart(helm, "existing-pool")(team)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "given", "namespace": team.namespace}}
        pool = {"apiVersion": "inference.networking.x-k8s.io/v1alpha2", "kind": "InferencePool",
                "metadata": {"name": "llama", "namespace": team.namespace},
                "spec": {"selector": LABELS, "targetPortNumber": team.port, "extensionRef": {"name": "llama-epp"}}}
        return [account, *made, pool]
    team = Team(plane, tmp_path, objects)
    try:
        team.pod(0), team.pod(1)
        picker = team.picker()
        picker.wait_for_endpoints(2)
        envoy = team.envoy(picker)
        team.serve(envoy, [0, 1])
        team.engine(1, team.other_port)
        team.cluster.admin.delete(team.pods[0])
        team.cluster.admin.merge(team.pool, {"spec": {"targetPortNumber": team.other_port}})
        eventually(lambda: str(team.other_port) in httpx.get(f"{picker.admin}/debug/endpoints", timeout=10).text, SECONDS, "its port")
        team.serve(envoy, [1], port=team.other_port)
    finally:
        team.stop()


def test_of_two_pickers_the_leader_is_ready_and_the_other_takes_over(plane, helm, tmp_path):
    team = Team(plane, tmp_path, lambda team: [*of_chart(helm, "leader-election")(team),
                                               next(o for o in team.manifests() if o["kind"] == "InferencePool")])
    try:
        team.pod(0)
        first = team.picker()
        second = team.picker(ready=False)
        second.wait_for_endpoints(1)  # who waits knows the pool, too
        assert second.is_serving("liveness") and not second.is_serving("readiness")
        first.program.stop()  # gives the lease back
        eventually(lambda: second.is_serving("readiness"), SECONDS, "the other leads")
        third = team.picker(ready=False)
        third.wait_for_endpoints(1)
        assert not third.is_serving("readiness")
        second.program.signal(signal.SIGKILL)  # the lease ends by itself
        eventually(lambda: third.is_serving("readiness"), SECONDS, "the third leads")
    finally:
        team.stop()


@pytest.fixture
def bare_plane(request, tmp_path_factory):
    """An API server without resource definitions, with the flags of the test's parameter."""
    with running_plane(tmp_path_factory.mktemp("bare"), flags=getattr(request, "param", ())) as plane:
        yield plane


def test_definitions_that_are_missing_are_said_and_found_when_they_come(bare_plane, tmp_path):
    team = Team(bare_plane, tmp_path)
    try:
        team.pod(0)
        picker = team.picker(ready=False)
        eventually(lambda: picker.known()[1]["inferencepools"]["state"] == "absent", SECONDS, "there are no pools")
        eventually(lambda: picker.known()[1]["inferenceobjectives"]["state"] == "absent", SECONDS, "there are no objectives")
        assert picker.known()[0] == "unknown" and not picker.is_serving("readiness")
        bare_plane.install_crds(POOL_CRD)
        bare_plane.admin.apply(team.object("InferencePool"))
        picker.wait_for_endpoints(1, LONG)
        eventually(lambda: picker.is_serving("readiness"), SECONDS, "ready with what is there")
        bare_plane.install_crds(*sorted((ROOT / "deploy/crds").glob("*.yaml")))
        team.apply("InferenceObjective", "high", {"priority": 7})
        eventually(lambda: picker.known()[1]["inferenceobjectives"]["state"] == "followed", LONG, "objectives are found")
        assert picker.known()[1]["inferenceobjectives"]["objects"] == 1
    finally:
        team.stop()


def test_what_cannot_be_read_has_a_condition_and_an_event(bare_plane, tmp_path):
    # As it may be where another project's definitions take more than ours.
    lenient = yaml.safe_load((ROOT / "deploy/crds/llm-d.ai_inferenceobjectives.yaml").read_text())
    lenient["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    (tmp_path / "lenient.yaml").write_text(yaml.safe_dump(lenient))
    bare_plane.install_crds(POOL_CRD, tmp_path / "lenient.yaml")
    team = Team(bare_plane, tmp_path)
    try:
        team.pod(0)
        picker = team.picker()
        picker.wait_for_endpoints(1)
        team.apply("InferenceObjective", "urgent", {"priority": "high"})

        def condition():
            found = bare_plane.admin.get("llm-d.ai/v1alpha2", "InferenceObjective", team.namespace, "urgent")
            return next((c for c in found.get("status", {}).get("conditions", []) if c["type"] == "Accepted"), None)
        told = eventually(condition, SECONDS, "the condition")
        assert (told["status"], told["reason"]) == ("False", "Invalid") and "spec.priority" in told["message"]

        def events():
            return bare_plane.admin.list("v1", "Event", team.namespace, fieldSelector="involvedObject.name=urgent")
        event, = eventually(events, SECONDS, "the event")
        assert event["type"] == "Warning" and "spec.priority" in event["message"] and event["involvedObject"]["kind"] == "InferenceObjective"
        team.apply("InferenceObjective", "urgent", {"priority": 7})
        eventually(lambda: condition()["status"] == "True", SECONDS, "accepted once it is right")
        assert picker.is_serving("readiness")
    finally:
        team.stop()


@pytest.mark.parametrize("bare_plane", [["--feature-gates=WatchList=false"]], indirect=True)
def test_a_server_without_streaming_lists_is_read_in_pages(bare_plane, tmp_path):
    bare_plane.install_crds(POOL_CRD)
    team = Team(bare_plane, tmp_path)
    try:
        for index in range(260):  # a page has 250
            bare_plane.ready_pod(team.namespace, f"many-{index}", f"127.0.3.{index % 250 + 1}", LABELS)
        picker = team.picker("--refresh-metrics-interval=60s", "--metrics-staleness-threshold=200s")  # nothing answers there

        def pods():
            return picker.known()[1]["pods"].get("objects")
        eventually(lambda: pods() == 260, SECONDS, "all pods")
        assert picker.has_said("the API server has no streaming lists, pages are read", "pods")
        bare_plane.admin.delete({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "many-7", "namespace": team.namespace}})
        eventually(lambda: pods() == 259, SECONDS, "one less")
    finally:
        team.stop()
