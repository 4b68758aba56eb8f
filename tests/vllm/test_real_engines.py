"""What only a real engine can show. tools/vllm-tests starts the engines and names them in PENSTOCK_TEST_ENGINES."""
import os
import pathlib
import sys
import uuid

import httpx
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))

from harness import Gateway, eventually  # noqa: E402

REAL = os.environ["PENSTOCK_TEST_ENGINES"].split(",")
MODEL = os.environ["PENSTOCK_TEST_MODEL"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    gateway = Gateway(tmp_path_factory.mktemp("real") / "gateway.log", model_servers=REAL)
    yield gateway
    gateway.program.stop()


def test_every_signal_of_a_real_engine_is_fresh(gateway):
    states = eventually(lambda: {s: v for s, v in gateway.metrics().items() if s.startswith("penstock_signal_state")})
    fresh = [s for s, v in states.items() if 'state="fresh"' in s and v == 1]
    assert len({s for s in fresh if "waiting_requests" in s}) == len(REAL)
    assert not [s for s, v in states.items() if 'state="name_missing"' in s and v == 1 and "lora" not in s]


def test_a_repeated_prompt_hits_the_engines_cache(gateway):
    text = "The keeper of the gate wrote down the level of the water every hour of the night. " * 12
    winners, cached = set(), 0
    for i in range(4):
        request_id = str(uuid.uuid4())
        answer = gateway.post("/v1/chat/completions", {
            "model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": text}]},
            headers={"x-request-id": request_id}, timeout=120)
        assert answer.status_code == 200, answer.text
        details = answer.json()["usage"].get("prompt_tokens_details") or {}
        cached = max(cached, details.get("cached_tokens") or 0)
        winners.add(gateway.decision(request_id)["endpoint"])
    assert len(winners) == 1
    assert cached > 0


def test_metrics_of_a_real_engine_name_its_cache(gateway):
    page = httpx.get(f"{gateway.admin}/metrics").text
    assert "llm_d_epp_ready_endpoints" in page
