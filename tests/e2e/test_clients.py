"""The official clients, through the gateway to the engines, streaming and not.

With PENSTOCK_TEST_ENGINES (URLs, comma separated), PENSTOCK_TEST_MODEL and PENSTOCK_TEST_ADAPTERS the same
tests run against real engines instead of simulated ones.
"""
import concurrent.futures
import gzip
import os

import anthropic
import httpx
import openai
import pytest

from harness import Engines, Gateway

REAL = os.environ.get("PENSTOCK_TEST_ENGINES", "")
MODEL = os.environ.get("PENSTOCK_TEST_MODEL", "sim-model")
ADAPTERS = os.environ.get("PENSTOCK_TEST_ADAPTERS", "alpha,beta").split(",")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    engines = None
    urls = REAL.split(",") if REAL else []
    if not urls:
        engines = Engines(folder / "engines.log", 2, model=MODEL, adapter=[f"{a}=adapters/{a}" for a in ADAPTERS])
        urls = engines.urls
    gateway = Gateway(folder / "gateway.log", model_servers=urls)
    yield gateway
    gateway.program.stop()
    if engines:
        engines.program.stop()


@pytest.fixture(scope="module")
def client(gateway):
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def claude(gateway):
    return anthropic.Anthropic(base_url=gateway.url, api_key="unused", max_retries=0, timeout=60)


def test_chat_completion_answers_with_text_and_usage(client):
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Say something."}],
                                            max_tokens=8, extra_body={"ignore_eos": True})
    assert answer.choices[0].message.content
    assert answer.model == MODEL
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens > 0


def test_streamed_chat_arrives_in_pieces_and_ends_with_usage(client):
    chunks = list(client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Count."}], max_tokens=8, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True}))
    assert sum(1 for c in chunks if c.choices and c.choices[0].delta.content) >= 2
    assert chunks[-1].usage.completion_tokens == 8
    assert all(c.model == MODEL for c in chunks)


def test_completion_with_text_and_token_id_prompts(client):
    more = {"ignore_eos": True}
    text = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=4, extra_body=more)
    ids = client.completions.create(model=MODEL, prompt=[11, 12, 13, 14, 15], max_tokens=4, extra_body=more)
    assert text.usage.completion_tokens == ids.usage.completion_tokens == 4
    assert ids.usage.prompt_tokens == 5


def test_streamed_completion(client):
    pieces = list(client.completions.create(model=MODEL, prompt="Go on", max_tokens=6, stream=True,
                                            extra_body={"ignore_eos": True}))
    assert "".join(p.choices[0].text for p in pieces if p.choices)


def test_models_are_listed_once_with_adapters(client):
    listed = [m.id for m in client.models.list()]
    assert sorted(listed) == sorted([MODEL, *ADAPTERS])


def test_adapter_is_served_under_its_own_name(client):
    answer = client.chat.completions.create(model=ADAPTERS[0], messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    assert answer.model == ADAPTERS[0]


def test_unknown_model_is_the_clients_not_found_error(client):
    with pytest.raises(openai.NotFoundError) as failure:
        client.chat.completions.create(model="nobody-has-this", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    assert "nobody-has-this" in str(failure.value)


def test_missing_messages_is_a_bad_request(client):
    with pytest.raises(openai.BadRequestError) as failure:
        client.chat.completions.create(model=MODEL, messages=[], max_tokens=4)
    assert failure.value.request_id


def test_a_compressed_body_is_refused_by_the_name_of_its_encoding(gateway, client, claude):
    headers = {"content-encoding": "gzip"}
    for sdk, path, shape in ((client, "/chat/completions", lambda b: b["message"]), (claude, "/v1/messages", lambda b: b["error"]["message"])):
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as failure:
            sdk.post(path, cast_to=object, content=gzip.compress(b"{}"), options={"headers": headers})
        assert failure.value.status_code == 415
        assert "content-encoding 'gzip'" in shape(failure.value.body)
        assert failure.value.response.headers["accept-encoding"] == "identity"


def test_what_no_replica_can_continue_is_said_at_once_and_not_tried_again(gateway):
    before = gateway.metric_sum("penstock_http_responses_total", **{"class": "5xx"})
    insistent = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=3, timeout=60)
    with pytest.raises(openai.InternalServerError) as failure:
        insistent.responses.create(model=MODEL, input="and then?", conversation="conv_1")
    assert failure.value.status_code == 501
    assert "send the whole input" in str(failure.value)
    assert gateway.metric_sum("penstock_http_responses_total", **{"class": "5xx"}) == before + 1


def test_anthropic_message(claude):
    message = claude.messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Say something."}])
    assert message.content[0].text
    assert 0 < message.usage.output_tokens <= 8
    assert message.usage.input_tokens > 0


def test_anthropic_stream(claude):
    with claude.messages.stream(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Count."}]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert 0 < final.usage.output_tokens <= 8


def test_anthropic_error_is_readable_by_its_client(claude):
    with pytest.raises(anthropic.BadRequestError) as failure:
        claude.messages.create(model=MODEL, max_tokens=8, messages=[])
    assert failure.value.body["type"] == "error"


def test_concurrent_streams_do_not_mix(gateway):
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0, timeout=120)

    def run(i):
        pieces = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"request {i}"}], max_tokens=12, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        ids, usage = set(), None
        for piece in pieces:
            ids.add(piece.id)
            usage = piece.usage or usage
        return ids, usage

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        seen = set()
        for ids, usage in pool.map(run, range(32)):
            assert len(ids) == 1
            assert not ids & seen
            seen |= ids
            assert usage.completion_tokens == 12
    assert httpx.get(f"{gateway.admin}/readyz").status_code == 200
