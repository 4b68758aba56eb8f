"""The benchmarks by name. Each returns the keys of the last line."""
import contextlib
import json
import re
import subprocess
import time

from bench.lib import cluster, common, extproc, fleet, peers, sharing

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


def google_benchmark(program, pattern, seconds="0.3", repetitions=3, pinned=True):
    command = [str(common.RELEASE / "src" / program), f"--benchmark_filter={pattern}", "--benchmark_format=json",
               f"--benchmark_min_time={seconds}",
               f"--benchmark_repetitions={max(repetitions, 2)}",  # of one there is no median
               "--benchmark_report_aggregates_only=true"]
    if pinned:
        command = ["taskset", "-c", str(common.PROXY_CORE), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    out = {}
    for row in json.loads(done.stdout)["benchmarks"]:
        if row.get("aggregate_name") == "median":
            out[row["run_name"]] = row
    return out


def nanoseconds(row):
    return row["cpu_time"] * {"ns": 1, "us": 1e3, "ms": 1e6}[row["time_unit"]]


def print_figures(figures):
    """[(what, value, unit, target or None, key)]; targets are upper bounds, of ratios lower ones. The keys."""
    def verdict(value, unit, target):
        return common.verdict(target, value) if unit == "×" else common.verdict(value, target)
    common.table(["figure", "value", "target", ""],
                 [[what, f"{value:.2f} {unit}".strip(),
                   "" if target is None else f"{'≥' if unit == '×' else '≤'} {target}",
                   "" if target is None else verdict(value, unit, target)]
                  for what, value, unit, target, _ in figures])
    return {key: value for _, value, _, _, key in figures}


def decision(args):
    """One decision alone, with three scorers and twelve; two loops beside an updater."""
    targets = {("default", 10, 10): 3, ("default", 100, 10): 5, ("default", 1000, 10): 40, ("default", 100, 1000): 30,
               ("twelve", 10, 10): 5, ("twelve", 100, 10): 12, ("twelve", 1000, 10): 100}
    figures = []
    rows = google_benchmark("scheduling/scheduling_bench", "decision/(default|default_strict|twelve)/", "0.2", args.rounds)
    for name, row in rows.items():
        found = re.fullmatch(r"decision/(\w+)/endpoints:(\d+)/blocks:(\d+)", name)
        profile, endpoints, blocks = found[1], int(found[2]), int(found[3])
        key = f"us_{endpoints}ep_{blocks}blocks" if profile == "default" else f"us_{profile}_{endpoints}ep_{blocks}blocks"
        figures.append((f"{profile} profile, {endpoints} endpoints, {blocks} blocks, CPU", nanoseconds(row) / 1e3, "µs",
                        targets.get((profile, endpoints, blocks)), key))
    rows = google_benchmark("director/director_bench", "contention", repetitions=args.rounds, pinned=False)
    one, two, two_strict = (next(row for name, row in rows.items() if name.startswith(f"{mode}/threads:{n}/"))
                            for mode, n in (("contention", 1), ("contention", 2), ("contention_strict", 2)))
    figures += [
        ("two loops beside an updater ÷ one loop, decisions/s",
         two["decisions_per_second"] / one["decisions_per_second"], "×", 1.7, "two_loops_ratio"),
        ("the same by the loops' CPU time", two["decisions_per_cpu_second"] / one["decisions_per_cpu_second"], "×", None,
         "two_loops_cpu_ratio"),
        ("two loops in strict mode ÷ the same in compatible mode, by CPU time",
         two_strict["decisions_per_cpu_second"] / two["decisions_per_cpu_second"], "×", 0.98, "two_loops_strict_ratio"),
        ("one decision of two loops, p50, CPU", two["us_p50"], "µs", None, "two_loops_p50_us"),
        ("one decision of two loops, p99, CPU", two["us_p99"], "µs", None, "two_loops_p99_us"),
        ("failed CAS a million decisions", two["failed_cas_per_million"], "", None, "two_loops_failed_cas_per_million"),
        ("publications/s", two["publications_per_second"], "", None, "publications_per_second"),
        ("the updater's share of a core", two["updater_core_pct"], "%", 5, "updater_core_pct"),
    ]
    return print_figures(figures)


def prefix_index(args):
    """The prefix index: 1 M entries of 16 workers, prompts of 128 blocks, all different (uniq) or sharing 96 (share)."""
    rows = google_benchmark("kvindex/kvindex_bench", "Prefix(Insert/|Hit/|Miss|Half|HitCold|Match1000|InsertAndEvict)", "0.2",
                            args.rounds)
    rows |= google_benchmark("kvindex/kvindex_bench", "PrefixTwoWritersStall|PrefixGrowthStep|PrefixByteBudget", repetitions=args.rounds,
                             pinned=False)

    def of(name):
        return next(row for run, row in rows.items() if run == name or run.startswith(name + "/"))
    figures = []
    for shape, number in (("uniq", 0), ("share", 1)):
        figures += [
            (f"{shape}: full hit, a block", of(f"PrefixHit/share:{number}")["ns_block"], "ns", 2, f"ns_hit_block_{shape}"),
            (f"{shape}: miss of a prompt", of(f"PrefixMiss/share:{number}")["ns_prompt"], "ns", 40, f"ns_miss_{shape}"),
            (f"{shape}: half a hit, a block", of(f"PrefixHalf/share:{number}")["ns_block"], "ns", None, f"ns_half_block_{shape}"),
            (f"{shape}: cold hit, a block", of(f"PrefixHitCold/share:{number}")["ns_block"], "ns", None,
             f"ns_cold_hit_block_{shape}"),
            (f"{shape}: insert, a block", of(f"PrefixInsert/share:{number}")["ns_insert_block"], "ns", 10,
             f"ns_insert_block_{shape}"),
            (f"{shape}: insert that evicts as much, a block",
             of(f"PrefixInsertAndEvict/share:{number}")["ns_insert_block_steady"] * 1e9, "ns", None,
             f"ns_insert_evict_block_{shape}"),
            (f"{shape}: bytes an entry", of(f"PrefixInsert/share:{number}")["bytes_per_entry"], "", 12 if number == 0 else 5,
             f"bytes_per_entry_{shape}"),
        ]
    stall, budget = of("PrefixTwoWritersStall"), of("PrefixByteBudget")
    figures += [
        ("1,000 blocks at 100 endpoints", of("PrefixMatch1000/endpoints:100")["us_match_1000_blocks"], "µs", 0.6,
         "us_match_1000_blocks"),
        ("1,000 blocks at 1,000 endpoints", of("PrefixMatch1000/endpoints:1000")["us_match_1000_blocks"], "µs", None,
         "us_match_1000_blocks_1000ep"),
        ("two loops insert while it grows from empty: longest insert, CPU, median of nine growths", stall["us_round"], "µs", 50,
         "us_stall_round"),
        ("arithmetic in its place, as many times as long", stall["us_round_idle"], "µs", None, "us_stall_round_idle"),
        ("the longest insert of all nine", stall["us_worst"], "µs", None, "us_stall_worst"),
        ("arithmetic in its place", stall["us_worst_idle"], "µs", None, "us_stall_worst_idle"),
        ("one insert of a thousand", stall["us_p999"], "µs", None, "us_stall_p999"),
        ("one loop: longest step of growth, the least of nine times, CPU", of("PrefixGrowthStep")["us_longest_step"], "µs", 50,
         "us_longest_growth_step"),
        ("most bytes held ÷ budget", budget["most_bytes"] / budget["budget_bytes"], "", 1, "budget_share"),
        ("entries kept in a budget of 4 MiB", budget["entries"], "", None, "budget_entries"),
    ]
    return print_figures(figures)


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


def shared_state(args):
    """What sharing state between replicas costs a gateway: CPU a request, idle, bytes to and from Redis."""
    with Bench(args) as bench:
        samples = sharing.run(bench, args.rounds)
    of = {key: common.median(values) for key, values in samples.items()}
    rows, keys = [], {"bad": sum(sum(values) for (_, key), values in samples.items() if key == "bad")}
    for what, key, unit in (("CPU a request, 1 KiB", "cpu_1k", "µs"), ("CPU a request, 16 KiB", "cpu_16k", "µs"),
                            ("idle, of a core", "idle", "%")):
        rows.append([what, f"{of['alone', key]:.2f} {unit}", f"{of['shared', key]:.2f} {unit}"])
        keys[f"{key}_alone"], keys[f"{key}_shared"] = of["alone", key], of["shared", key]
    for size in ("1k", "16k"):
        rows.append([f"bytes to and from Redis a request, {size}", "", f"{of['shared', 'bytes_' + size]:.0f}"])
        keys[f"bytes_{size}"] = of["shared", f"bytes_{size}"]
    common.table(["", "alone", "shared"], rows)
    return keys


SUITES = {"gateway": gateway, "decision": decision, "prefix-index": prefix_index, "scrape": scrape,
          "extproc": extproc.extproc, "envoy": extproc.envoy, "herd": fleet.herd, "policies": fleet.policies,
          "fleet-hour": fleet.hour, "kubernetes": cluster.kubernetes, "sharing": shared_state}
