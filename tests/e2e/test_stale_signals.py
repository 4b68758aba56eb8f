"""Engines whose metrics page stalls while they serve: what either mode of the picker configuration does then.

What is asserted of a decision is asserted of one record, together with the ages it was made at: a machine that
pauses makes these tests wait longer, never fail."""
import contextlib
import json
import re
import socket
import subprocess

import pytest

from harness import PENSTOCK, eventually

CHAT = "/v1/chat/completions"
COMPATIBLE = "plugins: [{type: queue-scorer}]\n"
STRICT = COMPATIBLE + "penstock: {mode: strict, freshness: {budget: 300ms, unknownAfter: 600ms}}\n"


def body(**more):
    return {"model": "sim-model", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}], **more}


def hold(stack, port, count):
    """Sends `count` requests whose answers outlast the test; they end with the stack."""
    data = json.dumps(body(max_tokens=4000, stream=True, ignore_eos=True)).encode()
    head = b"POST %s HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    for _ in range(count):
        s = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        s.sendall(head % (CHAT.encode(), len(data)) + data)


class Bed:
    """Three engines that run one request at a time, and a gateway that chooses by their queues alone."""

    def __init__(self, start, config):
        self.engines = start.engines(3, max_num_seqs=1, decode_ms=500)
        self.gateway = start.gateway("--config-text", config, "--metrics-interval", "50ms", model_servers=self.engines.urls)
        self.serial = 0

    @contextlib.contextmanager
    def busy(self, index):
        """One request runs at the engine and two wait, past the gateway, until the block ends."""
        with contextlib.ExitStack() as stack:
            hold(stack, self.engines.ports[index], 3)
            eventually(lambda: self.explain().queue(index).get("value") == 2, 60, "the queue is seen")
            yield

    def explain(self):
        return Explained(self.gateway.explain(CHAT, body()), self.engines.ports)

    def explained(self, condition, what):
        """The first explanation that `condition` holds of."""
        found = []
        eventually(lambda: found.append(self.explain()) or condition(found[-1]), 60, what)
        return found[-1]

    def stall(self, *indices):
        for index in indices:
            self.engines.fault(index, metrics_hang=True)

    def recover(self, *indices):
        for index in indices:
            self.engines.fault(index)

    def decide(self):
        """Sends a request; the record of its decision."""
        self.serial += 1
        answer = self.gateway.post(CHAT, body(), headers={"x-request-id": f"s{self.serial}"})
        assert answer.status_code == 200
        return self.gateway.decision(f"s{self.serial}")

    def decided(self, condition, what):
        """The first decision that `condition` holds of."""
        found = []
        eventually(lambda: found.append(self.decide()) or condition(found[-1]), 60, what)
        return found[-1]

    def state(self, name):
        return self.gateway.metric_sum("penstock_decision_fallback_state", state=name)

    def transitions(self, name):
        return self.gateway.metric_sum("penstock_decision_fallback_transitions_total", state=name)


class Explained:
    """One explanation, by index of the engine."""

    def __init__(self, record, ports):
        self.record, self.ports = record, ports

    def of(self, index, among):
        return next(one for one in among if one["endpoint"].endswith(str(self.ports[index])))

    def queue(self, index):
        return self.of(index, [s for s in self.record["signals"] if s["signal"] == "waiting_requests"])

    def total(self, index):
        return self.of(index, self.record["profiles"][0]["top"])["total"]

    def text(self, index):
        return self.of(index, [e for e in self.record["explanations"] if e.get("scorer") == "queue-scorer"])["text"]

    def influences(self):
        return [self.queue(i)["influence"] for i in range(len(self.ports))]


@pytest.fixture
def strict(start):
    return Bed(start, STRICT)


def test_in_compatible_mode_the_last_number_of_an_engine_whose_metrics_stall_counts_for_ever(start):
    bed = Bed(start, COMPATIBLE)
    with bed.busy(2):
        bed.stall(0)
        shown = bed.explained(lambda e: e.queue(0)["state"] != "fresh", "what is known of it is old")
        # Its last number, 0 waiting, is as good as that of the engine that reports.
        assert shown.total(0) == shown.total(1) > shown.total(2)


def test_in_strict_mode_it_counts_as_the_longest_known_queue_until_it_reports_again(strict):
    with strict.busy(2):
        strict.stall(0)
        shown = strict.explained(lambda e: e.influences() == [0, 1, 1] and e.queue(0)["age_ms"] > 700, "what is known of it is too old")
        assert shown.total(1) > shown.total(0) == shown.total(2)
        assert shown.record["fallback"] == "none"
        assert "unknown (last seen" in shown.text(0)
        strict.recover(0)
        shown = strict.explained(lambda e: e.influences() == [1, 1, 1], "it reports again")
        assert shown.total(0) == shown.total(1) > shown.total(2)


def test_too_few_fresh_signals_are_a_named_state_that_least_in_flight_decides_until_they_are_back(strict):
    gateway, log = strict.gateway, strict.gateway.program
    state = "too_few_fresh_signals"
    strict.decided(lambda d: d["fallback"] == "none", "decisions are complete")
    strict.stall(0, 1, 2)
    decision = strict.decided(lambda d: d["profiles"][0].get("fresh_candidates") == 0, "nothing fresh is known")
    # From here on ages only grow.
    assert decision["fallback"] == state
    assert decision["profiles"][0]["decided_by"] == "least-in-flight"
    assert strict.state(state) == 1 and strict.state("none") == 0
    assert strict.transitions(state) >= 1
    before = strict.engines.requests()
    # Nobody has requests in flight when the next one comes: equals, in turn.
    strict.decided(lambda _: all(now > then for now, then in zip(strict.engines.requests(), before)), "each has its turn")
    strict.explained(lambda e: e.influences() == [0, 0, 0], "all is too old")
    shown = subprocess.run([PENSTOCK, "explain", "--admin", gateway.admin, "--body", "-"], input=json.dumps(body()),
                           capture_output=True, text=True, timeout=60).stdout
    assert f"fallback {state}" in shown
    assert "0 of 3 candidates have fresh signals: decided by least-in-flight" in shown
    # Its last value and how old it is, whatever became of it.
    assert len(re.findall(r"waiting_requests +0 requests +\S+ +age \d+ ms, influence 0.00", shown)) == 3, shown

    strict.recover(0, 1, 2)
    strict.decided(lambda d: d["fallback"] == "none", "decisions are complete again")
    assert strict.state("none") == 1 and strict.state(state) == 0
    eventually(lambda: len(log.log_lines("decisions are made in a fallback state")) == strict.transitions(state), 20,
               "one line for each time that it began")
    assert {line["state"] for line in log.log_lines("decisions are made in a fallback state")} == {state}
    eventually(lambda: len(log.log_lines("decisions are complete again")) == strict.transitions("none"), 20,
               "one line for each time that it ended")


def test_requests_sent_between_two_scrapes_count_at_once(start):
    """Scraped at the start and then not again: the burst still spreads."""
    engines = start.engines(4, decode_ms=500)
    config = COMPATIBLE + "penstock: {mode: strict, freshness: {budget: 1h, unknownAfter: 2h}}\n"
    gateway = start.gateway("--config-text", config, "--metrics-interval", "10m", "--loops", 1, model_servers=engines.urls)
    eventually(lambda: gateway.metric_sum("penstock_signal_state", signal="waiting_requests", state="fresh") == 4, 60, "each was seen")
    with contextlib.ExitStack() as stack:
        hold(stack, gateway.port, 40)
        eventually(lambda: sum(engines.requests()) == 40, 60, "all requests arrived")
        assert engines.requests() == [10, 10, 10, 10]
