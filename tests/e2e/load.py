"""Steady load while a test does something to what is behind it."""
import contextlib
import threading
import time

import httpx

from harness import eventually


class Load:
    """POSTs in a few threads until stop(): `results` are (status or None when cut, seconds)."""

    def __init__(self, url, body, threads=4):
        self.url, self.body, self.results, self.ended = url, body, [], threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def _run(self):
        with httpx.Client(timeout=30) as client:
            while not self.ended.is_set():
                began, status = time.monotonic(), None
                with contextlib.suppress(httpx.HTTPError):
                    status = client.post(self.url, json=self.body).status_code
                self.results.append((status, time.monotonic() - began))

    def more_than(self, count, seconds=30):
        """Waits until so many more requests have ended."""
        goal = len(self.results) + count
        eventually(lambda: len(self.results) >= goal, seconds, f"{count} more requests")

    def stop(self):
        """Every status seen."""
        self.ended.set()
        for thread in self.threads:
            thread.join(35)
        return {status for status, _ in self.results}
