"""The charts' objects on a real API server with RBAC: whether it takes them, and what the picker's account may do."""
import re

import pytest
import yaml

from charts import EachKeyOnce, example_values, of_other_projects
from control_plane import ADMIN_TOKEN, ApiError
from harness import ROOT

CHART = "penstock-epp"


@pytest.fixture(scope="module")
def team(plane):
    plane.create_namespace("team")
    return "team"


@pytest.fixture(scope="module")
def installed(plane, helm):
    """The example with everything, really applied, and the picker as its account."""
    plane.create_namespace("installed")
    for each in helm.example("everything", namespace="installed"):
        plane.admin.apply(each)
    return plane.api(plane.token_of("installed", "llama-epp"))


@pytest.mark.parametrize("chart, file", example_values(), ids=lambda v: getattr(v, "stem", v))
def test_the_server_takes_every_object_of_every_example(plane, helm, team, chart, file):
    for each in helm.template(chart, "--values", file):
        plane.admin.apply(each, dry_run=True)


@pytest.mark.parametrize("kind, values", of_other_projects())
def test_the_server_takes_objects_of_other_projects_however_they_are_asked_for(plane, helm, team, kind, values):
    made, = [each for each in helm.template(CHART, "--set-json", values) if each["kind"] == kind]
    plane.admin.apply(made, dry_run=True)


@pytest.mark.parametrize("variant", ["gateway", "standalone"])
def test_the_server_takes_every_raw_manifest(plane, variant):
    plane.create_namespace("inference")
    for each in yaml.safe_load_all((ROOT / "deploy/kubernetes" / variant / "penstock.yaml").read_text()):
        plane.admin.apply(each, dry_run=True)


def test_the_server_takes_every_object_of_the_docs(plane):
    plane.create_namespace("inference")
    text = (ROOT / "docs/kubernetes.md").read_text()
    blocks = re.findall(r"(?ms)^kubectl .*? -f - <<EOF\n(.*?)^EOF$", text) + re.findall(r"(?ms)^```\n(apiVersion: .*?)^```$", text)
    objects = [each for block in blocks for each in yaml.load_all(block, EachKeyOnce)]
    assert {each["kind"] for each in objects} == {"InferencePool", "ConfigMap", "Service"}
    for each in objects:
        each["metadata"]["namespace"] = "inference"
        plane.admin.apply(each, dry_run=True)


@pytest.mark.parametrize("name, says", [
    ("minimal", "endpoints of InferencePool llama in namespace team."),
    ("several-pools", "endpoints of the InferencePools in namespace team."),
    ("pool-ports", "endpoints of the InferencePools in namespace team."),
    ("pools-everywhere", "endpoints of the InferencePools labelled team=a in all namespaces.")])
def test_the_notes_say_what_is_picked_among(plane, helm, name, says):
    notes = helm.notes(name, plane.kubeconfig(ADMIN_TOKEN, "notes"))
    assert notes.startswith("Penstock picks the " + says)
    if name == "pool-ports":
        assert "\n  endpointPickerRef: {name: llama-epp, port: {number: 9100}}\n" in notes
    selector = '\n  selector: {"app.kubernetes.io/instance":"llama","app.kubernetes.io/name":"penstock-epp"}\n'
    assert (selector in notes) == ("InferencePools" in says and name != "pool-ports")


def test_a_misspelt_field_is_refused(plane, team):
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": team}, "dta": {}}
    with pytest.raises(ApiError):
        plane.admin.apply(thing, dry_run=True)


def test_the_pickers_account_asks_who_scrapes(installed):
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "nobody's"}}
    answer = installed.http.post("/apis/authentication.k8s.io/v1/tokenreviews", json=review)
    assert answer.status_code == 201 and not answer.json()["status"].get("authenticated")


def test_the_scrapers_token_lets_it_get_metrics_and_nothing_else(plane, installed):
    token = plane.token_of("installed", "llama-epp-metrics-reader")
    who = installed.http.post("/apis/authentication.k8s.io/v1/tokenreviews", json={
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}).json()["status"]["user"]
    assert who["username"] == "system:serviceaccount:installed:llama-epp-metrics-reader"

    def may(verb, path):
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": who["username"], "groups": who["groups"], "nonResourceAttributes": {"path": path, "verb": verb}}}
        return installed.http.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review).json()["status"]["allowed"]
    assert may("get", "/metrics")
    assert not may("get", "/debug/decisions") and not may("post", "/metrics")
    assert not plane.api(token).may("list", "", "pods", "installed")


def test_a_leader_may_hold_its_lease_and_no_other(plane, helm):
    plane.create_namespace("election")
    for each in helm.example("leader-election", namespace="election"):
        if each["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
            plane.admin.apply(each)
    picker = plane.api(plane.token_of("election", "llama-epp"))

    def lease(name):
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": "election"},
                "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    own = picker.create(lease("epp-election-llama.llm-d.ai"))
    own["spec"]["holderIdentity"] = "b"
    answer = picker.http.put(picker.path("coordination.k8s.io/v1", "Lease", "election", own["metadata"]["name"]), json=own)
    assert answer.status_code == 200
    plane.admin.create(lease("another"))
    with pytest.raises(ApiError) as refused:
        picker.get("coordination.k8s.io/v1", "Lease", "election", "another")
    assert refused.value.status == 403


def objective(**spec):
    return {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective", "metadata": {"name": "a", "namespace": "team"},
            "spec": {"poolRef": {"name": "llama"}, **spec}}


def rewrite(*rules):
    return {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceModelRewrite", "metadata": {"name": "a", "namespace": "team"},
            "spec": {"poolRef": {"name": "llama"}, "rules": list(rules)}}


def test_our_definitions_fill_in_what_is_left_out(plane, team):
    made = plane.admin.apply(objective(priority=-3), dry_run=True)
    assert made["spec"] == {"priority": -3, "poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llama"}}
    made = plane.admin.apply(rewrite({"matches": [{"model": {"value": "a"}}], "targets": [{"modelRewrite": "b"}]}), dry_run=True)
    assert made["spec"]["rules"][0]["matches"] == [{"model": {"type": "Exact", "value": "a"}}]


@pytest.mark.parametrize("wrong, names", [
    (objective(priority="high"), "priority"),
    (objective(priority=2**31), "priority"),
    (objective(poolRef={}), "name"),
    (rewrite({"targets": []}), "targets"),
    (rewrite({"targets": [{"modelRewrite": "b", "weight": 0}]}), "weight"),
    (rewrite({"targets": [{"weight": 1}]}), "modelRewrite"),
    (rewrite({"matches": [{"model": {"type": "Prefix", "value": "a"}}]}), "type"),
    (rewrite({"matches": [{"model": {"value": ""}}]}), "value"),
], ids=range(8))
def test_our_definitions_refuse_what_is_wrong(plane, team, wrong, names):
    with pytest.raises(ApiError) as refused:
        plane.admin.apply(wrong, dry_run=True)
    assert names in str(refused.value)


def test_conditions_are_a_map_by_type(plane, team):
    thing = plane.admin.apply(objective(priority=1))
    condition = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    changed = plane.admin.apply({**{k: thing[k] for k in ("apiVersion", "kind")}, "metadata": {"name": "a", "namespace": team},
                                 "status": {"conditions": [condition]}}, subresource="status")
    assert [c["type"] for c in changed["status"]["conditions"]] == ["Accepted"]
    assert changed["status"]["conditions"][0]["status"] == "True"


def test_pods_are_as_a_kubelet_reports_them(plane, team):
    pod = plane.ready_pod(team, "engine-0", "127.0.0.2", {"app": "llama"})
    assert pod["status"]["podIP"] == "127.0.0.2"
    listed = plane.admin.list("v1", "Pod", team, labelSelector="app=llama")
    assert [p["metadata"]["name"] for p in listed] == ["engine-0"]
    changed = plane.set_pod_status(pod, "127.0.0.2", ready=False)
    assert {c["type"]: c["status"] for c in changed["status"]["conditions"]}["Ready"] == "False"
    plane.admin.delete(pod)
    assert plane.admin.list("v1", "Pod", team, labelSelector="app=llama") == []


def test_the_server_comes_back_with_its_objects(plane, team):
    before = plane.admin.get("v1", "Namespace", None, team)["metadata"]["uid"]
    plane.stop_api_server()
    plane.start_api_server()
    assert plane.admin.get("v1", "Namespace", None, team)["metadata"]["uid"] == before
