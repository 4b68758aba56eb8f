"""Replicas that tell each other load and prefixes through a real Redis: two gateways, and two pickers.

Where a test asserts a choice, it has waited until the replica knows what the choice goes by."""
import contextlib
import json
import os
import subprocess

import httpx
import pytest

import extproc_messages as m
from harness import PENSTOCK, eventually, free_port, make_certificate
from load import Load
from redis_server import Redis, in_state, peers_of, prefixes, redis, state_of  # noqa: F401

CHAT = "/v1/chat/completions"
LONG = "The water of the upper pool falls through a steel pipe and turns four wheels. " * 60
PREFIX = "plugins: [{type: prefix-cache-scorer}, {type: max-score-picker}]\n"
BUILT_IN = PREFIX.replace("[{", "[{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {", 1)
ACTIVE = "plugins: [{type: active-request-scorer}, {type: max-score-picker}]\n"


def others_at(replica):
    """Requests of other replicas in flight, by port of the engine."""
    pools = httpx.get(f"{replica.admin}/debug/endpoints", timeout=5).json()["pools"]
    return {int(e["address"].rsplit(":", 1)[1]): e["in_flight_of_others"]
            for pool in pools.values() for e in pool["endpoints"] if "in_flight_of_others" in e}


def says_each_change_once(replica):
    said = [line.get("reason") for line in replica.program.log_lines()
            if line["msg"].startswith(("the store of shared state is lost", "state is shared"))]
    assert all(a != b for a, b in zip(said, said[1:])), "once for each reason, not for each try"
    return said


class Pair:
    """Two gateways with the same pool; nothing that one is told gets too old for a slow machine unless asked."""

    def __init__(self, start, engines, store, config, staleness="60s", more="", env=None):
        self.engines, self.gateways = engines, []
        (start.folder / "config.yaml").write_text(config)
        for name in ("one", "two"):
            settings = start.folder / f"{name}.yaml"
            settings.write_text(json.dumps({
                "pools": [{"name": "pool", "discovery": {"static": engines.urls}, "config": str(start.folder / "config.yaml")}],
                "sharedState": {"url": store, "replica": name, "staleness": staleness, **(more or {})}}))
            self.gateways.append(start.gateway("--settings", settings, env=env))
        self.one, self.two = self.gateways

    def meet(self):
        eventually(lambda: all(len(peers_of(g)) == 1 and peers_of(g)[0]["state"] == "fresh" for g in self.gateways), 30,
                   "the replicas see each other")
        return self


def chat(gateway, messages, **more):
    body = {"model": "sim-model", "max_tokens": 2, "messages": messages, **more}
    answer = gateway.post(CHAT, body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-penstock-endpoint"]


@contextlib.contextmanager
def running(gateway, text):
    """A request that is answered until the block ends; gives the port of its engine."""
    data = json.dumps({"model": "sim-model", "stream": True, "ignore_eos": True, "max_tokens": 4000,
                       "messages": [{"role": "user", "content": text}]})
    with httpx.stream("POST", gateway.url + CHAT, content=data, headers={"content-type": "application/json"}, timeout=60) as answer:
        assert answer.status_code == 200
        yield int(answer.headers["x-penstock-endpoint"].rsplit(":", 1)[1])


def test_a_conversation_goes_on_at_the_warm_engine_whichever_gateway_gets_its_turn(start, redis):
    pair = Pair(start, start.engines(4), redis.url, PREFIX).meet()
    told = 0
    for talk in range(8):
        messages = [{"role": "user", "content": f"conversation {talk}: {LONG}"}]
        warm = chat(pair.one, messages)
        told += 1
        eventually(lambda: prefixes(pair.two, "applied") == told, 30, "the other gateway learnt it")
        messages += [{"role": "assistant", "content": "so it does"}, {"role": "user", "content": LONG + " and then?"}]
        assert chat(pair.two, messages) == warm
    assert prefixes(pair.two, "unknown_endpoint") == prefixes(pair.two, "other_block_size") == 0
    eventually(lambda: prefixes(pair.one, "applied") == 8, 30, "and the first learnt of the second turns")


def test_a_gateway_that_comes_later_learns_what_was_sent_before(start, redis):
    engines = start.engines(4)
    pair = Pair(start, engines, redis.url, PREFIX).meet()
    warm = [chat(pair.one, [{"role": "user", "content": f"talk {i}: {LONG}"}]) for i in range(6)]
    eventually(lambda: prefixes(pair.one, "told") == 6, 30, "all is told")
    late = start.gateway("--settings", start.folder / "two.yaml")
    eventually(lambda: prefixes(late, "applied") == 6, 30, "all is learnt")
    assert [chat(late, [{"role": "user", "content": f"talk {i}: {LONG}"}]) for i in range(6)] == warm


def test_load_that_one_puts_on_an_engine_turns_the_choice_of_the_other(start, redis):
    engines = start.engines(2, decode_ms=100)
    pair = Pair(start, engines, redis.url, ACTIVE).meet()
    for turn, (mine, other) in enumerate([(pair.one, pair.two), (pair.two, pair.one)] * 2):
        with running(mine, f"a long answer, please ({turn})") as port:
            eventually(lambda: others_at(other) == {port: 1}, 30, "the other knows")
            before = engines.requests()
            chat(other, [{"role": "user", "content": "hello"}])
            busy = engines.ports.index(port)
            assert engines.requests()[busy] == before[busy], "it went to the idle engine"
        eventually(lambda: others_at(other) == {} and others_at(mine) == {}, 30, "and that it is over")


def test_what_a_dead_replica_had_in_flight_is_forgotten_within_the_bound(start, redis):
    pair = Pair(start, start.engines(2, decode_ms=100), redis.url, ACTIVE, staleness="1s").meet()
    with contextlib.suppress(httpx.HTTPError), running(pair.one, "hello"):
        eventually(lambda: sum(others_at(pair.two).values()) == 1, 30, "the other knows")
        pair.one.program.process.kill()
        eventually(lambda: others_at(pair.two) == {}, 30, "it is forgotten")
    eventually(lambda: peers_of(pair.two)[0]["state"] == "stale", 30, "its record is stale")
    metrics = pair.two.metrics()
    assert metrics["penstock_shared_state_staleness_bound_seconds"] == 1
    assert metrics['penstock_shared_state_staleness_seconds{pool="default/pool",replica="one"}'] > 0.9
    assert metrics['penstock_shared_state_replicas{pool="default/pool",state="stale"}'] == 1


def test_a_gateway_that_ends_takes_its_load_along_at_once(start, redis):
    pair = Pair(start, start.engines(2), redis.url, ACTIVE).meet()
    assert pair.one.program.stop() == 0
    eventually(lambda: peers_of(pair.two) == [], 30, "the record is gone though the bound is a minute")


@pytest.mark.parametrize("lose, find", [(Redis.kill, Redis.start), (Redis.freeze, Redis.thaw)], ids=["killed", "stopped"])
def test_no_request_fails_while_redis_is_away_and_sharing_comes_back_with_it(start, redis, lose, find):
    engines = start.engines(2, decode_ms=2)
    pair = Pair(start, engines, redis.url, BUILT_IN, staleness="1s").meet()
    body = {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": LONG}]}
    loads = [Load(g.url + CHAT, body, threads=2) for g in pair.gateways]

    def all_ask_on():
        for load in loads:
            load.more_than(20)
    all_ask_on()
    lose(redis)
    for g in pair.gateways:
        eventually(lambda: in_state(g, "connect", "timeout"), 30, "the loss has a name")
        eventually(lambda: others_at(g) == {}, 30, "nothing that is too old counts")
        assert g.metric_sum("penstock_shared_state_connected") == 0
    all_ask_on()
    find(redis)
    for g in pair.gateways:
        eventually(lambda: in_state(g, "connected"), 30, "it is found again")
    pair.meet()
    all_ask_on()
    assert [load.stop() for load in loads] == [{200}, {200}]
    for g in pair.gateways:
        says_each_change_once(g)


def test_a_gateway_starts_without_redis_and_finds_it_later(start, redis):
    redis.kill()
    pair = Pair(start, start.engines(2), redis.url, ACTIVE)
    for g in pair.gateways:
        eventually(lambda: in_state(g, "connect"), 30, "it says so")
        chat(g, [{"role": "user", "content": "hello"}])
    redis.start()
    pair.meet()


def test_a_redis_that_is_full_or_read_only_has_a_name_and_is_used_again_when_it_recovers(start, redis):
    pair = Pair(start, start.engines(2), redis.url, PREFIX, staleness="2s").meet()
    redis.ask("CONFIG SET maxmemory-policy noeviction")
    redis.ask("CONFIG SET maxmemory 1")
    for g in pair.gateways:
        eventually(lambda: in_state(g, "full"), 30, "full")
        chat(g, [{"role": "user", "content": LONG}])
    redis.ask("CONFIG SET maxmemory 0")
    pair.meet()
    for g in pair.gateways:
        eventually(lambda: in_state(g, "connected"), 30, "no longer full")
    redis.ask(f"REPLICAOF 127.0.0.1 {free_port()}")
    for g in pair.gateways:
        eventually(lambda: in_state(g, "unavailable"), 30, "read-only")
        chat(g, [{"role": "user", "content": LONG}])
        tries = g.metric_sum("penstock_shared_state_failures_total", reason="unavailable")
        eventually(lambda: g.metric_sum("penstock_shared_state_failures_total", reason="unavailable") >= tries + 3, 30, "it tries again")
        assert says_each_change_once(g)[-1] == "unavailable"
    redis.ask("REPLICAOF NO ONE")
    pair.meet()


def test_the_password_comes_from_a_file_or_the_environment_and_is_never_shown(start, tmp_path):
    redis = Redis(tmp_path, "--requirepass", "sesame-1")
    try:
        secret = tmp_path / "password"
        secret.write_text("sesame-0\n")
        pair = Pair(start, start.engines(1), redis.url, ACTIVE, more={"passwordFile": str(secret)})
        eventually(lambda: in_state(pair.one, "unauthorized"), 30, "the wrong one is refused")
        secret.write_text("sesame-1\n")
        pair.meet()
        by_environment = Pair(start, pair.engines, redis.url, ACTIVE, env={"PENSTOCK_SHARED_STATE_PASSWORD": "sesame-1"})
        eventually(lambda: in_state(by_environment.one, "connected"), 30, "the environment's is taken")
        for g in pair.gateways + by_environment.gateways:
            assert "sesame" not in g.program.log_text() + json.dumps(state_of(g))
    finally:
        redis.stop()


def test_redis_over_tls_is_verified(start, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key)
    port = free_port()
    redis = Redis(tmp_path, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
    try:
        engines = start.engines(1)
        unknown = Pair(start, engines, f"rediss://127.0.0.1:{port}", ACTIVE)
        eventually(lambda: in_state(unknown.one, "connect"), 30, "nobody vouches for it")
        Pair(start, engines, f"rediss://127.0.0.1:{port}/3", ACTIVE, more={"caFile": str(cert)}).meet()
        assert b"db3" in redis.ask("INFO keyspace")
    finally:
        redis.stop()


# --- pickers ---------------------------------------------------------------------------------------------

REQUEST = [(":authority", "127.0.0.1:8080"), (":path", CHAT), (":method", "POST"), (":scheme", "http"), ("content-type", "application/json")]


def ask_picker(stream, text):
    """Where the picker sends a chat; the stream stays open, the request in flight."""
    data = json.dumps({"model": "sim-model", "messages": [{"role": "user", "content": text}]}).encode()
    duplex = (m.FULL_DUPLEX_STREAMED, m.FULL_DUPLEX_STREAMED)
    stream.send(m.headers_message("request_headers", REQUEST + [("content-length", str(len(data)))], modes=duplex))
    stream.send(m.body_message("request_body", data, True))
    return stream.answer().destination


def test_pickers_tell_each_other_load_and_prefixes(start, redis):
    engines = start.engines(3)
    flags = ["--shared-state-url", redis.url, "--shared-state-staleness", "60s"]
    one, two = (start.picker(engines.ports, *flags, env={"POD_NAME": name}) for name in ("picker-1", "picker-2"))
    eventually(lambda: [p["replica"] for p in peers_of(one)] == ["picker-2"], 30, "the pickers see each other")
    told = prefixes(two, "applied")
    with one.connect() as first, two.connect() as second:
        for talk in range(4):
            stream = first.open()
            warm = ask_picker(stream, f"talk {talk}: {LONG}")
            port = int(warm.rsplit(":", 1)[1])
            told += 1
            eventually(lambda: prefixes(two, "applied") == told, 30, "the prefix is learnt")
            eventually(lambda: others_at(two) == {port: 1}, 30, "the load is seen")
            again = second.open()
            assert ask_picker(again, f"talk {talk}: {LONG} and on") == warm
            again.cancel()
            stream.cancel()
            eventually(lambda: others_at(two) == {} and others_at(one) == {}, 30, "both are over")


def test_flags_that_mean_nothing_are_refused(tmp_path):
    common = [PENSTOCK, "epp", "--pool-name", "p", "--model-server", "http://127.0.0.1:1"]
    for flags, text in [(["--shared-state-url", "http://h"], "neither redis:// nor rediss://"),
                        (["--shared-state-url", "redis://h", "--shared-state-staleness", "100ms"], "four times the interval"),
                        (["--shared-state-url", "rediss://h", "--shared-state-ca-file", str(tmp_path / "none")], "none")]:
        ended = subprocess.run([*common, *flags], capture_output=True, text=True, timeout=20, env={**os.environ, "KUBECONFIG": ""})
        assert ended.returncode != 0 and text in ended.stderr, ended.stderr
