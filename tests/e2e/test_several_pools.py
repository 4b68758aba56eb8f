"""`penstock epp --all-pools`: several InferencePools of a cluster in one picker, as they come and go."""
import socket

import httpx
import pytest

from data_plane import Envoy
from fleet_picker import FAILED_PRECONDITION, NOT_FOUND, api, asked_at, fleet, put_pod, put_pool  # noqa: F401
from harness import eventually, free_port
from kubernetes_api import CONFIG_MAP, OBJECTIVE, POOL, REWRITE
from picker_streams import chat_body, pick

RANDOM = "plugins: [{type: random-picker}]\n"


@pytest.fixture
def two(api):
    put_pool(api, "llama")
    put_pool(api, "qwen")
    put_pod(api, "l", "127.0.0.2", "llama")
    put_pod(api, "q", "127.0.0.3", "qwen")
    return dict(llama={"127.0.0.2:8000"}, qwen={"127.0.0.3:8000"})


LLAMA, QWEN = "127.0.0.2:8000", "127.0.0.3:8000"


def test_a_stream_finds_its_pool_by_field_or_service_and_never_by_guess(api, fleet, two):
    picker = fleet()
    picker.has_pools(**two)
    eventually(picker.is_serving, what="serving")
    assert picker.asked("models/llama") == LLAMA
    assert picker.asked("qwen") == QWEN
    assert picker.asked(authority="llama-epp.models.svc.cluster.local:9002") == LLAMA
    assert picker.asked(authority="outbound_.9002_._.qwen-epp.models.svc.cluster.local") == QWEN
    assert picker.asked("models/other") == NOT_FOUND
    assert picker.asked(authority="other-epp.models.svc:9002") == NOT_FOUND
    assert picker.asked() == FAILED_PRECONDITION
    put_pool(api, "qwen", service="llama-epp")
    eventually(lambda: picker.asked(authority="llama-epp.models.svc:9002") == FAILED_PRECONDITION, what="two pools of one Service")
    for reason in ("unknown", "ambiguous", "unnamed"):
        assert picker.metric_sum("penstock_extproc_unassigned_streams_total", reason=reason) >= 1
    # Each pool's series are its own.
    for pool in ("models/llama", "models/qwen"):
        assert picker.metric_sum("llm_d_epp_request_total", inference_pool=pool) >= 1


def test_each_pool_has_its_own_rules_and_name_in_health(api, fleet, two):
    picker = fleet()
    picker.has_pools(**two)
    api.put_rewrite("to-b", "a", "b", pool="qwen")
    api.put_objective("high", 7, pool="llama")

    def rewritten(pool):
        picker.asked(pool, body=chat_body(model="a"))
        return b'"b"' in picker.forwarded
    eventually(lambda: rewritten("qwen"), what="the rewrite of qwen")
    assert not rewritten("llama")
    for kind, name in ((REWRITE, "to-b"), (OBJECTIVE, "high")):
        eventually(lambda: any(c["type"] == "Accepted" and c["status"] == "True"
                               for c in api.objects[kind][name].get("status", {}).get("conditions", [])), what="Accepted")
    eventually(lambda: picker.is_serving("models/llama") and picker.is_serving("models/qwen"), what="each pool serves")
    assert not picker.is_serving("models/none")
    put_pool(api, "empty", config="missing")
    eventually(lambda: picker.config_of("empty") and picker.config_of("empty")["state"] == "none", what="a pool without configuration")
    assert not picker.is_serving("models/empty") and picker.is_serving()


def test_pools_come_go_after_a_while_and_come_back(api, fleet, two):
    picker = fleet("--pool-linger", "1h")
    picker.has_pools(**two)
    put_pool(api, "new")
    put_pod(api, "n", "127.0.0.4", "new")
    picker.has_pools(**two, new={"127.0.0.4:8000"})
    assert picker.asked("new") == "127.0.0.4:8000"
    api.delete(POOL, "new")
    eventually(lambda: picker.config_of("new")["deleted"], what="the deletion is seen")
    put_pod(api, "n2", "127.0.0.5", "new")
    picker.has_pools(**two, new={"127.0.0.4:8000", "127.0.0.5:8000"})
    assert picker.asked("new") in {"127.0.0.4:8000", "127.0.0.5:8000"}
    put_pool(api, "new", port=9000)
    picker.has_pools(**two, new={"127.0.0.4:9000", "127.0.0.5:9000"})
    assert not picker.config_of("new")["deleted"]


def test_a_deleted_pool_leaves_nothing_behind_and_finishes_its_streams(api, fleet, two):
    picker = fleet("--pool-linger", "0s")
    picker.has_pools(**two)
    picker.asked("qwen")
    with picker.connect() as connection:
        stream = connection.open(headers=[("x-penstock-pool", "qwen")])
        answer, _ = pick(stream)
        assert answer.destination == QWEN
        api.delete(POOL, "qwen")
        eventually(lambda: picker.asked("qwen") == NOT_FOUND, what="no new streams")
        assert "models/qwen" in picker.pools()  # for the stream that is open
        stream.cancel()
        picker.has_pools(llama=two["llama"])
    assert "models/qwen" not in picker.metrics_text()
    assert picker.config_of("qwen") is None
    assert picker.asked("llama") == LLAMA
    put_pool(api, "qwen")
    picker.has_pools(**two)
    assert picker.asked("qwen") == QWEN


def test_a_configuration_by_reference_is_followed_and_a_bad_one_leaves_the_last_good_one(api, fleet, two):
    api.put(CONFIG_MAP, "mine", data={"picker.yaml": RANDOM})
    put_pool(api, "qwen", config="mine/picker.yaml")
    picker = fleet()
    picker.has_pools(**two)

    def effective():
        text = httpx.get(f"{picker.admin}/debug/config", timeout=5).text
        return text.split("pool models/qwen", 1)[1]
    assert "random-picker" in effective() and "prefix-cache-scorer" not in effective()
    assert picker.config_of("qwen")["state"] == "current" and "mine" in picker.config_of("qwen")["config"]
    assert picker.config_of("llama")["config"] == "process"
    api.put(CONFIG_MAP, "mine", data={"picker.yaml": RANDOM + "- wrong"})
    eventually(lambda: picker.config_of("qwen")["state"] == "former", what="the bad one is refused")
    assert "random-picker" in effective() and picker.asked("qwen") == QWEN
    assert picker.metric_sum("penstock_pool_config_current", inference_pool="models/qwen") == 0
    assert picker.metric_sum("penstock_pool_config_loads_total", inference_pool="models/qwen", result="error") == 1
    eventually(lambda: any(e["involvedObject"]["name"] == "qwen" and e["reason"] == "BadConfiguration"
                           for e in list(api.objects["events"].values())), what="an Event")
    api.put(CONFIG_MAP, "mine", data={"picker.yaml": "plugins: [{type: queue-scorer}]\n"})
    eventually(lambda: "queue-scorer" in effective(), what="the new one is taken")
    assert picker.metric_sum("penstock_pool_config_current", inference_pool="models/qwen") == 1
    api.delete(CONFIG_MAP, "mine")
    eventually(lambda: "does not exist" in picker.config_of("qwen").get("error", ""), what="the loss is said")
    assert picker.asked("qwen") == QWEN
    put_pool(api, "qwen")
    eventually(lambda: "prefix-cache-scorer" in effective(), what="the process's configuration")


def test_a_pool_whose_first_configuration_is_bad_does_not_serve_until_it_is_good(api, fleet, two):
    put_pool(api, "qwen", config="mine")
    api.put(CONFIG_MAP, "mine", data={"a": "dataLayer: {discovery: {pluginRef: x}}"})
    picker = fleet()
    picker.has_pools(llama=two["llama"])
    eventually(lambda: "endpoints of several pools come from the cluster" in picker.config_of("qwen").get("error", ""), what="refused")
    assert picker.asked("qwen") == NOT_FOUND
    eventually(picker.is_serving, what="the process serves what it can")
    api.put(CONFIG_MAP, "mine", data={"a": RANDOM})
    picker.has_pools(**two)
    assert picker.asked("qwen") == QWEN


def test_a_selector_chooses_pools_and_namespaces_are_told_apart(api, fleet, two):
    put_pool(api, "llama", labels={"team": "a"})
    picker = fleet("--pool-selector", "team=a", "--pool-linger", "0s", all_pools=False)
    picker.has_pools(llama=two["llama"])
    put_pool(api, "qwen", labels={"team": "a"})
    picker.has_pools(**two)
    put_pool(api, "llama", labels={"team": "b"})
    picker.has_pools(qwen=two["qwen"])

    put_pool(api, "llama", namespace="other")
    put_pod(api, "o", "127.0.0.9", "llama", namespace="other")
    everywhere = fleet("--all-namespaces")
    wanted = {"models/llama": {LLAMA}, "models/qwen": {QWEN}, "other/llama": {"127.0.0.9:8000"}}
    eventually(lambda: everywhere.pools() == wanted, what="the pools of both namespaces")
    assert everywhere.asked("other/llama") == "127.0.0.9:8000"
    assert everywhere.asked("llama") == FAILED_PRECONDITION
    assert everywhere.asked(authority="llama-epp.other.svc:9002") == "127.0.0.9:8000"


def test_a_port_of_its_own_is_listened_on_as_long_as_a_pool_names_it(api, fleet, two):
    port = free_port()
    picker = fleet("--pool-ports", str(port))
    picker.has_pools(**two)
    put_pool(api, "qwen", picker_port=port)
    eventually(lambda: asked_at(port) == QWEN, what="a pool's own port")
    assert picker.asked() == FAILED_PRECONDITION
    put_pool(api, "qwen")
    eventually(lambda: asked_at(port) is None, what="the port is closed")


def test_a_port_that_somebody_else_has_is_listened_on_once_it_is_free(api, fleet, two):
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        picker = fleet("--pool-ports", str(port))
        picker.has_pools(**two)
        put_pool(api, "qwen", picker_port=port)
        told = "the port of a pool can't be listened on, it is tried again"
        eventually(lambda: picker.program.log_lines(told), what="the log says so")
    eventually(lambda: asked_at(port) == QWEN, what="a pool's own port")
    assert len(picker.program.log_lines(told)) == 1


ROUTES = """            - name: {name}
              domains: ["{name}.test"]
              routes:
              - match: {{ prefix: "/" }}
                route: {{ cluster: picked_endpoint, timeout: 0s }}
                typed_per_filter_config:
                  envoy.filters.http.ext_proc:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                    overrides:
                      grpc_service:
                        envoy_grpc: {service}
{more}"""
ALL = """            - name: all
              domains: ["*"]
"""


def test_one_envoy_routes_to_two_pools_of_one_picker(start, api, fleet):
    engines = {name: start.engines(1, model=name) for name in ("llama", "qwen")}
    for name in engines:
        put_pool(api, name, port=engines[name].ports[0])
        put_pod(api, name, "127.0.0.1", name)
    picker = fleet("--health-checking")
    picker.has_pools(**{name: {f"127.0.0.1:{engines[name].ports[0]}"} for name in engines})
    eventually(picker.is_serving, what="serving")
    routes = ROUTES.format(name="llama", service="{ cluster_name: picker, authority: 'llama-epp.models.svc.cluster.local:9002' }", more="")
    routes += ROUTES.format(name="qwen", service="{ cluster_name: picker }", more="""\
                        initial_metadata: [{ key: x-penstock-pool, value: models/qwen }]
""")
    envoy = start._keep(Envoy(picker.folder, "fail-close.yaml", picker.port, picker.health_port, changes=[(ALL, routes + ALL)]))
    eventually(envoy.picker_is_healthy, what="Envoy sees the picker")
    for name in engines:
        for _ in range(3):
            answer = envoy.post("/v1/completions", {"model": name, "prompt": "hello", "max_tokens": 2}, headers={"host": f"{name}.test"})
            assert answer.status_code == 200 and answer.json()["model"] == name
    assert envoy.post("/v1/completions", {"model": "llama", "prompt": "hello"}).status_code == 503  # names no pool
    for name in engines:
        assert picker.metric_sum("llm_d_epp_request_total", inference_pool=f"models/{name}") == 3
