"""One machine of a cluster, as far as the shipped objects need one: a kubelet that runs the picker's pods as processes,
and a gateway that finds the picker of a pool. With the controllers of ControlPlane(controllers=True), which make pods of
Deployments and replace them."""
import contextlib
import json
import signal
import threading
import time

import httpx
import yaml

import extproc_messages as messages
import shipped
from control_plane import ADMIN_TOKEN, NODE, ApiError
from data_plane import SHIPPED, Envoy, envoy_binary
from grpc_client import Connection
from harness import PENSTOCK, Exposition, Program, eventually, free_port

PERIOD_SECONDS = 0.05


class Loop:
    """Calls step() until stop(). An API server that is away is none of its troubles; what else goes wrong ends it and is
    in `errors`."""

    def __init__(self, plane):
        self.plane, self.api, self.errors = plane, plane.api(ADMIN_TOKEN), []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.ended.wait(PERIOD_SECONDS):
            try:
                self.step()
            except httpx.HTTPError:
                pass
            except Exception as error:  # noqa: BLE001: for the test, which sees no other thread
                if not isinstance(error, ApiError) or error.status not in (404, 409, 429, 500, 503):
                    self.errors.append(error)
                    return

    def stop(self):
        self.ended.set()
        self.thread.join(30)


class PickerPod(Exposition):
    """A pod of the picker's Deployment, and the process that is its container."""

    def __init__(self, pod, address, token):
        self.name, self.uid, self.address = pod["metadata"]["name"], pod["metadata"]["uid"], address
        self.spec = pod["spec"]
        self.container = next(c for c in self.spec["containers"] if c["name"] == "epp")
        self.headers = {"authorization": f"Bearer {token}"}
        self.program, self.ready, self.ending = None, False, False

    @property
    def admin(self):
        return f"http://{self.address}:{shipped.ports(self.container)['metrics']}"

    def get(self, path):
        return httpx.get(self.admin + path, headers=self.headers, timeout=10)

    def endpoints(self):
        return self.metric_sum("llm_d_epp_ready_endpoints")

    def probed(self):
        """The container's readiness probe."""
        probe = self.container["readinessProbe"]["grpc"]
        try:
            with Connection(probe["port"], host=self.address) as connection:
                answer, status = connection.call(messages.HEALTH + "Check", messages.data(1, probe["service"]))
                return status == 0 and messages.decode(answer).get(1) == [1]
        except OSError:
            return False


class Kubelet(Loop):
    """Runs every pod that has a container `epp`, each at an address of its own, until it is deleted: SIGTERM, and when
    the process has ended the pod goes. Its token is bound to the pod and comes from a file, its volumes are ConfigMaps."""

    def __init__(self, plane, namespace, folder):
        super().__init__(plane)
        self.namespace, self.folder = namespace, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.pods, self.started = {}, 0
        self.thread.start()

    def ready(self):
        """Those that a Service leads to."""
        return [pod for pod in list(self.pods.values()) if pod.ready and not pod.ending]

    def step(self):
        there = {pod["metadata"]["uid"]: pod for pod in self.api.list("v1", "Pod", self.namespace)
                 if any(c["name"] == "epp" for c in pod["spec"]["containers"])}
        for uid, pod in there.items():
            running = self.pods.get(uid)
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod, running)
            elif running is None:
                self._begin(pod)
            elif running.program.process.poll() is not None:
                raise AssertionError(f"{running.name} ended by itself:\n{running.program.log_text()[-3000:]}")
            elif (ready := running.probed()) != running.ready:
                self.plane.set_pod_status(pod, running.address, ready, api=self.api)
                running.ready = ready

    def _begin(self, pod):
        meta = pod["metadata"]
        if not pod["spec"].get("nodeName"):
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"], "namespace": self.namespace},
                       "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}
            answer = self.api.http.post(self.api.path("v1", "Pod", self.namespace, meta["name"], "binding"), json=binding)
            if answer.status_code >= 300:
                raise ApiError(answer)
        folder = self.folder / meta["name"]
        folder.mkdir(exist_ok=True)
        token = folder / "token"
        token.write_text(self.plane.token_of(self.namespace, pod["spec"]["serviceAccountName"], pod=pod))
        config = self.plane.kubeconfig(None, f"pod-{meta['uid']}", self.namespace, tokenFile=str(token))
        self.started += 1
        running = PickerPod(pod, f"127.0.2.{self.started}", ADMIN_TOKEN)
        places = {}
        for volume in pod["spec"]["volumes"]:
            if "configMap" not in volume:
                continue
            data = self.api.get("v1", "ConfigMap", self.namespace, volume["configMap"]["name"])["data"]
            place = folder / volume["name"]
            place.mkdir(exist_ok=True)
            for name, text in data.items():
                (place / name).write_text(text)
            places |= {m["mountPath"]: place for m in running.container["volumeMounts"] if m["name"] == volume["name"]}
        arguments = []
        for argument in running.container["args"]:
            for mount, place in places.items():
                argument = argument.replace(f"={mount}/", f"={place}/")
            arguments.append(argument)
        fields = {"metadata.namespace": self.namespace, "metadata.name": meta["name"]}
        environment = {e["name"]: e["value"] if "value" in e else fields[e["valueFrom"]["fieldRef"]["fieldPath"]]
                       for e in running.container["env"]}
        running.program = Program(folder / "log", "epp", *arguments, f"--bind-address={running.address}", binary=PENSTOCK,
                                  env={**environment, "KUBECONFIG": str(config)})
        self.pods[meta["uid"]] = running
        self.plane.set_pod_status(pod, running.address, ready=False, api=self.api)

    def _end(self, pod, running):
        if running and not running.ending:
            running.ending = True
            running.program.signal(signal.SIGTERM)
        if running and running.program.process.poll() is None:
            return
        if running and running.program.process.returncode != 0:
            self.errors.append(AssertionError(f"{running.name} ended with {running.program.process.returncode}"))
        self.api.delete(pod)
        self.pods.pop(pod["metadata"]["uid"], None)

    def stop(self):
        super().stop()
        for pod in self.pods.values():
            pod.program.process.kill()
            pod.program.stop()


class Gateway(Loop):
    """Envoy, led to a pool's picker as a gateway would: the pool names a Service, its selector pods, and those that are
    ready are the picker's endpoints. It speaks TLS to them and does not ask for their health itself."""

    def __init__(self, plane, kubelet, namespace, pool, folder):
        super().__init__(plane)
        folder.mkdir(parents=True, exist_ok=True)
        self.kubelet, self.namespace, self.pool, self.file = kubelet, namespace, pool, folder / "endpoints.json"
        self.version, self.led_to = 0, None
        self._tell([])
        self.envoy = FollowingEnvoy(folder, self.file)
        self.url = self.envoy.url
        self.thread.start()

    def step(self):
        reference = self.api.get("inference.networking.k8s.io/v1", "InferencePool", self.namespace, self.pool)["spec"]["endpointPickerRef"]
        service = self.api.get("v1", "Service", self.namespace, reference["name"])["spec"]
        target = next(p["targetPort"] for p in service["ports"] if p["port"] == reference["port"]["number"])
        found = []
        for pod in self.api.list("v1", "Pod", self.namespace, labelSelector=",".join(f"{k}={v}" for k, v in service["selector"].items())):
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or []}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
                port = next(p["containerPort"] for c in pod["spec"]["containers"] for p in c["ports"] if p["name"] == target)
                found.append((pod["status"]["podIP"], port))
        self._tell(sorted(found))

    def _tell(self, found):
        if found == self.led_to:
            return
        self.version += 1
        endpoints = [{"endpoint": {"address": {"socket_address": {"address": a, "port_value": p}}}} for a, p in found]
        resource = {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "picker",
                    "endpoints": [{"lb_endpoints": endpoints}]}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"version_info": str(self.version), "resources": [resource]}))
        new.rename(self.file)
        self.led_to = found

    def stop(self):
        super().stop()
        self.envoy.program.stop()


class FollowingEnvoy(Envoy):
    """By deploy/envoy/fail-close.yaml, but for where its pickers come from."""

    def __init__(self, folder, endpoints):
        self.port, self.admin_port = free_port(), free_port()
        config = yaml.safe_load((SHIPPED / "fail-close.yaml").read_text())
        config["node"] = {"id": "gateway", "cluster": "gateway"}
        config["admin"]["address"]["socket_address"]["port_value"] = self.admin_port
        listener, = config["static_resources"]["listeners"]
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": self.port}
        picker = next(c for c in config["static_resources"]["clusters"] if c["name"] == "picker")
        for name in ("load_assignment", "health_checks"):
            del picker[name]
        picker |= {
            "type": "EDS",
            "eds_cluster_config": {"eds_config": {"resource_api_version": "V3", "path_config_source": {
                "path": str(endpoints), "watched_directory": {"path": str(endpoints.parent)}}}},
            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"}}}
        file = folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(config))
        self.program = Program(folder / "envoy.log", "-c", file, "--disable-hot-restart", "--concurrency", 1, "-l", "warn",
                               binary=envoy_binary())
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/ready")


class Clients:
    """Clients that ask all the time: short requests, and event streams that last a while. `failures` says what was not
    a whole answer."""

    def __init__(self, url, short=3, long=2):
        self.url, self.failures, self.answered = url, [], 0
        self.ended, self.lock, self.number = threading.Event(), threading.Lock(), 0
        self.threads = [threading.Thread(target=self._run, args=(stream,), daemon=True) for stream in [False] * short + [True] * long]
        for thread in self.threads:
            thread.start()

    def _run(self, stream):
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not self.ended.is_set():
                with self.lock:
                    self.number += 1
                    number = self.number
                # Prompts that share nothing, so that no engine is the one that holds the prefix.
                body = {"model": "sim-model", "max_tokens": 120 if stream else 2, "stream": stream, "ignore_eos": True,
                        "messages": [{"role": "user", "content": f"{number} " * 40}]}
                with contextlib.suppress(httpx.HTTPError):
                    answer = client.post(self.url, json=body)
                    if answer.status_code == 200 and (not stream or answer.text.rstrip().endswith("data: [DONE]")):
                        self.answered += 1
                        continue
                    self.failures.append(f"{answer.status_code}: {answer.text[-200:]}")
                    continue
                self.failures.append("cut")

    def wait_for(self, count):
        """Until so many more have been answered."""
        goal = self.answered + count
        eventually(lambda: self.answered >= goal or self.failures, 60, f"{count} more answers")

    def go_on_for(self, seconds):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.failures:
            self.wait_for(1)

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(90)
