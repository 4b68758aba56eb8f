"""What shared state costs: the same gateway alone, and with another replica and a Redis beside it."""
import json
import shutil
import time

from bench.lib import common


class Redis:
    """redis-server on the load core, without files."""

    def __init__(self, work):
        binary = shutil.which("redis-server")
        if not binary:
            raise RuntimeError("no redis-server: make setup")
        self.port = common.free_port()
        self.process = common.Process([binary, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", work],
                                      core=common.LOAD_CORE)
        common.wait_for_port(self.port, self.process.process)


def start(work, name, workers, store, core):
    """A gateway of one loop; its port, admin port and process."""
    port, admin = common.free_ports(2)
    settings = work / f"{name}.yaml"
    settings.write_text(json.dumps({
        "listeners": [{"address": f"127.0.0.1:{port}"}], "admin": {"address": f"127.0.0.1:{admin}"}, "loops": 1,
        "telemetry": {"accessLog": False},
        "pools": [{"name": "pool", "discovery": {"static": [f"http://127.0.0.1:{w}" for w in workers]}}],
        **({"sharedState": {"url": f"redis://127.0.0.1:{store}", "replica": name}} if store else {})}))
    process = common.Process([common.PENSTOCK, "serve", "--settings", settings], core=core, log=work / f"{name}.log")
    common.wait_for_port(port, process.process)
    return port, admin, process


def metrics(admin):
    text = common.http_get(f"http://127.0.0.1:{admin}/metrics").decode()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and line[0] != "#"}


def moved(before, after, name):
    return sum(value - before.get(series, 0) for series, value in after.items() if series.startswith(name))


def idle_cpu(process, seconds):
    before = process.cpu_seconds()
    time.sleep(seconds)
    return (process.cpu_seconds() - before) / seconds


def run(bench, rounds):
    """Samples by (kind, key): kinds are "alone" and "shared"."""
    samples = {}
    work = common.WORK / "sharing"
    work.mkdir(parents=True, exist_ok=True)

    def add(kind, key, value):
        samples.setdefault((kind, key), []).append(value)

    redis = Redis(work)
    with redis.process:
        for _ in range(rounds):
            for kind, store in (("alone", 0), ("shared", redis.port)):
                port, admin, process = start(work, kind, bench.workers, store, common.PROXY_CORE)
                _, _, other = start(work, "other", bench.workers, store, common.LOAD_CORE)
                with process, other:
                    time.sleep(1)
                    add(kind, "idle", 100 * idle_cpu(process, 2))
                    for size in ("1k", "16k"):
                        before = metrics(admin)
                        result = bench.measure(port, process, size, 64)
                        after = metrics(admin)
                        add(kind, "cpu_" + size, result["cpu_us"])
                        add(kind, "bad", result["errors"] + result["not_200"])
                        if store:
                            requests = moved(before, after, "llm_d_epp_request_total")
                            add(kind, "bytes_" + size, moved(before, after, "penstock_shared_state_bytes_total") / max(requests, 1))
    return samples
