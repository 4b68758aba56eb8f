"""State that one engine has in its memory: requests that go on from a stored response meet the engine that made it."""
import httpx
import pytest
from openai import NotFoundError, OpenAI

from harness import eventually

RESPONSES = "/v1/responses"


def ask(gateway, text="hello", **more):
    return gateway.post(RESPONSES, {"model": "sim-model", "input": text, "max_output_tokens": 4, **more})


def endpoints_file(folder, ports):
    """Written aside and moved in place: a reader never sees a part of it."""
    path = folder / "endpoints.yaml"
    lines = [f"- {{name: e{port}, address: 127.0.0.1, port: \"{port}\"}}" for port in ports]
    new = folder / "endpoints.new"
    new.write_text("endpoints:" + (" []" if not lines else "") + "\n" + "\n".join(lines) + "\n")
    new.rename(path)
    return path


def stores(engines, response_id):
    """Which engines have it, asked directly."""
    return [index for index, url in enumerate(engines.urls)
            if httpx.get(f"{url}{RESPONSES}/{response_id}", timeout=5).status_code == 200]


def test_a_conversation_stays_with_the_engine_that_stores_it(start):
    engines = start.engines(3, responses_store=100)
    gateway = start.gateway(model_servers=engines.urls)
    holders = set()
    for i in range(12):
        first = ask(gateway, f"conversation {i} " * 20)
        assert first.status_code == 200, first.text
        previous = first.json()["id"]
        holder = stores(engines, previous)
        assert len(holder) == 1
        holders.update(holder)
        for turn in range(3):
            answer = ask(gateway, f"turn {turn}", previous_response_id=previous)
            assert answer.status_code == 200, answer.text
            assert answer.json()["previous_response_id"] == previous
            previous = answer.json()["id"]
            assert stores(engines, previous) == holder
        assert gateway.decision(answer.headers["x-request-id"])["picked_as"] == "holder"
    assert len(holders) > 1
    assert gateway.metric_sum("penstock_sticky_response_lookups_total", result="found") == 36
    assert gateway.metric_sum("penstock_sticky_responses") == 48


def test_the_official_client_streams_gets_cancels_and_goes_on(start):
    engines = start.engines(3, responses_store=100)
    gateway = start.gateway(model_servers=engines.urls)
    client = OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)
    for i in range(6):
        with client.responses.create(model="sim-model", input=f"streamed {i}", max_output_tokens=4, stream=True) as events:
            created = [event.response.id for event in events if event.type == "response.created"]
        assert client.responses.retrieve(created[0]).id == created[0]
        answer = client.responses.create(model="sim-model", input="go on", max_output_tokens=4, previous_response_id=created[0])
        assert answer.previous_response_id == created[0]
        # The engine's own refusal, not the gateway's: the request met the one that has it.
        cancelled = gateway.post(f"{RESPONSES}/{created[0]}/cancel")
        assert (cancelled.status_code, cancelled.json()["error"]["message"]) == (400, "Cannot cancel a synchronous response.")
    with pytest.raises(NotFoundError) as refused:
        client.responses.retrieve("resp_unknown")
    assert "Response with id 'resp_unknown' not found" in str(refused.value)


def test_where_the_engine_has_left_the_answer_is_404_and_nobody_else_is_asked(start, tmp_path):
    engines = start.engines(2, responses_store=100)
    file = endpoints_file(tmp_path, engines.ports)
    gateway = start.gateway("--endpoints-file", file)
    stored = ask(gateway).json()["id"]
    holder = stores(engines, stored)[0]
    other = 1 - holder
    endpoints_file(tmp_path, [engines.ports[other]])
    eventually(lambda: ask(gateway, previous_response_id=stored).status_code == 404, what="its endpoint has left")
    served = engines.requests()
    for answer in (ask(gateway, previous_response_id=stored), httpx.get(f"{gateway.url}{RESPONSES}/{stored}"),
                   httpx.delete(f"{gateway.url}{RESPONSES}/{stored}")):
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "not_found_error"
        assert "the endpoint that held it has left the pool" in answer.json()["error"]["message"]
    assert engines.requests() == served
    endpoints_file(tmp_path, engines.ports)
    eventually(lambda: ask(gateway, previous_response_id=stored).status_code == 200, what="it is back")


def test_a_response_that_is_not_to_be_stored_is_not_remembered(start):
    engines = start.engines(2, responses_store=100)
    gateway = start.gateway(model_servers=engines.urls)
    answer = ask(gateway, store=False)
    assert answer.status_code == 200
    assert ask(gateway, previous_response_id=answer.json()["id"]).status_code == 404
    assert gateway.metric_sum("penstock_sticky_responses") == 0


def test_two_gateways_know_their_own_responses_only(start):
    engines = start.engines(2, responses_store=100)
    one, two = (start.gateway(model_servers=engines.urls) for _ in range(2))
    stored = ask(one).json()["id"]
    assert ask(one, previous_response_id=stored).status_code == 200
    assert ask(two, previous_response_id=stored).status_code == 404
