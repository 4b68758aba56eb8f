"""The benchmarks by name. Each returns the keys of the last line."""
import contextlib
import json
import re
import subprocess
import time

from bench.lib import common, extproc, fleet, peers

SIZES = {"1k": (1024, 64, 256), "16k": (16 * 1024, 64, 256), "220k": (220 * 1024, 16, 128)}


class Bench:
    """Mock engines on the load core, one proxy at a time on the proxy core."""

    def __init__(self, args):
        self.args = args
        common.WORK.mkdir(parents=True, exist_ok=True)
        self.workers = [common.free_port() for _ in range(4)]
        self.bodies = {}
        for name, (size, _, count) in SIZES.items():
            self.bodies[name] = common.write_bodies(common.WORK / f"body-{name}.jsonl", size, count)
        self.bodies["code16k"] = common.write_bodies(common.WORK / "body-code.jsonl", 16 * 1024, 256, text=common.code)
        self.bodies["stream"] = common.write_bodies(common.WORK / "body-stream.jsonl", 1024, 256, stream=True)

    def __enter__(self):
        self.mock = common.Process([common.RELEASE / "bench" / "mock_engine", ",".join(map(str, self.workers))],
                                   core=common.LOAD_CORE)
        for port in self.workers:
            common.wait_for_port(port, self.mock.process)
        return self

    def __exit__(self, *_):
        self.mock.stop()

    def control(self, query):
        return common.http_get(f"http://127.0.0.1:{self.workers[0]}/control{query}").decode()

    def count(self):
        rows = [line.split() for line in self.control("/count").splitlines()]
        return sum(int(r[1]) for r in rows), sum(int(r[2]) for r in rows)

    def start(self, name, program):
        work = common.WORK / name
        work.mkdir(exist_ok=True)
        port = common.free_port()
        command = peers.COMMANDS[name](program, port, self.workers, work)
        process = common.Process(command, core=common.PROXY_CORE, log=work / "log")
        common.wait_for_port(port, process.process)
        if name in ("vllm-router", "smg"):
            time.sleep(1.5)
        if name.startswith("penstock"):
            time.sleep(0.3)
        return port, process

    def measure(self, port, process, body, connections, shape="?chunks=256&gap_us=0&each=0"):
        self.control(shape)
        common.generate(port, self.bodies[body], connections, 0.3)
        self.count()
        before = process.cpu_seconds()
        result = common.generate(port, self.bodies[body], connections, self.args.seconds)
        cpu = process.cpu_seconds() - before
        engine, other = self.count()
        result["cpu_us"] = cpu * 1e6 / max(engine, 1)
        result["engine_requests"], result["engine_other"] = engine, other
        return result


def ready_ms(workers):
    """From exec to /readyz 200: every engine was scraped once. An error after ten seconds."""
    port, admin = common.free_ports(2)
    servers = [part for p in workers for part in ("--model-server", f"http://127.0.0.1:{p}")]
    began = time.monotonic()
    with common.Process([common.PENSTOCK, "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}",
                         "--loops", "1", *servers], core=common.PROXY_CORE) as process:
        while process.process.poll() is None and time.monotonic() < began + 10:
            with contextlib.suppress(OSError):  # not listening yet, or 503
                common.http_get(f"http://127.0.0.1:{admin}/readyz")
                return (time.monotonic() - began) * 1e3
            time.sleep(0.002)
        ended = process.process.returncode
        raise RuntimeError("penstock serve was not ready within 10 s" if ended is None
                           else f"penstock serve ended with {ended} before it was ready")


def gateway(args):
    """Proxy CPU, throughput and latency beside nginx and the LLM routers."""
    wanted = list(peers.DEBIAN) + list(peers.PYPI) if args.peers == "default" else \
        [p for p in args.peers.split(",") if p and p != "none"]
    if "nginx" not in wanted:
        wanted.insert(0, "nginx")
    programs = {name: peers.obtain(name) for name in wanted}
    names = [n for n in wanted if programs[n]] + ["penstock-rr", "penstock"]
    samples = {}

    def add(name, key, value):
        samples.setdefault((name, key), []).append(value)

    with Bench(args) as bench:
        for _ in range(args.rounds):
            direct = common.generate(bench.workers[0], bench.bodies["1k"], 64, args.seconds)
            add("direct", "rps", direct["rps"])
            add("direct", "p50", common.generate(bench.workers[0], bench.bodies["1k"], 1, 1.0)["p50_us"])
            add("penstock", "ready_ms", ready_ms(bench.workers))
            for name in names:
                port, process = bench.start(name, programs.get(name))
                with process:
                    add(name, "rss_start", process.rss_mib())
                    for size, (_, connections, _) in SIZES.items():
                        r = bench.measure(port, process, size, connections)
                        add(name, "cpu_" + size, r["cpu_us"])
                        add(name, "rps_" + size, r["rps"])
                        add(name, "bad", r["errors"] + r["not_200"])
                        # The generator counts only what fell inside its window: compare with room for its edges.
                        add(name, "extra", r["engine_other"])
                    add(name, "cpu_code16k", bench.measure(port, process, "code16k", 64)["cpu_us"])
                    r = bench.measure(port, process, "1k", 1)
                    add(name, "p50", r["p50_us"])
                    r = bench.measure(port, process, "stream", 16, "?chunks=256&gap_us=0&each=1")
                    add(name, "chunk_burst", r["cpu_us"] / 256)
                    r = bench.measure(port, process, "stream", 64, "?chunks=64&gap_us=5000&each=0")
                    add(name, "chunk_paced", r["cpu_us"] / 64)
                    add(name, "rss_peak", process.rss_mib("VmHWM"))

    def m(name, key):
        return common.median(samples[(name, key)])

    rows = []
    for name in names:
        rows.append([name, *(f"{m(name, 'cpu_' + s):.1f}" for s in SIZES), f"{m(name, 'cpu_code16k'):.1f}",
                     *(f"{m(name, 'cpu_' + s) / m('nginx', 'cpu_' + s):.2f}" for s in SIZES),
                     f"{m(name, 'rps_1k'):.0f}", f"{m(name, 'p50') - m('direct', 'p50'):+.0f}",
                     f"{m(name, 'chunk_burst'):.2f}", f"{m(name, 'chunk_paced'):.2f}",
                     f"{m(name, 'rss_start'):.0f}/{m(name, 'rss_peak'):.0f}", f"{sum(samples[(name, 'bad')]):.0f}"])
    common.table(["proxy", "µs 1k", "µs 16k", "µs 220k", "µs code16k", "÷nginx 1k", "16k", "220k", "req/s 1k c64",
                  "added p50 c1", "µs/chunk burst", "paced", "RSS MiB", "bad"], rows)
    print(f"CPU µs a request of the proxy alone; median of {args.rounds} rounds of {args.seconds} s; direct "
          f"{m('direct', 'rps'):.0f} req/s, p50 {m('direct', 'p50'):.0f} µs\n")

    ours = "penstock"
    keys = {
        "cpu_ratio_nginx_1k": m(ours, "cpu_1k") / m("nginx", "cpu_1k"),
        "cpu_ratio_nginx_16k": m(ours, "cpu_16k") / m("nginx", "cpu_16k"),
        "cpu_ratio_nginx_220k": m(ours, "cpu_220k") / m("nginx", "cpu_220k"),
        "chunk_ratio_nginx_paced": m(ours, "chunk_paced") / m("nginx", "chunk_paced"),
        "chunk_ratio_nginx_burst": m(ours, "chunk_burst") / m("nginx", "chunk_burst"),
        "rps_ratio_nginx_1k": m(ours, "rps_1k") / m("nginx", "rps_1k"),
        "added_p50_us_over_nginx": m(ours, "p50") - m("nginx", "p50"),
        "prefix_over_round_robin_1k": m(ours, "cpu_1k") / m("penstock-rr", "cpu_1k"),
        "extra_engine_requests": sum(samples[(ours, "extra")]),
        "rss_start_mib": m(ours, "rss_start"),
        "ready_ms": m(ours, "ready_ms"),
    }
    targets = {"cpu_ratio_nginx_1k": 1.0, "cpu_ratio_nginx_16k": 1.1, "cpu_ratio_nginx_220k": 1.3,
               "chunk_ratio_nginx_paced": 1.0, "chunk_ratio_nginx_burst": 1.2, "added_p50_us_over_nginx": 20,
               "prefix_over_round_robin_1k": 1.2, "extra_engine_requests": 0, "rss_start_mib": 15,
               "ready_ms": 100}
    rows = [[k, f"{keys[k]:.2f}", f"≤ {t}", common.verdict(keys[k], t)] for k, t in targets.items()]
    rows.append(["rps_ratio_nginx_1k", f"{keys['rps_ratio_nginx_1k']:.2f}", "≥ 1.0",
                 "ok" if keys["rps_ratio_nginx_1k"] >= 1 else "MISSED"])
    common.table(["figure", "value", "target", ""], rows)
    return keys


def google_benchmark(program, pattern, seconds="0.3", repetitions=3):
    command = [str(common.RELEASE / "src" / program), f"--benchmark_filter={pattern}", "--benchmark_format=json",
               f"--benchmark_min_time={seconds}",
               f"--benchmark_repetitions={max(repetitions, 2)}",  # of one there is no median
               "--benchmark_report_aggregates_only=true"]
    done = subprocess.run(["taskset", "-c", str(common.PROXY_CORE), *command], capture_output=True, text=True, check=True)
    out = {}
    for row in json.loads(done.stdout)["benchmarks"]:
        if row.get("aggregate_name") == "median":
            out[row["run_name"]] = row
    return out


def nanoseconds(row):
    return row["cpu_time"] * {"ns": 1, "us": 1e3, "ms": 1e6}[row["time_unit"]]


def decision(args):
    """One decision alone: default profile, 10 to 1,000 endpoints and blocks."""
    rows = google_benchmark("scheduling/scheduling_bench", "decision/default", repetitions=args.rounds)
    targets = {(100, 1000): 30, (100, 10): 5}
    keys, out = {}, []
    for name, row in rows.items():
        found = re.search(r"endpoints:(\d+)/blocks:(\d+)", name)
        if not found:
            continue
        endpoints, blocks = map(int, found.groups())
        us = nanoseconds(row) / 1e3
        target = targets.get((endpoints, blocks))
        out.append([name, f"{us:.2f}", f"≤ {target}" if target else "", common.verdict(us, target) if target else ""])
        keys[f"us_{endpoints}ep_{blocks}blocks"] = us
    common.table(["decision", "CPU µs", "target", ""], out)
    return keys


def scrape(args):
    """Scraping the recorded 80 KB pages of 100 endpoints: share of a core."""
    row, = google_benchmark("signals/signals_bench", "ScrapeHundredEndpoints", repetitions=args.rounds).values()
    keys = {"core_pct_100ep_1s": row["core_pct_at_1s"], "core_pct_100ep_50ms": row["core_pct_at_50ms"],
            "us_a_scrape": row["us_per_scrape"]}
    targets = {"core_pct_100ep_1s": 3, "core_pct_100ep_50ms": 50}
    common.table(["figure", "value", "target", ""],
                 [[k, f"{v:.2f}", f"≤ {targets[k]}" if k in targets else "",
                   common.verdict(v, targets[k]) if k in targets else ""] for k, v in keys.items()])
    return keys


SUITES = {"gateway": gateway, "decision": decision, "scrape": scrape, "extproc": extproc.extproc, "envoy": extproc.envoy,
          "herd": fleet.herd, "policies": fleet.policies}
