"""What every benchmark needs: building, pinned processes, their CPU time, bodies, tables."""
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RELEASE = ROOT / "build" / "release"
WORK = ROOT / "build" / "bench"
PENSTOCK = RELEASE / "penstock"
TICK = os.sysconf("SC_CLK_TCK")
PROXY_CORE = os.cpu_count() - 1
LOAD_CORE = 0


def build_release(targets=()):
    quiet = dict(stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["cmake", "--preset", "release"], cwd=ROOT, **quiet)
    command = ["cmake", "--build", "--preset", "release", "-j", str(os.cpu_count())]
    if targets:
        command += ["--target", *targets]
    subprocess.run(command, cwd=ROOT, **quiet)


def compact(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_ports(count):
    """Distinct ones."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for_port(port, process, seconds=30):
    """Seconds until 127.0.0.1:port takes a connection."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode} before it listened on {port}")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
            return time.monotonic() - start
        time.sleep(0.01)
    raise RuntimeError(f"nothing listened on {port} within {seconds} s")


def http_get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read()


class Process:
    """A child pinned to one core, with the CPU time and memory of its whole tree."""

    def __init__(self, command, core=None, env=None, cwd=None, log=None):
        self.log = open(log, "wb") if log else subprocess.DEVNULL
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        self.process = subprocess.Popen([*pinned, *map(str, command)], stdout=self.log, stderr=self.log,
                                        env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True)

    @property
    def pid(self):
        return self.process.pid

    def tree(self):
        children = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo += children.get(pid, [])
        return found

    def cpu_seconds(self):
        total = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                total += int(fields[11]) + int(fields[12])
        return total / TICK

    def rss_mib(self, key="VmRSS"):
        total = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith(key + ":"):
                        total += int(line.split()[1])
        return total / 1024

    def stop(self):
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self.process.wait(5)
        if self.log is not subprocess.DEVNULL:
            self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


WORDS = ("water pool pipe wheel valley stone gate river turbine pressure flow head valve "
         "light dam spring winter level steel bridge cloud rain meadow morning").split()


def prose(rng, size):
    out, length = [], 0
    while length < size:
        word = rng.choice(WORDS)
        out.append(word)
        length += len(word) + 1
    return " ".join(out)[:size]


def code(rng, size):
    """Text with a quote, a backslash or a line end about every eighth character once it is JSON."""
    lines, length, i = [], 0, 0
    while length < size:
        line = f'\tif (x{i} == "{rng.choice(WORDS)}\\n") {{\n\t\tcall(\'{rng.choice(WORDS)}\', "{i}");\n\t}}\n'
        lines.append(line)
        length += len(json.dumps(line)) - 2
        i += 1
    return "".join(lines)


def write_bodies(path, size, count, stream=False, text=prose, seed=1, shared=0.0):
    """`count` chat requests of about `size` bytes, distinct from their first block on, or after the part
    `shared` of each prompt."""
    rng = random.Random(seed)
    start = text(rng, int(size * shared)) if shared else ""
    with open(path, "w", encoding="utf-8") as out:
        for i in range(count):
            shell = {"model": "mock-model", "messages": [{"role": "user", "content": ""}], "max_tokens": 64,
                     "temperature": 0.7, "user": f"user-{i}"}
            if stream:
                shell["stream"] = True
            room = size - len(json.dumps(shell)) - 12
            shell["messages"][0]["content"] = start + f"{i:08d} " + text(rng, max(room - len(start), 16))
            out.write(json.dumps(shell) + "\n")
    return path


def generate(port, bodies, connections, seconds, core=LOAD_CORE, rate=0, target="/v1/chat/completions"):
    command = ["taskset", "-c", str(core), str(RELEASE / "bench" / "load_generator"), "-p", str(port), "-b", str(bodies),
               "-c", str(connections), "-d", str(seconds), "-w", "0.4", "-u", target]
    if rate:
        command += ["-r", str(rate)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def median(values):
    return statistics.median(values)


def table(header, rows):
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths], *rows]:
        print("  ".join(str(cell).ljust(widths[i]) if i == 0 else str(cell).rjust(widths[i])
                        for i, cell in enumerate(row)))


def verdict(value, target):
    return "ok" if value <= target else "MISSED"
