"""Two replicas of a picker of several pools, which tell each other load and prefixes through a real Redis. Both pools have
the same engines, and still what is told of one is never taken for the other's."""
import contextlib

import httpx
import pytest

from fleet_picker import NOT_FOUND, api, fleet, put_pod, put_pool  # noqa: F401
from harness import eventually
from kubernetes_api import POOL
from picker_streams import chat_body, pick
from redis_server import in_state, prefixes, redis, state_of  # noqa: F401

CONFIG = "plugins: [{type: prefix-cache-scorer}, {type: max-score-picker}]"
ENGINES = {f"127.0.0.{n}:8000" for n in range(2, 6)}
POOLS = ("llama", "qwen")
TALK = "The water of the upper pool falls through a steel pipe and turns four wheels. " * 60
SPEECH = "Nobody knows how many fish there are in the lower pool, and the fish do not say. " * 40
SONG = "Row, row, row your boat, gently down the stream. " * 20
LONG = 30


@pytest.fixture
def pair(api, fleet, redis):
    """pair(*flags, staleness=): the two replicas, which have met."""
    def begin(*flags, staleness="60s"):
        for name in POOLS:
            put_pool(api, name, "shared")
        for address in ENGINES:
            ip = address.split(":")[0]
            put_pod(api, f"engine-{ip.rsplit('.', 1)[1]}", ip, "shared")
        pickers = [fleet("--shared-state-url", redis.url, "--shared-state-staleness", staleness, "--config-text", CONFIG, *flags,
                         env={"POD_NAME": name}) for name in ("one", "two")]
        for picker in pickers:
            picker.has_pools(**dict.fromkeys(POOLS, ENGINES))
        for pool in POOLS:
            meet(pickers, pool)
        return pickers
    return begin


def label(picker, pool):
    return f"{picker.api.namespace}/{pool}"


def meet(pickers, pool):
    def fresh(picker):
        replicas = state_of(picker)["pools"].get(label(picker, pool), {"replicas": []})["replicas"]
        return {one["replica"] for one in replicas if one["state"] == "fresh"}
    one, two = pickers
    eventually(lambda: (fresh(one), fresh(two)) == ({"two"}, {"one"}), LONG, f"the replicas see each other in {pool}")


def others(picker, pool):
    """{engine: requests that the other replica has there}"""
    pools = httpx.get(f"{picker.admin}/debug/endpoints", timeout=5).json()["pools"]
    return {one["address"]: one["in_flight_of_others"] for one in pools[label(picker, pool)]["endpoints"] if "in_flight_of_others" in one}


def sees(picker, **wanted):
    """Waits until the picker knows exactly this load of the other's: pool=[engine, …]."""
    counted = {pool: {engine: engines.count(engine) for engine in engines} for pool, engines in wanted.items()}
    eventually(lambda: {pool: others(picker, pool) for pool in counted} == counted, LONG, f"load {counted}")


def learnt(picker, pool):
    return prefixes(picker, "applied", pool=label(picker, pool))


def index(picker, pool):
    """Blocks of prompts that the pool's index holds."""
    return picker.metric_sum("llm_d_epp_prefix_indexer_size", inference_pool=label(picker, pool))


def hits(picker, pool, part):
    return picker.metric_sum(f"llm_d_epp_prefix_indexer_hit_ratio_{part}", inference_pool=label(picker, pool))


@contextlib.contextmanager
def held(picker, pool, text):
    """A request in flight until the block ends; gives its engine."""
    with picker.connect() as connection:
        stream = connection.open(headers=[("x-penstock-pool", pool)])
        answer, _ = pick(stream, chat_body(text))
        yield answer.destination
        stream.cancel()


def goes_to(picker, pool, text):
    return picker.asked(pool, body=chat_body(text))


def knows(picker, pool, text, engine):
    """Waits until the pool would always send that there, which it is asked without sending it."""
    def would_go():
        answer = httpx.post(f"{picker.admin}/debug/explain?path=/v1/chat/completions", content=chat_body(text),
                            headers={"x-penstock-pool": pool}, timeout=20)
        assert answer.status_code == 200, answer.text
        return answer.json()["address"]
    eventually(lambda: all(would_go() == engine for _ in range(8)), LONG, f"{pool} knows the prompt")


def test_load_and_prefixes_of_one_pool_are_never_the_others(pair):
    one, two = pair()
    with held(one, "llama", TALK) as warm, held(one, "qwen", SPEECH) as first, held(one, "qwen", SONG) as second:
        sees(two, llama=[warm], qwen=[first, second])
        eventually(lambda: (learnt(two, "llama"), learnt(two, "qwen")) == (1, 2), LONG, "the prompts are learnt")
        eventually(lambda: all(index(two, pool) == index(one, pool) > 0 for pool in POOLS), LONG, "block by block")
        assert index(two, "llama") != index(two, "qwen")
        sees(two, llama=[warm], qwen=[first, second])
        assert goes_to(two, "llama", TALK + "And then?") == warm
        assert goes_to(two, "qwen", SPEECH + "And then?") == first
        eventually(lambda: min(hits(two, pool, "sum") for pool in POOLS) > 0, LONG, "prompts that were known")
        known, asked = hits(two, "qwen", "sum"), hits(two, "qwen", "count")
        goes_to(two, "qwen", TALK + "And then?")
        eventually(lambda: hits(two, "qwen", "count") > asked, LONG, "a prompt that only the other pool knows")
        assert hits(two, "qwen", "sum") == known
    sees(two, llama=[], qwen=[])
    assert prefixes(two, "unknown_endpoint") == prefixes(one, "unknown_endpoint") == 0


def test_a_pool_that_is_deleted_and_made_again_leaves_the_other_alone(pair, api, redis):
    one, two = pair("--pool-linger", "0s")
    with held(one, "llama", TALK) as warm:
        with held(one, "qwen", SPEECH) as first:
            sees(two, llama=[warm], qwen=[first])
            eventually(lambda: learnt(two, "qwen") == 1, LONG, "the prompt is learnt")
            api.delete(POOL, "qwen")
            two.has_pools(llama=ENGINES)
            eventually(lambda: "models/qwen" not in two.metrics_text(), LONG, "and nothing is left of the pool")
            eventually(lambda: goes_to(one, "qwen", SONG) == NOT_FOUND, LONG, "the other takes no more streams for it")
            sees(two, llama=[warm])
            # Its last stream is still there when the pool comes again.
            put_pool(api, "qwen", "shared")
            two.has_pools(**dict.fromkeys(POOLS, ENGINES))
            sees(two, llama=[warm], qwen=[first])
            with_song = eventually(lambda: [to for to in [goes_to(one, "qwen", SONG)] if to != NOT_FOUND], LONG, "it serves again")
            assert with_song[0] in ENGINES
            sees(two, llama=[warm], qwen=[first])
        sees(two, llama=[warm], qwen=[])
        meet([one, two], "qwen")
        load = "HLEN penstock:{models/qwen}:load"
        eventually(lambda: redis.ask(load) == b":2\r\n", LONG, "the former life has gone from the store")
        for picker in (one, two):  # from the store, of that life of the pool
            knows(picker, "qwen", SPEECH + "And then?", first)
            knows(picker, "llama", TALK + "And then?", warm)
        sees(two, llama=[warm], qwen=[])
    sees(two, llama=[], qwen=[])


def test_pools_go_on_while_redis_is_away_and_share_again_when_it_is_back(pair, redis):
    one, two = pair(staleness="1s")
    with held(one, "llama", TALK) as warm, held(one, "qwen", SPEECH) as first, held(two, "qwen", SONG) as second:
        sees(two, llama=[warm], qwen=[first])
        sees(one, llama=[], qwen=[second])
        redis.kill()
        for picker in (one, two):
            eventually(lambda p=picker: in_state(p, "connect", "timeout"), LONG, "the store is lost")
            sees(picker, llama=[], qwen=[])
            for pool in POOLS:
                assert goes_to(picker, pool, "hello") in ENGINES
        redis.start()
        for pool in POOLS:
            meet([one, two], pool)
        sees(two, llama=[warm], qwen=[first])
        sees(one, llama=[], qwen=[second])
        fresh = "This is a new song. " + SONG
        knows(two, "llama", fresh + "And then?", goes_to(one, "llama", fresh))
