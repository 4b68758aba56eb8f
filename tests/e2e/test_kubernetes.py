"""`penstock epp` follows a cluster: a stand-in for its API server tells what a real one was recorded to."""
import json

import httpx
import pytest

from data_plane import Picker
from harness import Program, eventually, free_port
from kubernetes_api import OBJECTIVE, POD, POOL, REWRITE, KubernetesApi
from picker_streams import chat_body, pick


class ClusterPicker(Picker):
    def __init__(self, folder, api, *flags, pool="pool", env=None, auth=False):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.tls, self.api = folder, False, api
        self.env = {"NAMESPACE": api.namespace, **(env or {})}
        self.port, self.health_port, self.metrics_port = free_port(), free_port(), free_port()
        self.arguments = ["epp", *(["--pool-name", pool] if pool else []), "--kubeconfig", api.kubeconfig(folder),
                          "--grpc-port", self.port, "--grpc-health-port", self.health_port, "--metrics-port", self.metrics_port,
                          "--secure-serving=false", "--bind-address", "127.0.0.1", "--tracing=false", "--drain-timeout", "0s",
                          f"--metrics-endpoint-auth={str(auth).lower()}", *flags]
        self.program = Program(folder / "picker.log", *self.arguments, env=self.env)
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/healthz")

    def endpoints(self):
        """{id: address} of the pool."""
        pools = httpx.get(f"{self.admin}/debug/endpoints", timeout=5).json()["pools"]
        return {one["endpoint"]: one["address"] for pool in pools.values() for one in pool["endpoints"]}

    def has(self, **addresses):
        """Waits for exactly these endpoints: pod_rank=address."""
        wanted = {f"{self.api.namespace}/{name.replace('_', '-')}": address for name, address in addresses.items()}
        eventually(lambda: self.endpoints() == wanted, what=f"endpoints {wanted}, last {self.endpoints()}")

    def cluster(self):
        return httpx.get(f"{self.admin}/readyz", timeout=5).json()["kubernetes"]

    def resource(self, name):
        return next(one for one in self.cluster()["resources"] if one["resource"] == name)

    def destination(self, body=None, **headers):
        with self.connect() as connection:
            stream = connection.open()
            answer, forwarded = pick(stream, body, **headers)
            stream.cancel()
            return answer.destination, forwarded


@pytest.fixture
def api():
    api = KubernetesApi()
    yield api
    api.stop()


@pytest.fixture
def cluster(start, tmp_path, api):
    """cluster(*flags): a picker of that API server."""
    def begin(*flags, **keywords):
        return start._keep(ClusterPicker(tmp_path / f"picker-{len(start.parts)}", api, *flags, **keywords))
    return begin


RANK0 = {"a_rank_0": "127.0.0.2:8000", "b_rank_0": "127.0.0.3:8000"}


@pytest.fixture
def picker(api, cluster):
    """A picker with the endpoints RANK0."""
    api.put_pool()
    api.put_pod("a", "127.0.0.2")
    api.put_pod("b", "127.0.0.3")
    picker = cluster()
    picker.has(**RANK0)
    return picker


def test_a_pod_serves_once_it_is_ready_and_until_it_is_not(api, picker):
    eventually(picker.is_serving, what="serving")
    assert picker.destination()[0] in RANK0.values()
    api.put_pod("c", "127.0.0.4", ready=False)
    api.put_pod("d", "127.0.0.5")
    picker.has(**RANK0, d_rank_0="127.0.0.5:8000")  # c has been told before d, and is not there
    api.put_pod("c", "127.0.0.4")
    picker.has(**RANK0, d_rank_0="127.0.0.5:8000", c_rank_0="127.0.0.4:8000")
    api.put_pod("c", "127.0.0.4", ready=False)
    api.delete(POD, "d")
    picker.has(**RANK0)
    api.put_pod("b", "127.0.0.3", deleting=True)
    picker.has(a_rank_0="127.0.0.2:8000")
    assert picker.destination()[0] == "127.0.0.2:8000"


def test_a_pod_that_comes_again_under_its_name_has_its_new_address(api, picker):
    api.put_pod("a", "127.0.0.9")
    picker.has(a_rank_0="127.0.0.9:8000", b_rank_0="127.0.0.3:8000")
    api.put_pod("a", "", ready=True)  # evicted
    picker.has(b_rank_0="127.0.0.3:8000")


def test_a_relabelled_pod_leaves_and_comes_back(api, picker):
    api.put_pod("b", "127.0.0.3", labels={"app": "other"})
    picker.has(a_rank_0="127.0.0.2:8000")
    api.put_pod("b", "127.0.0.3")
    picker.has(**RANK0)


def test_every_target_port_is_a_rank_and_an_annotation_says_which_are_active(api, picker):
    api.put_pool(ports=(8000, 8001))
    picker.has(**RANK0, a_rank_1="127.0.0.2:8001", b_rank_1="127.0.0.3:8001")
    api.put_pod("b", "127.0.0.3", annotations={"llm-d.ai/active-ports": "8001"})
    picker.has(a_rank_0="127.0.0.2:8000", a_rank_1="127.0.0.2:8001", b_rank_1="127.0.0.3:8001")
    api.put_pool(ports=(9000,))
    picker.has(a_rank_0="127.0.0.2:9000")
    api.put_pod("b", "fd00::7")
    picker.has(a_rank_0="127.0.0.2:9000", b_rank_0="[fd00::7]:9000")


def test_another_selector_means_other_pods(api, picker):
    api.put_pod("x", "127.0.0.7", labels={"app": "new"})
    api.put_pool(labels={"app": "new"})
    picker.has(x_rank_0="127.0.0.7:8000")


def test_a_deleted_pool_serves_on_and_says_so(api, picker):
    api.delete(POOL, "pool")
    eventually(lambda: picker.cluster()["pool"] == "deleted", what="deletion seen")
    assert picker.endpoints()
    api.put_pod("c", "127.0.0.4")
    picker.has(**RANK0, c_rank_0="127.0.0.4:8000")
    assert picker.is_serving()
    api.put_pool(ports=(8001,))
    picker.has(a_rank_0="127.0.0.2:8001", b_rank_0="127.0.0.3:8001", c_rank_0="127.0.0.4:8001")
    assert picker.cluster()["pool"] == "known"


def test_a_picker_is_not_healthy_before_its_pool_is_known(api, cluster):
    picker = cluster()
    eventually(lambda: picker.resource(POOL)["state"] == "followed", what="an empty list")
    assert not picker.is_serving() and picker.cluster()["pool"] == "unknown"
    api.put_pool()
    api.put_pod("a", "127.0.0.2")
    picker.has(a_rank_0="127.0.0.2:8000")
    eventually(picker.is_serving, what="serving")
    eventually(lambda: httpx.get(f"{picker.admin}/readyz", timeout=5).status_code == 200, what="ready")


def test_while_the_api_server_is_away_the_last_picture_serves(api, picker):
    eventually(picker.is_serving, what="serving")
    api.stop()
    eventually(lambda: picker.metric_sum("penstock_kubernetes_synced") == 0, what="stale")
    assert picker.resource(POD)["state"] == "stale"
    assert picker.endpoints() and picker.is_serving()
    assert picker.destination()[0] in RANK0.values()
    api.put_pod("c", "127.0.0.4")
    api.start()
    picker.has(**RANK0, c_rank_0="127.0.0.4:8000")
    eventually(lambda: picker.resource(POD)["state"] == "followed", 30, what="followed again")


def test_a_cut_stream_goes_on_where_it_was(api, picker):
    api.cut()
    api.put_pod("c", "127.0.0.4")
    picker.has(**RANK0, c_rank_0="127.0.0.4:8000")


def test_a_history_that_was_forgotten_is_read_again(api, picker):
    api.delete(POD, "a")
    picker.has(b_rank_0="127.0.0.3:8000")
    api.wake(silent=True)
    api.put_pod("c", "127.0.0.4")
    api.delete(POD, "b")
    api.forget()  # open watches get an ERROR event
    picker.has(c_rank_0="127.0.0.4:8000")
    assert picker.metric_sum("penstock_kubernetes_relists_total", resource=POD, reason="expired") >= 1


def test_without_streaming_lists_pages_are_read(api, cluster):
    api.wake(streaming=False)
    api.put_pool()
    for i in range(300):
        api.put_pod(f"p{i}", f"127.0.1.{i % 250}")
    picker = cluster()
    eventually(lambda: len(picker.endpoints()) == 300, what="all pods")
    assert api.requests["list", POD] >= 2
    api.delete(POD, "p7")
    eventually(lambda: len(picker.endpoints()) == 299, what="the watch goes on")


def test_a_missing_verb_is_named(api, cluster):
    api.put_pool()
    api.forbidden = {("watch", POD), ("watch", OBJECTIVE)}
    picker = cluster()
    eventually(lambda: picker.resource(POD).get("reason") == "forbidden", what="refused")
    assert picker.resource(POD)["error"].startswith('forbidden: watch pods in namespace "models": ')
    lines = picker.program.log_lines("the API server can't be followed, the last good picture stays")
    assert any("watch pods" in line["error"] for line in lines)
    api.wake(forbidden={("watch", OBJECTIVE)})
    api.put_pod("a", "127.0.0.2")
    eventually(lambda: picker.endpoints(), 60, what="endpoints once it may")
    eventually(picker.is_serving, what="serving without what it may not read")


def test_objectives_and_rewrites_are_followed(api, picker):
    def model_of(model):
        return json.loads(picker.destination(chat_body().replace(b"sim-model", model.encode()))[1])["model"]
    api.put_rewrite("old", "small", "large", created="2026-01-01T00:00:00Z")
    eventually(lambda: model_of("small") == "large", what="rewritten")
    api.put_rewrite("new", "small", "huge", created="2026-01-02T00:00:00Z")
    api.put_rewrite("other", "small", "none", pool="another", created="2025-01-01T00:00:00Z")
    api.put_rewrite("marker", "seen", "yes")
    eventually(lambda: model_of("seen") == "yes", what="the last one read")
    assert model_of("small") == "large"  # the oldest counts
    api.delete(REWRITE, "old")
    eventually(lambda: model_of("small") == "huge", what="the next one")
    api.put_objective("urgent", 7)

    def priorities():
        picker.destination(chat_body(), x_llm_d_inference_objective="urgent")
        return picker.metric_sum("llm_d_epp_request_total", priority="7")
    eventually(priorities, what="its priority")


def test_a_cluster_without_the_optional_resources_is_served(api, cluster):
    api.installed -= {OBJECTIVE, REWRITE}
    api.put_pool()
    api.put_pod("a", "127.0.0.2")
    picker = cluster()
    picker.has(a_rank_0="127.0.0.2:8000")
    eventually(lambda: picker.resource(OBJECTIVE)["state"] == "absent", what="absent")
    eventually(picker.is_serving, what="serving without them")
    eventually(lambda: httpx.get(f"{picker.admin}/readyz", timeout=5).status_code == 200, what="ready")


def test_an_object_that_cannot_be_read_keeps_its_last_good_version(api, picker):
    api.put_pool(ports=(70000,))
    api.put_pod("c", "127.0.0.4")
    picker.has(**RANK0, c_rank_0="127.0.0.4:8000")
    eventually(lambda: picker.metric_sum("penstock_kubernetes_unreadable_objects_total", resource=POOL) == 1, what="told")
    assert any("70000" in line["error"] for line in
               picker.program.log_lines("an object can't be read, its last good version stays"))


def test_stand_alone_a_selector_and_ports_are_enough(api, cluster):
    api.installed -= {POOL, OBJECTIVE, REWRITE}
    api.put_pod("a", "127.0.0.2")
    api.put_pod("other", "127.0.0.9", labels={"app": "db"})
    picker = cluster("--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000,8001,8000", pool=None,
                     env={"POD_NAME": "my-epp-7d9f8b6c5d-x2x4z"})
    picker.has(a_rank_0="127.0.0.2:8000", a_rank_1="127.0.0.2:8001")
    eventually(picker.is_serving, what="serving")
    assert "models/my-epp" in httpx.get(f"{picker.admin}/debug/endpoints", timeout=5).text


def test_metrics_and_debug_pages_need_a_token_that_may(api, cluster):
    api.put_pool()
    api.reviews = {"scraper-token": ("scraper", True), "other-token": ("other", False)}
    picker = cluster(auth=True)

    def get(path, token=None):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.get(picker.admin + path, headers=headers, timeout=10).status_code
    for path in ("/metrics", "/debug/endpoints"):
        assert [get(path), get(path, "nobody"), get(path, "other-token"), get(path, "scraper-token")] == [401, 401, 403, 200]
    assert get("/healthz") == 200
    asked = api.requests["create", "tokenreviews"]
    assert get("/metrics", "scraper-token") == 200
    assert api.requests["create", "tokenreviews"] == asked  # it is remembered


def test_of_two_pickers_one_leads_and_hands_over_at_its_end(api, cluster):
    api.put_pool()
    api.put_pod("a", "127.0.0.2")
    pickers = [cluster("--ha-enable-leader-election") for _ in range(2)]
    for picker in pickers:
        picker.has(a_rank_0="127.0.0.2:8000")  # who does not lead knows the pool too

    def leaders():
        return [picker for picker in pickers if picker.is_serving("readiness")]
    eventually(leaders, what="a leader")
    assert len(leaders()) == 1 and all(picker.is_serving("liveness") for picker in pickers)
    first = leaders()[0]
    second = next(picker for picker in pickers if picker is not first)
    assert second.destination()[0] == "127.0.0.2:8000"
    assert list(api.objects["leases"]) == [f"epp-{api.namespace}-pool.llm-d.ai"]
    assert first.program.stop() == 0
    eventually(lambda: second.is_serving("readiness"), what="the other leads")


def test_objects_say_whether_they_are_accepted(api, picker):
    def accepted(kind, name):
        for condition in api.objects[kind][name].get("status", {}).get("conditions", []):
            if condition["type"] == "Accepted":
                return condition["status"], condition["reason"], condition["message"]
        return None
    api.put_objective("good", 1)
    api.put_objective("bad", "urgent")
    api.put_objective("foreign", 1, pool="another")
    api.put_rewrite("rewrite", "small", "large")
    eventually(lambda: accepted(OBJECTIVE, "good") == ("True", "Accepted", ""), what="the objective is accepted")
    eventually(lambda: accepted(REWRITE, "rewrite") == ("True", "Accepted", ""), what="the rewrite is accepted")
    eventually(lambda: accepted(OBJECTIVE, "bad"), what="the bad one has a condition")
    status, reason, message = accepted(OBJECTIVE, "bad")
    assert (status, reason) == ("False", "Invalid") and "spec.priority" in message
    eventually(lambda: api.objects["events"], what="an event")
    event, = api.objects["events"].values()
    assert event["involvedObject"]["name"] == "bad" and event["type"] == "Warning" and "spec.priority" in event["message"]
    assert accepted(OBJECTIVE, "foreign") is None
    writes = api.requests["patch", OBJECTIVE]
    api.put_pod("c", "127.0.0.4")
    picker.has(**RANK0, c_rank_0="127.0.0.4:8000")
    assert api.requests["patch", OBJECTIVE] == writes == 2
