"""Policies on the fleet simulator: `herd` and `policies`, with no clock of this machine in their figures, and
`fleet-hour`, the simulator's own speed."""
import json
import resource
import statistics
import subprocess

from bench.lib import common

TRACES = common.ROOT / "tests" / "vectors" / "traces"


def simulate(*flags):
    """The report of `penstock sim fleet`: ({policy: its figures}, the bound)."""
    done = subprocess.run([str(common.PENSTOCK), "sim", "fleet", "--json", *map(str, flags)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    report = json.loads(done.stdout)
    return {policy["policy"]: policy for policy in report["policies"]}, report["bound"]


def medians(runs, figure):
    """{policy: the median over the runs of figure(policy's report)}."""
    return {name: statistics.median(figure(run[name]) for run in runs) for name in runs[0]}


def herd(args):
    """Four gateways with stale signals: queues under a burst with and without near ties, and under one prefix for all."""
    workloads = {"burst": ["--workload", "burst"], "code": ["--workload", "azure-code", "--speed", "4", "--requests", "4000"],
                 "one_prefix": ["--workload", "one-prefix", "--speed", "3"]}
    names = {"default": "max_score", "near-tie": "near_tie", "capped-prefix": "capped", "round-robin": "round_robin"}
    # What each workload is about: which policy is to better the default, and in what.
    better = {"burst": "near-tie", "code": "near-tie", "one_prefix": "capped-prefix"}
    keys, rows = {}, []
    for workload, flags in workloads.items():
        policies = [word for name in names for word in ("--policy", name)]
        runs = [simulate(*flags, "--engines", 8, "--gateways", 4, "--scrape-interval", "1s", "--seed", seed, *policies)[0]
                for seed in range(1, args.rounds + 1)]
        queue = medians(runs, lambda r: r["queue_max_over_mean"])
        requests = medians(runs, lambda r: r["requests_max_over_mean"])
        peak = medians(runs, lambda r: r["peak_queue"])
        mean = medians(runs, lambda r: r["ttft_ms"]["mean"])
        p99 = medians(runs, lambda r: r["ttft_ms"]["p99"])
        figure = mean if workload == "one_prefix" else queue
        for name, key in names.items():
            rows.append([f"{workload}, {name}", f"{queue[name]:.2f}", f"{requests[name]:.2f}", f"{peak[name]:.0f}",
                         f"{mean[name]:.0f}", f"{p99[name]:.0f}",
                         common.verdict(figure[name], figure["default"]) if name == better[workload] else ""])
            keys[f"queue_max_mean_{workload}_{key}"] = queue[name]
            keys[f"ttft_mean_ms_{workload}_{key}"] = mean[name]
            keys[f"ttft_p99_ms_{workload}_{key}"] = p99[name]
    print(f"8 engines, 4 gateways, scrape every second; medians over {args.rounds} seeds. default: max-score-picker;\n"
          "near-tie: the same scorers and weights with near-tie-picker; capped-prefix: in strict mode, and the prefix adds no\n"
          "more than the queue takes away. near-tie is to be more even than default under bursts, capped-prefix quicker\n"
          "where all prompts begin alike, which the weights alone send to one engine for each gateway (docs/policies.md).\n")
    common.table(["workload, policy", "queue max/mean", "requests max/mean", "longest queue", "TTFT mean ms", "TTFT p99 ms", ""],
                 rows)
    return keys


def policies(args):
    """Round robin, approximate prefix, expected TTFT on Mooncake's traces beside the clairvoyant bound."""
    traces = {"conversation": 2, "synthetic": 2}
    names = {"round-robin": "round_robin", "default": "prefix", "near-tie": "near_tie", "expected-ttft": "expected_ttft",
             "strict": "strict", "predicted-latency": "predicted_latency"}
    flags = [word for name in names for word in ("--policy", name)]
    keys, rows = {}, []
    for trace, speed in traces.items():
        runs, bound = [], None
        for seed in range(1, args.rounds + 1):
            run, bound = simulate("--trace", TRACES / f"mooncake_{trace}.jsonl", "--speed", speed, "--engines", 8, "--gateways", 2,
                                  "--seed", seed, *flags)
            runs.append(run)
        hits = medians(runs, lambda r: r["hit_ratio"])
        figures = {quantile: medians(runs, lambda r, q=quantile: r["ttft_ms"][q]) for quantile in ("mean", "p50", "p99")}
        tpot = medians(runs, lambda r: r["tpot_ms"]["mean"])
        for name, key in names.items():
            rows.append([f"{trace}, {name}", f"{hits[name]:.3f}", *(f"{figures[q][name]:.0f}" for q in figures), f"{tpot[name]:.1f}"])
            keys[f"hit_{trace}_{key}"] = hits[name]
            keys[f"ttft_mean_ms_{trace}_{key}"] = figures["mean"][name]
        rows.append([f"{trace}, bound", f"{bound['hit_ratio_clairvoyant']:.3f}", *(f"{bound['ttft_ms'][q]:.0f}" for q in figures), ""])
        keys[f"hit_{trace}_bound"] = bound["hit_ratio_clairvoyant"]
        keys[f"ttft_mean_ms_{trace}_bound"] = bound["ttft_ms"]["mean"]
    print(f"8 engines (Llama-3-8B on H100), 2 gateways, traces twice as fast as recorded; medians over {args.rounds} seeds.\n"
          "default: queue, KV usage and approximate prefix. bound: hits of one cache of all engines' size that gives up what\n"
          "is needed last; TTFT of a request alone on an engine that has all that was ever computed.\n")
    common.table(["trace, policy", "hit ratio", "TTFT mean ms", "TTFT p50 ms", "TTFT p99 ms", "TPOT mean ms"], rows)
    return keys


def hour(args):
    """The simulator's speed: an hour of Mooncake's conversation trace on 16 engines, CPU seconds a policy."""
    names = {"round-robin": "round_robin", "default": "prefix", "predicted-latency": "predicted_latency"}
    target, keys, rows = 10, {}, []
    for name, key in names.items():
        seconds, report = [], None
        for _ in range(args.rounds):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            report = simulate("--trace", TRACES / "mooncake_conversation.jsonl", "--engines", 16, "--gateways", 4, "--policy", name)
            seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        simulated = report[0][name]["simulated_seconds"]
        keys[f"cpu_s_{key}"] = common.median(seconds)
        rows.append([name, f"{simulated:.0f}", f"{keys[f'cpu_s_{key}']:.1f}", f"{simulated / keys[f'cpu_s_{key}']:.0f}",
                     f"≤ {target}", common.verdict(keys[f"cpu_s_{key}"], target)])
    print(f"12,031 requests, 16 engines, 4 gateways, one core; medians over {args.rounds} rounds, reading the trace and the bound\n"
          "included.\n")
    common.table(["policy", "simulated s", "CPU s", "times as fast", "target", ""], rows)
    return keys
