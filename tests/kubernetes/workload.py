"""What tests of a picker at work share: engines that are pods of a namespace, and the picker as it is shipped."""
import contextlib
import itertools
import json
import pathlib
import socket

import httpx
import yaml

import shipped
from data_plane import Envoy, Picker
from harness import PENSTOCK, ROOT, Exposition, Program, eventually, free_port

MANIFESTS = (ROOT / "deploy/kubernetes/gateway/penstock.yaml").read_text()
LABELS = {"app": "llama"}
CHAT = "/v1/chat/completions"
SECONDS = 60  # for what takes milliseconds: a machine of two cores may be busy


def port_free_on(addresses):
    """One port that is free on all of them."""
    for _ in range(200):
        port = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for address in addresses:
                stack.enter_context(socket.socket()).bind((address, port))
            return port
    raise RuntimeError("no free port")


class Workload:
    """A namespace, simulated engines that are its pods, and programs that end with the test."""
    numbers = itertools.count(1)

    def __init__(self, cluster, folder, namespace=None, engine_flags=("--time-scale", "0")):
        self.cluster, self.folder, self.engine_flags = cluster, folder, engine_flags
        self.namespace = namespace or f"team-{next(self.numbers)}"
        self.addresses = [f"127.0.1.{n}" for n in range(1, 9)]
        self.port, self.other_port = port_free_on(self.addresses), port_free_on(self.addresses)
        self.programs, self.pods, self.engines = [], {}, {}
        self.http = httpx.Client(timeout=SECONDS, trust_env=False, verify=False)
        cluster.create_namespace(self.namespace)

    def engine(self, index, port=None):
        """A simulated engine at an address of its own."""
        address, port = self.addresses[index], port or self.port
        program = Program(self.folder / f"engine-{index}-{port}.log", "sim", "engine", "--host", address, "--port", port,
                          "--model", "sim-model", *self.engine_flags, binary=PENSTOCK)
        self.programs.append(program)
        self.engines[index, port] = program
        with program.stopped_on_failure():
            program.wait_for_http(f"http://{address}:{port}/health", SECONDS)

    def pod(self, index, labels=LABELS, ready=True):
        if (index, self.port) not in self.engines:
            self.engine(index)
        self.pods[index] = self.cluster.ready_pod(self.namespace, f"engine-{index}", self.addresses[index], labels, ready=ready)
        return self.pods[index]

    def state(self, index, port=None):
        return self.http.get(f"http://{self.addresses[index]}:{port or self.port}/sim/state").json()

    def requests(self, index, port=None):
        """Inference requests that an engine has received."""
        return self.state(index, port)["requests"]

    def ask(self, envoy, number=0, **headers):
        # Prompts that share nothing, so that no engine is the one that holds the prefix.
        body = {"model": "sim-model", "max_tokens": 1, "messages": [{"role": "user", "content": f"{number} " * 40}]}
        answer = self.http.post(envoy.url + CHAT, json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def serve(self, envoy, indices, others=(), port=None):
        """Requests, each of which must be answered, until each of these engines has had one; the others have none."""
        before = {i: self.requests(i, port) for i in [*indices, *others]}
        missing = set(indices)
        for number in range(300):
            self.ask(envoy, number)
            missing -= {i for i in missing if self.requests(i, port) > before[i]}
            if not missing and number >= 5:
                break
        assert not missing, f"engines {missing} have had no request"
        assert all(self.requests(i, port) == before[i] for i in others)

    def apply(self, kind, name, spec, group="llm-d.ai"):
        thing = {"apiVersion": f"{group}/v1alpha2", "kind": kind, "metadata": {"name": name, "namespace": self.namespace},
                 "spec": {"poolRef": {"name": self.pool["metadata"]["name"], "group": "inference.networking.k8s.io", "kind": "InferencePool"}, **spec}}
        return self.cluster.admin.apply(thing)

    def stop(self):
        for program in reversed(self.programs):
            program.stop()
        self.http.close()


class ShippedPicker(Exposition):
    """`penstock epp` as the Deployment runs it; only ports, addresses and files are this machine's. Its account is in a
    kubeconfig, or in `mounted`, a MountedAccount."""
    is_serving = Picker.is_serving
    admin = Picker.admin

    def __init__(self, folder, cluster, namespace, objects, *more, ready=True, kubeconfig=None, mounted=None):
        folder.mkdir(parents=True, exist_ok=True)
        deployment = next(o for o in objects if o["kind"] == "Deployment")
        config = next(o for o in objects if o["kind"] == "ConfigMap")
        flags = shipped.flags(deployment)
        file = folder / pathlib.Path(flags["config-file"]).name
        file.write_text(config["data"][file.name])
        self.port, self.health_port, self.metrics_port = free_port(), free_port(), free_port()
        flags |= {"config-file": file, "grpc-port": self.port, "grpc-health-port": self.health_port, "metrics-port": self.metrics_port,
                  "metrics-endpoint-auth": "false", "bind-address": "127.0.0.1", "secure-serving": "false", "drain-timeout": "0s"}
        account = shipped.pod_spec(deployment)["serviceAccountName"]
        if mounted:
            command, environment = mounted.command, {**mounted.environment}
        else:
            kubeconfig = kubeconfig or cluster.kubeconfig(cluster.token_of(namespace, account), f"picker-{self.port}", namespace)
            command, environment = (), {"KUBECONFIG": str(kubeconfig)}
        environment |= {"NAMESPACE": namespace, "POD_NAME": f"{deployment['metadata']['name']}-0-0"}
        binary, *arguments = [*command, PENSTOCK, "epp", *[f"--{k}={v}" for k, v in flags.items()], *more]
        self.program = Program(folder / f"picker-{self.port}.log", *arguments, env=environment, binary=binary)
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/metrics", SECONDS)
            if ready:
                eventually(lambda: self.is_serving("readiness"), SECONDS, "the picker is ready")

    def endpoints(self):
        return self.metric_sum("llm_d_epp_ready_endpoints")

    def cluster_state(self):
        return httpx.get(f"{self.admin}/readyz", timeout=10).json()["kubernetes"]

    def known(self):
        """What it says of the cluster: of the pool, and of each resource."""
        state = self.cluster_state()
        return state["pool"], {each["resource"]: each for each in state["resources"]}

    def has_said(self, message, *words):
        """Whether a line of its log has that message, and these words in its fields."""
        return any(all(w in json.dumps(line) for w in words) for line in self.program.log_lines(message))

    def wait_for_endpoints(self, count, seconds=SECONDS):
        eventually(lambda: self.endpoints() == count, seconds, f"{count} endpoints")


class Team(Workload):
    """With the objects of deploy/kubernetes/gateway/, or those that `objects(team)` makes."""

    def __init__(self, cluster, folder, objects=None):
        super().__init__(cluster, folder)
        self.objects = objects(self) if objects else self.manifests()
        for each in self.objects:
            if cluster.admin.serves(each["apiVersion"], each["kind"]):
                cluster.admin.apply(each)
        self.pool = next((o for o in self.objects if o["kind"] == "InferencePool"), None)

    def manifests(self):
        text = MANIFESTS.replace("namespace: inference", f"namespace: {self.namespace}").replace("number: 8000", f"number: {self.port}")
        return list(yaml.safe_load_all(text))

    def object(self, kind):
        return next(o for o in self.objects if o["kind"] == kind)

    def picker(self, *more, **keywords):
        picker = ShippedPicker(self.folder / f"picker-{len(self.programs)}", self.cluster, self.namespace, self.objects, *more, **keywords)
        self.programs.append(picker.program)
        return picker

    def envoy(self, picker):
        envoy = Envoy(self.folder / "envoy", "fail-close.yaml", picker.port, picker.health_port)
        self.programs.append(envoy.program)
        eventually(envoy.picker_is_healthy, SECONDS, "Envoy finds the picker healthy")
        return envoy
