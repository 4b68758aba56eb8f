"""What the picker's account may do by the Role that is shipped, on the stand-in and on a real API server."""
import pytest
import yaml

from control_plane import ApiError
from harness import ROOT

READ = [("v1", "Pod"), ("inference.networking.k8s.io/v1", "InferencePool"), ("llm-d.ai/v1alpha2", "InferenceObjective"),
        ("llm-d.ai/v1alpha2", "InferenceModelRewrite"), ("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective"),
        ("inference.networking.x-k8s.io/v1alpha2", "InferenceModelRewrite")]


@pytest.fixture(scope="module")
def account(cluster):
    """The picker's, of deploy/kubernetes/gateway/."""
    cluster.create_namespace("inference")
    for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/gateway/penstock.yaml").read_text()):
        cluster.admin.apply(each)
    return cluster.api(cluster.token_of("inference", "llama-epp"))


@pytest.mark.parametrize("api_version, kind", READ)
def test_it_lists_and_watches_what_it_reads_in_its_namespace_only(account, api_version, kind):
    account.list(api_version, kind, "inference")
    assert account.watches(api_version, kind, "inference")
    for namespace in ("default", None):
        with pytest.raises(ApiError) as refused:
            account.list(api_version, kind, namespace)
        assert refused.value.status == 403 and refused.value.reason == "Forbidden"


@pytest.mark.parametrize("group", ["llm-d.ai", "inference.networking.x-k8s.io"])
def test_it_writes_conditions_and_not_the_objects(account, cluster, group):
    thing = {"apiVersion": f"{group}/v1alpha2", "kind": "InferenceObjective", "metadata": {"name": "a", "namespace": "inference"}}
    cluster.admin.apply({**thing, "spec": {"priority": 1, "poolRef": {"name": "llama"}}})
    condition = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    written = account.apply({**thing, "status": {"conditions": [condition]}}, "status")
    assert written["status"]["conditions"] == [condition]
    with pytest.raises(ApiError) as refused:
        account.apply({**thing, "spec": {"priority": 9, "poolRef": {"name": "llama"}}})
    assert refused.value.status == 403
    cluster.admin.delete(thing)


def test_it_makes_events(account):
    about = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "name": "llama", "namespace": "inference"}
    account.create({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "llama.1", "namespace": "inference"}, "type": "Warning",
                    "involvedObject": about, "reason": "InvalidConfiguration", "message": "no such plugin"})


def test_it_may_nothing_else(account):
    for verb, group, resource in [("get", "", "secrets"), ("list", "", "secrets"), ("create", "", "pods"), ("delete", "", "pods"),
                                  ("get", "", "services"), ("get", "", "pods"), ("update", "inference.networking.k8s.io", "inferencepools"),
                                  ("update", "inference.networking.k8s.io", "inferencepools/status"),
                                  ("patch", "llm-d.ai", "inferenceobjectives"), ("delete", "llm-d.ai", "inferenceobjectives"),
                                  ("create", "", "pods/exec"), ("get", "coordination.k8s.io", "leases"),
                                  ("create", "authentication.k8s.io", "tokenreviews"), ("patch", "apps", "deployments")]:
        assert not account.may(verb, group, resource, "inference"), f"{verb} {resource}"


def test_a_wrong_token_is_nobody(cluster):
    with pytest.raises(ApiError) as refused:
        cluster.api("wrong").list("v1", "Pod", "inference")
    assert refused.value.status == 401
