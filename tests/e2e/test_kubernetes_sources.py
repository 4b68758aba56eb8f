"""`penstock epp` tells plugins of objects that it follows in a cluster: what k8s-notification-source names."""
import contextlib
import json
import signal

import httpx
import pytest

from harness import eventually
from kubernetes_api import POD, POOL, Kind, KubernetesApi
from test_kubernetes import ClusterPicker

WIDGET = Kind("example.com", "v1", "widgets", "Widget", True)
SHARE = "llm_d_epp_disaggregatedset_revision_gating_share"
PODS = {"name": "pods", "type": "k8s-notification-source", "parameters": {"version": "v1", "kind": "Pod"}}
WIDGETS = {"name": "widgets", "type": "k8s-notification-source",
           "parameters": {"group": "example.com", "version": "v1", "kind": "Widget"}}
ROLLOUT = {"name": "rollout", "type": "disaggregatedset-rollout-screener",
           "parameters": {"scope": {"labelSelector": "app=vllm"},
                          "revisionGating": {"mode": "sum", "requireRoles": {"values": ["prefill", "decode"]}}}}


def config(*sources):
    return json.dumps({"plugins": [*sources, ROLLOUT, {"type": "random-picker"}]})


def put_worker(api, name, ip, revision, role, **more):
    """A Pod; the pool is of those that decode."""
    api.put_pod(name, ip, labels={"app": "vllm", "role": role, "disaggregatedset.x-k8s.io/revision": revision,
                                  "disaggregatedset.x-k8s.io/role": role}, **more)


class SourcesPicker(ClusterPicker):
    def sources(self):
        """What it says of each source, by its name."""
        return {one["source"]: one for one in self.cluster().get("sources", [])}

    def share(self, revision, **labels):
        with contextlib.suppress(AssertionError):  # of nobody, while no revision is whole
            self.destination()  # shares are told as they are used
        return self.metric_sum(SHARE, revision=revision, **labels)

    def reload(self):
        before = len(self.program.log_lines("reloaded"))
        self.program.signal(signal.SIGHUP)
        eventually(lambda: len(self.program.log_lines("reloaded")) > before, what="a reload")


@pytest.fixture
def api():
    api = KubernetesApi()
    api.put_pool(labels={"app": "vllm", "role": "decode"})
    put_worker(api, "d-old", "127.0.0.2", "old", "decode")
    put_worker(api, "d-new", "127.0.0.3", "new", "decode")
    put_worker(api, "p-old", "127.0.0.4", "old", "prefill")
    yield api
    api.stop()


@pytest.fixture
def begin(start, tmp_path, api):
    """begin(source, …): a picker of that API server whose configuration has these sources."""
    def begin(*sources, flags=(), **keywords):
        file = tmp_path / "picker.json"
        file.write_text(config(*sources))
        picker = SourcesPicker(tmp_path / f"picker-{len(start.parts)}", api, "--config-file", file, "--allow-experimental-plugins",
                               *flags, **keywords)
        picker.file = file
        return start._keep(picker)
    return begin


RANKS = {"d_old_rank_0": "127.0.0.2:8000", "d_new_rank_0": "127.0.0.3:8000"}


def test_plugins_learn_of_pods_that_are_not_the_pools(api, begin):
    picker = begin(PODS)
    picker.has(**RANKS)
    source = eventually(lambda: picker.sources()["v1/Pod in models"], what="the source")
    eventually(lambda: picker.sources()["v1/Pod in models"]["state"] == "followed", what="all pods")
    assert source["resource"] == "pods" and picker.sources()["v1/Pod in models"]["objects"] == 3
    eventually(lambda: picker.share("old") == 1, what="the old revision is whole, the new one is not")
    assert picker.destination()[0] == "127.0.0.2:8000"
    put_worker(api, "p-new", "127.0.0.5", "new", "prefill", ready=False)
    put_worker(api, "p-other", "127.0.0.6", "new", "prefill", namespace="other")
    put_worker(api, "p-marker", "127.0.0.7", "old", "prefill")  # told with it, or later
    eventually(lambda: picker.sources()["v1/Pod in models"]["objects"] == 5, what="both")
    assert picker.share("old") == 1, "neither one that is not ready nor one of another namespace counts"
    put_worker(api, "p-new", "127.0.0.5", "new", "prefill")
    eventually(lambda: picker.share("new") == 0.4, what="two workers of five")
    api.delete(POD, "p-marker")
    eventually(lambda: picker.share("new") == 0.5, what="two of four")
    states = httpx.get(f"{picker.admin}/debug/plugins/state", timeout=5).json()["plugins"]
    assert states["pods"]["state"]["state"] == "followed" and states["pods"]["state"]["bytes"] > 0
    assert picker.metric_sum("penstock_kubernetes_synced", resource="pods", notification_source="v1/Pod in models") == 1


def test_the_last_picture_stays_while_the_server_is_away_and_when_it_forgets(api, begin):
    picker = begin(PODS)
    picker.has(**RANKS)
    eventually(lambda: picker.share("old") == 1, what="the pods are known")
    api.stop()
    eventually(lambda: picker.sources()["v1/Pod in models"]["state"] == "stale", what="stale")
    assert picker.share("old") == 1 and picker.is_serving()
    put_worker(api, "p-new", "127.0.0.5", "new", "prefill")
    api.start()
    eventually(lambda: picker.share("new") == 0.5, 60, what="what happened meanwhile")
    api.wake(silent=True)
    api.delete(POD, "p-old")
    api.forget()  # open watches get an ERROR event
    eventually(lambda: picker.share("new") == 1, 60, what="all is read again")


def test_a_kind_is_followed_wherever_its_objects_are_or_said_to_be_missing(api, begin):
    picker = begin(WIDGETS)
    picker.has(**RANKS)
    eventually(lambda: picker.sources()["example.com/v1/Widget"]["state"] == "absent", what="there is no such kind")
    eventually(lambda: httpx.get(f"{picker.admin}/readyz", timeout=5).status_code == 200, what="ready without it")
    assert any(line["resource"] == "example.com/v1/Widget" for line in
               picker.program.log_lines("the cluster does not have an optional resource; it is used when it comes"))
    api.install(WIDGET)
    api.put("widgets", "one", spec={"size": 1})
    api.put("widgets", "two", spec={"size": 1}, namespace="other")
    picker.file.write_text(config())
    picker.reload()
    eventually(lambda: not picker.sources(), what="a source that is gone is followed no longer")
    picker.file.write_text(config(WIDGETS))
    picker.reload()
    eventually(lambda: picker.sources().get("example.com/v1/Widget", {}).get("objects") == 2, what="of all namespaces")
    assert api.requests["watch", "widgets"] >= 1


def test_a_missing_verb_is_named_and_keeps_nothing_from_serving(api, begin):
    api.install(WIDGET)
    api.forbidden = {("watch", "widgets")}
    mine = {**WIDGETS, "parameters": {**WIDGETS["parameters"], "namespace": "models"}}
    picker = begin(mine)
    picker.has(**RANKS)
    name = "example.com/v1/Widget in models"
    eventually(lambda: picker.sources()[name].get("reason") == "forbidden", what="refused")
    assert picker.sources()[name]["error"].startswith('forbidden: watch widgets.example.com in namespace "models": ')
    assert any("watch widgets.example.com" in line["error"] for line in
               picker.program.log_lines("the API server can't be followed, the last good picture stays"))
    eventually(lambda: httpx.get(f"{picker.admin}/readyz", timeout=5).status_code == 200, what="ready all the same")
    api.put("widgets", "one", spec={"size": 1})
    api.wake(forbidden=set())
    eventually(lambda: picker.sources()[name]["state"] == "followed", 60, what="followed once it may")


def test_a_reload_begins_and_ends_sources(api, begin):
    picker = begin()
    picker.has(**RANKS)
    assert not picker.sources()
    picker.file.write_text(config(PODS))
    picker.reload()
    eventually(lambda: picker.share("old") == 1, what="the new configuration is told")
    watches = api.requests["watch", POD]
    picker.file.write_text(config({**PODS, "name": "others"}))
    picker.reload()
    assert picker.destination()[0] == "127.0.0.2:8000", "a new policy knows at once what is followed"
    assert api.requests["watch", POD] == watches, "by the same watch"
    picker.file.write_text(config())
    picker.reload()
    eventually(lambda: not picker.sources() and not picker.metric_sum("penstock_kubernetes_synced", notification_source="v1/Pod in models"),
               what="nothing is left of it")


def test_pools_share_what_is_equal(api, begin):
    api.put_pool("second", labels={"app": "vllm", "role": "decode"})
    picker = begin(PODS, flags=["--all-pools", "--pool-linger", "0s"], pool=None)
    eventually(lambda: picker.sources().get("v1/Pod in models", {}).get("state") == "followed", what="the source of both pools")
    assert len(picker.sources()) == 1
    for name in ("pool", "second"):
        api.delete(POOL, name)
    eventually(lambda: not picker.sources(), what="with the pools their source goes")


def test_without_a_cluster_a_source_without_a_path_says_so(start, tmp_path):
    file = tmp_path / "picker.json"
    file.write_text(config(PODS))
    gateway = start.gateway("--allow-experimental-plugins", "--config-file", file, model_servers=["http://127.0.0.1:1"], ready=False)
    text = "plugin 'pods' tells of no v1/Pod: it has no path, and no Kubernetes API is asked"
    eventually(lambda: gateway.program.log_lines(text), what="the warning")
