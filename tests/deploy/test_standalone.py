"""Envoy as the stand-alone manifests configure it, before a picker and simulated engines."""
import httpx
import yaml

import shipped
from data_plane import Picker, envoy_binary
from harness import Engines, Program, free_port


def test_clients_are_asked_to_reconnect_in_time_and_lose_nothing_by_it(standalone, tmp_path):
    started = []
    try:
        engines = Engines(tmp_path / "engines.log", 1, time_scale=0)
        started.append(engines.program)
        picker = Picker(tmp_path / "picker", engines.ports)
        started.append(picker.program)
        config, port, admin = shipped.envoy_config(standalone.documents), free_port(), free_port()
        config["admin"]["address"]["socket_address"]["port_value"] = admin
        listener = config["static_resources"]["listeners"][0]
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["common_http_protocol_options"]["max_connection_duration"] = "0.2s"
        for cluster in config["static_resources"]["clusters"]:
            if cluster["name"] == "picker":
                endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
                endpoint["address"]["socket_address"]["port_value"] = picker.port
                endpoint["health_check_config"]["port_value"] = picker.health_port
        file = tmp_path / "envoy.yaml"
        file.write_text(yaml.safe_dump(config))
        envoy = Program(tmp_path / "envoy.log", "-c", file, "--disable-hot-restart", "--concurrency", 1, "-l", "warn", binary=envoy_binary())
        started.append(envoy)
        envoy.wait_for_http(f"http://127.0.0.1:{admin}/ready")
        ask = {"model": "sim-model", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            closing = 0
            # Back to back on one connection: until two of them were to close after an answer.
            for _ in range(20_000):
                answer = client.post("/v1/chat/completions", json=ask)
                assert answer.status_code == 200, answer.text
                closing += answer.headers.get("connection", "").lower() == "close"
                if closing == 2:
                    break
            assert closing == 2
    finally:
        for program in reversed(started):
            program.stop()
