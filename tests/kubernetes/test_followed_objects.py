"""What a configuration's k8s-notification-sources follow on a real API server: Pods by the Role as it is shipped, a kind
whose definition comes, goes and comes back, and the verb that is missing."""
import contextlib
import json

import httpx
import pytest
import yaml

from charts import many_programs
from grpc_client import Connection
from harness import eventually
from picker_streams import pick
from workload import SECONDS, Team

pytestmark = many_programs
# The picker looks again within a minute for what is not there, or where it is refused.
LONG = 2 * SECONDS
GROUP = "sources.example.com"
CRD = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"widgets.{GROUP}"},
       "spec": {"group": GROUP, "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}
SHARE = "llm_d_epp_disaggregatedset_revision_gating_share"


def with_sources(team):
    """The shipped objects, with a configuration of our own."""
    objects = team.manifests()
    for each in objects:
        if each["kind"] == "ConfigMap":
            each["data"] = {name: json.dumps({"plugins": [
                {"name": "pods", "type": "k8s-notification-source", "parameters": {"version": "v1", "kind": "Pod"}},
                {"name": "widgets", "type": "k8s-notification-source",
                 "parameters": {"group": GROUP, "version": "v1", "kind": "Widget", "namespace": team.namespace}},
                {"type": "disaggregatedset-rollout-screener",
                 "parameters": {"scope": {"labelSelector": "set=one"},
                                "revisionGating": {"mode": "sum", "requireRoles": {"values": ["prefill", "decode"]}}}},
                {"type": "random-picker"}]}) for name in each["data"]}
    return objects


@pytest.fixture
def team(plane, tmp_path):
    team = Team(plane, tmp_path, with_sources)
    yield team
    team.stop()


def worker(team, name, address, revision, role, **labels):
    return team.cluster.ready_pod(team.namespace, name, address, {
        "set": "one", "disaggregatedset.x-k8s.io/revision": revision, "disaggregatedset.x-k8s.io/role": role, **labels})


def wait_for_members(picker, count):
    """No engine runs at their addresses."""
    def members():
        pools = httpx.get(f"{picker.admin}/debug/endpoints", timeout=10).json()["pools"]
        return sum(len(pool["endpoints"]) for pool in pools.values())
    eventually(lambda: members() == count, SECONDS, f"{count} members of the pool")


def source(team, picker, name):
    state = picker.cluster_state()
    return next(one for one in state["sources"] if one["source"] == f"{name} in {team.namespace}")


def share(picker, revision):
    with Connection(picker.port) as connection, contextlib.suppress(AssertionError):  # of nobody, while no revision is whole
        stream = connection.open()
        pick(stream)
        stream.cancel()
    return picker.metric_sum(SHARE, revision=revision)


def test_pods_are_followed_by_the_role_as_it_is_shipped(team):
    worker(team, "d-old", "127.0.2.1", "old", "decode", app="llama")
    worker(team, "d-new", "127.0.2.2", "new", "decode", app="llama")
    worker(team, "p-old", "127.0.2.3", "old", "prefill")
    picker = team.picker("--allow-experimental-plugins")
    wait_for_members(picker, 2)
    eventually(lambda: source(team, picker, "v1/Pod")["state"] == "followed", SECONDS, "the Pods")
    assert source(team, picker, "v1/Pod")["objects"] == 3
    eventually(lambda: share(picker, "old") == 1, SECONDS, "the old revision alone is whole")
    late = worker(team, "p-new", "127.0.2.4", "new", "prefill")
    eventually(lambda: share(picker, "new") == 0.5, SECONDS, "both are")
    team.cluster.stop_api_server()
    eventually(lambda: source(team, picker, "v1/Pod")["state"] == "stale", SECONDS, "the server is away")
    assert share(picker, "new") == 0.5
    team.cluster.start_api_server()
    team.cluster.admin.delete(late)
    eventually(lambda: share(picker, "old") == 1, LONG, "what changed meanwhile")


def test_a_kind_comes_is_refused_is_followed_goes_and_comes_back(team, tmp_path):
    worker(team, "d", "127.0.2.1", "old", "decode", app="llama")
    picker = team.picker("--allow-experimental-plugins")
    wait_for_members(picker, 1)
    kind = f"{GROUP}/v1/Widget"

    def widgets():
        return source(team, picker, kind)
    eventually(lambda: widgets()["state"] == "absent", SECONDS, "nobody has defined it")
    assert picker.has_said("the cluster does not have an optional resource; it is used when it comes", kind)
    file = tmp_path / "widgets.yaml"
    file.write_text(yaml.safe_dump(CRD))
    team.cluster.install_crds(file)
    eventually(lambda: widgets().get("reason") == "forbidden", LONG, "it is there, and the Role does not have it")
    assert widgets()["error"].startswith(f'forbidden: watch widgets.{GROUP} in namespace "{team.namespace}": ')

    def put(name):
        team.cluster.admin.create({"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name, "namespace": team.namespace},
                                   "spec": {"size": 1}})
    put("one")
    role = team.object("Role")
    team.cluster.admin.merge(role, {"rules": [*role["rules"], {"apiGroups": [GROUP], "resources": ["widgets"], "verbs": ["list", "watch"]}]})
    eventually(lambda: widgets()["state"] == "followed" and widgets()["objects"] == 1, LONG, "followed once it may")
    assert picker.is_serving("readiness")
    team.cluster.admin.delete(CRD)
    eventually(lambda: widgets()["objects"] == 0 or widgets()["state"] == "stale", LONG, "its objects go with the kind")
    eventually(lambda: not team.cluster.admin.list("apiextensions.k8s.io/v1", "CustomResourceDefinition",
                                                   fieldSelector=f"metadata.name=widgets.{GROUP}"), LONG, "the definition is gone")
    team.cluster.install_crds(file)
    put("one"), put("two")
    eventually(lambda: widgets()["state"] == "followed" and widgets()["objects"] == 2, LONG, "followed again")
