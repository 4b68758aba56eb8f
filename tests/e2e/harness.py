"""Starts the real binary for the end-to-end tests: simulated engines, gateways, all on loopback."""
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import ssl
import subprocess
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PENSTOCK = pathlib.Path(os.environ.get("PENSTOCK", ROOT / "build" / "release" / "penstock"))


# Below those that outgoing connections take by themselves: else one may have taken a port before its program does.
PORTS = range(10240, max(20480, int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])))
given = set()  # to this process, never twice


def is_free(port):
    if port in given:
        return False
    with socket.socket() as s, contextlib.suppress(OSError):
        s.bind(("127.0.0.1", port))
        return True
    return False


def free_port():
    return free_ports(1)


def free_ports(count):
    """The first of `count` consecutive free ports."""
    for _ in range(1000):
        first = random.choice(PORTS[:-count])
        ports = range(first, first + count)
        if all(map(is_free, ports)):
            given.update(ports)
            return first
    raise RuntimeError("no free ports")


def eventually(condition, seconds=10, what="condition"):
    """Waits until `condition()` is true; returns its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.01)


def make_certificate(cert, key, name="localhost"):
    """A new key and a certificate of it, signed by itself, for 127.0.0.1 and `name`."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                    f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)


def shows_certificate(port, cert):
    """Whether a new handshake shows the certificate in that file."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw, context.wrap_socket(raw) as secured:
        return secured.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(cert.read_text())


class Program:
    """One running penstock or other binary, its log lines kept in a file."""

    def __init__(self, log, *arguments, env=None, binary=PENSTOCK):
        self.log_path = log
        self.log_file = open(log, "ab")
        self.process = subprocess.Popen([binary, *map(str, arguments)], stdout=self.log_file, stderr=self.log_file,
                                        env={**os.environ, **(env or {})})

    def wait_for_http(self, url, seconds=20):
        def answers():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.log_text()}")
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(url, timeout=1).status_code == 200
            return False
        eventually(answers, seconds, url)

    @contextlib.contextmanager
    def stopped_on_failure(self):
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def log_text(self):
        self.log_file.flush()
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def log_lines(self, message=None):
        lines = []
        for line in self.log_text().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if message is None or entry.get("msg") == message:
                    lines.append(entry)
        return lines

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, seconds=10):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        self.log_file.close()
        return self.process.returncode


class Engines:
    """`count` simulated engines in one process, on consecutive ports."""

    def __init__(self, log, count=1, model="sim-model", ports=None, **options):
        first = free_ports(count)
        self.ports = ports or [first + i for i in range(count)]
        arguments = ["sim", "engine", "--port", self.ports[0], "--count", count, "--model", model]
        for name, value in options.items():
            for one in value if isinstance(value, list) else [value]:
                arguments += [f"--{name.replace('_', '-')}", one]
        self.program = Program(log, *arguments)
        with self.program.stopped_on_failure():
            for port in self.ports:
                self.program.wait_for_http(f"http://127.0.0.1:{port}/health")

    @property
    def urls(self):
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def state(self, index):
        return httpx.get(f"{self.urls[index]}/sim/state", timeout=5).json()

    def fault(self, index, **fault):
        answer = httpx.post(f"{self.urls[index]}/sim/faults", json=fault, timeout=5)
        assert answer.status_code == 200, answer.text

    def requests(self):
        """Inference requests each engine has received."""
        return [self.state(i)["requests"] for i in range(len(self.ports))]


class Exposition:
    """Reads /metrics below `self.admin`."""
    headers = None  # such as who asks

    def metrics(self):
        """{name{labels}: value} of the exposition."""
        values = {}
        for line in httpx.get(f"{self.admin}/metrics", timeout=5, headers=self.headers).text.split("\n"):
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def metric_sum(self, name, **labels):
        total = 0
        for series, value in self.metrics().items():
            if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += value
        return total


class Proxy:
    """Clients reach it at `self.port`, operators at `self.admin_port`."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self):
        return f"http://127.0.0.1:{self.admin_port}"

    def post(self, path, body=None, timeout=20, **keywords):
        return httpx.post(self.url + path, json=body, timeout=timeout, **keywords)


class Gateway(Proxy, Exposition):
    def __init__(self, log, *arguments, model_servers=(), env=None, ready=True):
        self.port, self.admin_port = free_port(), free_port()
        servers = [part for url in model_servers for part in ("--model-server", url)]
        self.program = Program(log, "serve", "--listen", f"127.0.0.1:{self.port}", "--admin",
                               f"127.0.0.1:{self.admin_port}", *servers, *arguments, env=env)
        with self.program.stopped_on_failure():
            self.program.wait_for_http(f"{self.admin}/{'readyz' if ready else 'healthz'}")

    def decision(self, request_id):
        answer = httpx.get(f"{self.admin}/debug/decisions/{request_id}", timeout=5)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def explain(self, path, body):
        answer = httpx.post(f"{self.admin}/debug/explain?path={path}", json=body, timeout=20)
        assert answer.status_code == 200, answer.text
        return answer.json()
