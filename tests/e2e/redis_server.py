"""A real Redis, and what replicas that share state through it say of that."""
import contextlib
import shutil
import signal
import socket

import httpx
import pytest

from harness import Program, eventually, free_port


class Redis:
    """redis-server on a port of its own, without files."""
    errors = ()

    def __init__(self, folder, *options):
        binary = shutil.which("redis-server")
        assert binary, "no redis-server: make setup"
        self.port = free_port()
        self.folder, self.binary, self.options, self.starts = folder, binary, options, 0
        self.start()

    def start(self):
        self.starts += 1
        self.program = Program(self.folder / f"redis-{self.starts}.log", "--port", self.port, "--bind", "127.0.0.1", "--save", "",
                               "--appendonly", "no", "--dir", self.folder, *self.options, binary=self.binary)
        with self.program.stopped_on_failure():
            eventually(self.answers, 20, "redis answers")

    def answers(self):
        with contextlib.suppress(OSError):
            return self.ask("PING")[:1] in (b"+", b"-")
        return False

    def ask(self, command):
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as s:
            s.sendall(command.encode() + b"\r\n")
            return s.recv(65536)

    def kill(self):
        self.program.process.kill()
        self.program.process.wait()

    def freeze(self):
        """Connections stay, nothing answers."""
        self.program.signal(signal.SIGSTOP)

    def thaw(self):
        self.program.signal(signal.SIGCONT)

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def stop(self):
        if self.program.process.poll() is None:
            self.program.signal(signal.SIGCONT)
        self.program.stop()


@pytest.fixture
def redis(tmp_path):
    server = Redis(tmp_path)
    yield server
    server.stop()


def state_of(replica):
    return httpx.get(f"{replica.admin}/debug/shared-state", timeout=5).json()


def peers_of(replica):
    """The other replicas of all its pools."""
    return [peer for pool in state_of(replica).get("pools", {}).values() for peer in pool["replicas"]]


def in_state(replica, *states):
    return state_of(replica)["state"] in states


def prefixes(replica, event, **labels):
    return replica.metric_sum("penstock_shared_state_prefixes_total", event=event, **labels)
