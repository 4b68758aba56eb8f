"""Endpoints that fail requests, sleep or drain: who gets none, for how long, and what says so."""
import contextlib
import json
import re
import subprocess
import threading
import time

import httpx
import pytest

from harness import PENSTOCK, eventually

CHAT = "/v1/chat/completions"


def body(text="hello", **more):
    return {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more}


def settings_of(folder, engines, outlier, more="", name="settings.yaml"):
    path = folder / name
    urls = ", ".join(f"'{url}'" for url in engines.urls)
    path.write_text("listeners: [{address: ':0'}]\n"
                    f"pools:\n- name: p\n  discovery: {{static: [{urls}]}}\n  outlierDetection: {outlier}\n{more}")
    return path


def health(program):
    """The endpoints page, by the port in each endpoint's address."""
    pools = httpx.get(f"{program.admin}/debug/endpoints", timeout=5).json()["pools"]
    return {int(one["address"].rsplit(":", 1)[1]): one for pool in pools.values() for one in pool["endpoints"]}


def state_of(program, engines, index):
    return health(program)[engines.ports[index]]["state"]


def ask_until(gateway, condition, what, **more):
    """Sends requests, each with a prompt of its own, until `condition` holds; the statuses."""
    statuses = []

    def asked():
        statuses.append(gateway.post(CHAT, body(f"{what} {len(statuses)} " * 30, **more)).status_code)
        return condition()

    eventually(asked, 30, what)
    return statuses


def ejections(program, reason):
    return program.metric_sum("penstock_endpoint_ejections_total", reason=reason)


def test_an_engine_that_answers_5xx_is_ejected_tried_again_and_comes_back(start, tmp_path):
    engines = start.engines(2)
    gateway = start.gateway("--settings", settings_of(tmp_path, engines, "{baseEjection: 1s, maxEjection: 2s}"))
    engines.fault(0, status=500)
    ask_until(gateway, lambda: ejections(gateway, "status") == 1, "the failing engine is ejected")
    page = health(gateway)[engines.ports[0]]
    assert page["reason"] == "status"
    shown = subprocess.run([PENSTOCK, "explain", "--admin", gateway.admin, "--body", "-"], input=json.dumps(body()),
                           capture_output=True, text=True, timeout=60).stdout
    assert re.search(rf"not healthy\n  \S+{engines.ports[0]} +(ejected|half_open) \(status\)", shown), shown
    # It goes on failing: its trials fail, nobody else meets it.
    ask_until(gateway, lambda: ejections(gateway, "status") >= 3, "trials fail")
    engines.fault(0)
    ask_until(gateway, lambda: state_of(gateway, engines, 0) == "healthy", "it is back")
    assert gateway.metric_sum("penstock_endpoint_returns_total") == 1
    served = engines.requests()[0]
    ask_until(gateway, lambda: engines.requests()[0] > served, "it serves again")
    told = [line for line in gateway.program.log_lines() if line["msg"] in
            ("endpoint ejected", "endpoint is tried again", "endpoint is back")]
    assert told[0]["msg"] == "endpoint ejected"
    assert told[-1]["msg"] == "endpoint is back"
    assert all(line["endpoint"] == page["endpoint"] for line in told)


def test_an_engine_whose_streams_break_off_is_ejected(start, tmp_path):
    engines = start.engines(2, decode_ms=1)
    gateway = start.gateway("--settings", settings_of(tmp_path, engines, "{baseEjection: 1m}"))
    engines.fault(1, reset_after_bytes=1500)
    for i in range(60):
        with contextlib.suppress(httpx.HTTPError):
            gateway.post(CHAT, body(f"stream {i} " * 30, stream=True, max_tokens=50, ignore_eos=True))
        if ejections(gateway, "reset"):
            break
    assert state_of(gateway, engines, 1) == "ejected"
    for i in range(5):
        answer = gateway.post(CHAT, body(f"after {i} " * 30, stream=True, max_tokens=50, ignore_eos=True),
                              headers={"x-request-id": f"after-{i}"})
        assert answer.text.rstrip().endswith("data: [DONE]")
    assert gateway.decision("after-0")["left_out"] == {"ejected": 1}


def test_an_engine_that_hangs_is_found_by_its_silence_and_its_requests_are_not_cut(start, tmp_path):
    engines = start.engines(2)
    gateway = start.gateway("--settings", settings_of(tmp_path, engines, "{firstTokenStall: 2s, baseEjection: 1m}"))
    engines.fault(0, hang=True)
    waiting, began = [], []

    def wait_there():
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(gateway.url + CHAT, json=body(f"waits {len(waiting)} " * 30, stream=True), timeout=60)

    def one_more():
        # Whoever waits too long is found when the next one is decided.
        if not waiting or time.monotonic() - began[-1] > 0.2:
            waiting.append(threading.Thread(target=wait_there, daemon=True))
            began.append(time.monotonic())
            waiting[-1].start()
        return state_of(gateway, engines, 0) == "ejected"

    eventually(one_more, 60, "the silent engine is ejected")
    # Nobody cut what waits there.
    assert engines.state(0)["in_flight"] >= 3
    assert engines.state(0)["aborted"] == 0
    assert gateway.post(CHAT, body("elsewhere")).status_code == 200


def test_a_pool_that_fails_as_a_whole_is_not_ejected_as_a_whole(start, tmp_path):
    engines = start.engines(3)
    gateway = start.gateway("--settings", settings_of(tmp_path, engines, "{baseEjection: 1m, maxEjectedPercent: 40}"))
    for i in range(3):
        engines.fault(i, status=500)
    ask_until(gateway, lambda: gateway.metric_sum("penstock_endpoint_ejections_refused_total") > 0, "the floor holds")
    states = [one["state"] for one in health(gateway).values()]
    assert sorted(states) == ["ejected", "healthy", "healthy"]
    assert gateway.metric_sum("penstock_pool_endpoints", state="ejected") == 1
    assert gateway.metric_sum("penstock_pool_endpoints", state="healthy") == 2


def test_switched_off_a_failing_engine_keeps_its_share(start, tmp_path):
    engines = start.engines(2)
    gateway = start.gateway("--settings", settings_of(tmp_path, engines, "{enabled: false}"))
    engines.fault(0, status=500)
    statuses = ask_until(gateway, lambda: engines.requests()[0] >= 8, "it is asked again and again")
    assert statuses.count(500) >= 8
    assert gateway.metric_sum("penstock_endpoint_ejections_total") == 0


@pytest.mark.parametrize("metric", [True, False], ids=["by its metric", "by the probe"])
def test_a_sleeping_engine_gets_no_request_until_it_is_woken(start, tmp_path, metric):
    engines = start.engines(2)
    if not metric:
        for i in range(2):
            engines.fault(i, metrics_drop=["vllm:engine_sleep_state"])
    settings = settings_of(tmp_path, engines, "{}", "" if metric else "  metrics: {sleepProbe: true}\n")
    gateway = start.gateway("--settings", settings)
    assert httpx.post(f"{engines.urls[0]}/sleep").status_code == 200
    eventually(lambda: health(gateway)[engines.ports[0]].get("asleep"), what="the gateway knows")
    before = engines.requests()[0]
    for i in range(10):
        assert gateway.post(CHAT, body(f"request {i} " * 30), headers={"x-request-id": f"s-{i}"}).status_code == 200
    assert engines.requests()[0] == before
    assert gateway.decision("s-0")["left_out"] == {"asleep": 1}
    assert gateway.metric_sum("penstock_pool_endpoints", state="asleep") == 1
    assert httpx.post(f"{engines.urls[1]}/sleep").status_code == 200
    eventually(lambda: health(gateway)[engines.ports[1]].get("asleep"), what="the gateway knows of the other one")
    answer = gateway.post(CHAT, body("nobody is awake"))
    assert answer.status_code == 503
    assert "sleeps" in answer.json()["error"]["message"]
    for url in engines.urls:
        assert httpx.post(f"{url}/wake_up").status_code == 200
    eventually(lambda: not any(one.get("asleep") for one in health(gateway).values()), what="the gateway knows that both are awake")
    ask_until(gateway, lambda: engines.requests()[0] > before, "the woken engine serves")


SESSIONS = """apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: session-affinity-filter
  parameters: {strategy: session_id}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: session-affinity-filter}, {pluginRef: queue-scorer}]
"""


def test_a_draining_engine_keeps_its_sessions_and_gets_no_other_work(start, tmp_path):
    engines = start.engines(2)
    endpoints = tmp_path / "endpoints.yaml"

    def write(draining):
        new = tmp_path / "new.yaml"
        new.write_text("endpoints:\n" + "".join(
            f'- {{name: e{i}, address: "127.0.0.1", port: {port}, draining: {str(i == draining).lower()}}}\n'
            for i, port in enumerate(engines.ports)))
        new.rename(endpoints)

    write(None)
    config = tmp_path / "picker.yaml"
    config.write_text(SESSIONS)
    gateway = start.gateway("--allow-experimental-plugins", "--endpoints-file", endpoints, "--config-file", config)

    def served_by(session, number):
        request_id = f"{session}-{number}"
        answer = gateway.post(CHAT, body(session), headers={"x-session-id": session, "x-request-id": request_id})
        assert answer.status_code == 200
        return gateway.decision(request_id)["endpoint"].rsplit("/", 1)[1]

    homes = {f"s{i}": served_by(f"s{i}", 0) for i in range(20)}
    drained = next(iter(homes.values()))
    other = "e1" if drained == "e0" else "e0"
    write(int(drained[1]))
    eventually(lambda: health(gateway)[engines.ports[int(drained[1])]].get("draining"), what="the file is read")
    told = eventually(lambda: gateway.program.log_lines("endpoint drains, it gets requests of its sessions only"), what="the log says so")
    assert [line["endpoint"] for line in told] == [f"default/{drained}"]
    for session, home in homes.items():
        assert served_by(session, 1) == home
    for i in range(20):
        assert served_by(f"new{i}", 0) == other
    first = next(iter(homes))
    assert gateway.decision(f"{first}-1")["picked_as"] == "session"
    # Gone is gone: the session finds a new home.
    endpoints.write_text(f'endpoints:\n- {{name: {other}, address: "127.0.0.1", port: {engines.ports[int(other[1])]}}}\n')
    eventually(lambda: len(health(gateway)) == 1, what="the file is read again")
    assert served_by(first, 2) == other


def test_behind_envoy_an_engine_that_answers_5xx_is_ejected_where_it_is_asked_for(start, tmp_path):
    engines = start.engines(2)
    settings = tmp_path / "settings.yaml"
    settings.write_text("pools:\n- name: pool\n  outlierDetection: {baseEjection: 1s, maxEjection: 1s}\n")
    picker = start.picker(engines.ports, "--outlier-detection", "--settings", settings)
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    engines.fault(0, status=502)
    ask_until(envoy, lambda: ejections(picker, "status") >= 2, "it is ejected, and its trial fails")
    engines.fault(0)
    ask_until(envoy, lambda: picker.metric_sum("penstock_endpoint_returns_total") == 1, "it is back")
    assert state_of(picker, engines, 0) == "healthy"


def test_behind_envoy_nothing_is_left_out_unless_it_is_asked_for(start):
    engines = start.engines(2)
    picker = start.picker(engines.ports)
    envoy = start.envoy("fail-close.yaml", picker.port, picker.health_port)
    eventually(envoy.picker_is_healthy, what="Envoy finds the picker healthy")
    engines.fault(0, status=502)
    statuses = ask_until(envoy, lambda: engines.requests()[0] >= 8, "it is asked again and again")
    assert statuses.count(502) >= 8
    assert picker.metric_sum("penstock_endpoint_failures_total") == 0
