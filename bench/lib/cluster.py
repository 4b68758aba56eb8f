"""The endpoint picker in a cluster (`kubernetes`): how fast its picture of 1,000 pods follows, and what it costs."""
import json
import pathlib
import sys
import time

from bench.lib import common

sys.path.insert(0, str(common.ROOT / "tests" / "e2e"))

from kubernetes_api import POD, KubernetesApi  # noqa: E402

PODS = 1000
CHANGES = 100
RESYNCS = 5
PAGE = common.ROOT / "tests" / "vectors" / "vllm-0.32.0" / "metrics" / "after_load.txt"  # 80 KB
TARGETS = {"resync_cpu_ms": 100, "apply_ms": 20, "apply_100_ms": 20, "idle_core_pct": 1, "scrape_core_pct": 15, "rss_mb": 60}
# What real pods have besides, so that an object has its usual 8 KB.
ENVIRONMENT = [{"name": f"VARIABLE_{i}", "value": "with a value of some length, as engines have"} for i in range(80)]


class Cluster:
    """An API server with one pool of PODS pods, and a release `penstock epp` on one core that follows it."""

    def __init__(self, work, port, interval):
        self.api = KubernetesApi()
        self.api.put_pool(ports=(port,))
        for i in range(PODS):
            self.put(i)
        grpc, health, self.admin = common.free_ports(3)
        self.process = common.Process(
            [common.PENSTOCK, "epp", "--pool-name", "pool", "--kubeconfig", self.api.kubeconfig(work), "--grpc-port", grpc,
             "--grpc-health-port", health, "--metrics-port", self.admin, "--metrics-endpoint-auth=false", "--bind-address",
             "127.0.0.1", "--secure-serving=false", "--tracing=false", "--drain-timeout", "0s",
             "--refresh-metrics-interval", interval],
            core=common.PROXY_CORE, env={"NAMESPACE": self.api.namespace}, log=work / "picker.log")
        common.wait_for_port(self.admin, self.process.process)
        self.wait_until(lambda: self.value("penstock_kubernetes_objects", resource="pods") == PODS and self.applied()["+Inf"])
        time.sleep(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stop()
        self.api.stop()

    def put(self, i, ready=True):
        self.api.put(POD, f"engine-{i}", labels={"app": "vllm", "revision": "one"},
                     spec={"containers": [{"name": "engine", "image": "engine", "env": ENVIRONMENT}], "nodeName": "node"},
                     status={"phase": "Running", "podIP": address(i), "podIPs": [{"ip": address(i)}],
                             "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]})

    def wait_until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self.process.process.poll() is not None:
                raise RuntimeError("the picker does not follow")
            time.sleep(0.02)

    def samples(self, family):
        """[(labels, value)] of the metrics page."""
        out = []
        for line in common.http_get(f"http://127.0.0.1:{self.admin}/metrics", timeout=30).decode().splitlines():
            name, _, rest = line.partition("{")
            if name == family:
                labels, _, value = rest.rpartition("} ")
                out.append((dict(part.split("=") for part in labels.replace('"', "").split(",")), float(value)))
        return out

    def value(self, family, **labels):
        return sum(value for has, value in self.samples(family) if labels.items() <= has.items())

    def applied(self):
        """{upper bound in seconds: changes so far that took no longer}"""
        return {labels["le"]: value for labels, value in self.samples("penstock_kubernetes_apply_seconds_bucket")}

    def slowest_ms(self, changes, what):
        """Upper bound of what all changes took that `what` makes, in so many publications."""
        before = self.applied()
        what()
        self.wait_until(lambda: self.applied()["+Inf"] - before["+Inf"] >= changes)
        after = self.applied()
        new = {bound: after[bound] - before[bound] for bound in after}
        return min(float(bound) for bound in new if new[bound] == new["+Inf"]) * 1e3

    def told(self):
        """Pods that lists and watches brought so far."""
        return self.value("penstock_kubernetes_watch_events_total", resource="pods", type="added")

    def core_pct(self, seconds):
        before = cpu_ms(self.process.pid)
        time.sleep(seconds)
        return (cpu_ms(self.process.pid) - before) / seconds / 10


def address(i):
    return f"127.1.{i // 255}.{i % 255 + 1}"


def cpu_ms(pid):
    """CPU of all threads, by the scheduler's own clock."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()) / 1e6


def kubernetes(args):
    """1,000 pods of a cluster: reading them again, a change, idle, scraping, memory."""
    work = common.WORK / "kubernetes"
    work.mkdir(parents=True, exist_ok=True)
    port = common.free_port()
    samples = {}

    def add(key, value):
        samples.setdefault(key, []).append(value)

    for _ in range(args.rounds):
        with Cluster(work, port, "1h") as cluster:
            add("idle_core_pct", cluster.core_pct(max(args.seconds, 3)))
            add("rss_idle_mb", cluster.process.rss_mib())
            for _ in range(RESYNCS):
                told = cluster.told()
                watches, before = cluster.api.requests["watch", POD], cpu_ms(cluster.process.pid)
                cluster.api.forget()
                cluster.api.wake()
                # Not by its metrics page, which has 1,000 endpoints on it and costs more than a look at a list.
                cluster.wait_until(lambda: cluster.api.requests["watch", POD] > watches)
                time.sleep(1)
                add("resync_cpu_ms", cpu_ms(cluster.process.pid) - before)
                cluster.wait_until(lambda: cluster.told() == told + PODS)
            ready = [True] * PODS

            def flip(i):
                ready[i] = not ready[i]
                cluster.put(i, ready[i])

            def one_by_one():
                for i in range(CHANGES):
                    flip(i)
                    time.sleep(0.03)  # longer than changes are gathered

            add("apply_ms", cluster.slowest_ms(CHANGES, one_by_one))
            add("apply_100_ms", cluster.slowest_ms(1, lambda: [flip(i) for i in range(CHANGES)]))
        engines = common.Process([common.RELEASE / "bench" / "mock_engine", "-n", PODS, "-p", PAGE, port], core=common.LOAD_CORE)
        with engines, Cluster(work, port, "1s") as cluster:
            add("scrape_core_pct", cluster.core_pct(max(args.seconds, 5)))
            add("rss_mb", cluster.process.rss_mib())
            fresh = json.loads(common.http_get(f"http://127.0.0.1:{cluster.admin}/debug/endpoints", timeout=30))
            count = sum(len(pool["endpoints"]) for pool in fresh["pools"].values())
            if count != PODS:
                raise RuntimeError(f"{count} endpoints")
    keys = {key: common.median(values) for key, values in samples.items()}
    common.table(["figure", "value", "target", ""],
                 [[k, f"{v:.2f}", f"≤ {TARGETS[k]}" if k in TARGETS else "",
                   common.verdict(v, TARGETS[k]) if k in TARGETS else ""] for k, v in keys.items()])
    return keys
