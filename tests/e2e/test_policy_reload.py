"""A picker configuration is switched, refused and taken back while requests go on; none of them fails."""
import json
import signal
import subprocess

import httpx
import pytest

from harness import PENSTOCK, eventually
from load import Load

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: {scorer}
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: {scorer}, weight: {weight}}}
  - pluginRef: max-score-picker
"""


class Served:
    """`penstock serve`: its own door."""

    def __init__(self, start, folder, engines):
        self.config = folder / "picker.yaml"
        self.write("queue-scorer", 1)
        self.program_of = start.gateway("--config-file", self.config, model_servers=engines.urls)
        self.url = self.program_of.url

    def write(self, scorer, weight):
        self.config.write_text(CONFIG.format(scorer=scorer, weight=weight))

    def spoil(self):
        self.config.write_text(CONFIG.format(scorer="no-such-scorer", weight=1))


class Picked(Served):
    """`penstock epp` behind an Envoy."""

    def __init__(self, start, folder, engines):
        self.program_of = start.picker(engines.ports)
        self.config = self.program_of.folder / "epp.yaml"
        self.shipped = self.config.read_text()
        self.envoy = start.envoy("fail-close.yaml", self.program_of.port, self.program_of.health_port)
        self.url = self.envoy.url

    def write(self, scorer, weight):
        self.config.write_text(self.shipped.replace("- type: queue-scorer", f"- type: {scorer}").replace(
            "{pluginRef: queue-scorer, weight: 2}", f"{{pluginRef: {scorer}, weight: {weight}}}"))

    def spoil(self):
        self.write("no-such-scorer", 1)


@pytest.mark.parametrize("door", [Served, Picked])
def test_a_policy_is_switched_refused_and_taken_back_under_load_without_a_failed_request(start, tmp_path, door):
    engines = start.engines(2, decode_ms=1)
    served = door(start, tmp_path, engines)
    process = served.program_of

    def newest():
        decisions = httpx.get(f"{process.admin}/debug/decisions?limit=1", timeout=10).json()
        return decisions[0]["policy_epoch"] if decisions else 0

    def reloads():
        return len(process.program.log_lines("reloaded"))

    def reload():
        before = reloads()
        process.program.signal(signal.SIGHUP)
        eventually(lambda: reloads() > before, 30, "a reload")

    def roll_back():
        return subprocess.run([PENSTOCK, "rollback", "--admin", process.admin], capture_output=True, text=True, timeout=60)

    refused = roll_back()
    assert (refused.returncode, "has had no other configuration" in refused.stderr) == (1, True)

    load = Load(served.url + "/v1/chat/completions",
                {"model": "sim-model", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]})
    load.more_than(20)
    assert newest() == 1

    served.write("running-requests-size-scorer", 3)
    reload()
    eventually(lambda: newest() == 2, 30, "the new policy decides")
    load.more_than(20)

    served.spoil()
    reload()
    failed = process.program.log_lines("reload failed, the former state stays")
    assert "no-such-scorer" in json.dumps(failed[-1])
    load.more_than(20)
    assert newest() == 2

    taken_back = roll_back()
    assert (taken_back.returncode, "as policy epoch 3" in taken_back.stdout) == (0, True), taken_back
    eventually(lambda: newest() == 3, 30, "the former policy decides")
    load.more_than(20)

    served.write("running-requests-size-scorer", 4)
    reload()
    eventually(lambda: newest() == 4, 30, "what the file says decides")
    load.more_than(20)
    assert load.stop() == {200}
    decisions = httpx.get(f"{process.admin}/debug/decisions?limit=1000", timeout=10).json()
    assert len(decisions) > 100
    assert {decision["policy_epoch"] for decision in decisions} <= {1, 2, 3, 4}
