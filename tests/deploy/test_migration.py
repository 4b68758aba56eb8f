"""What docs/migration.md promises of an image that takes another picker's place: the command lines that the other
charts make are taken, and so are their configurations."""
import os
import subprocess

import pytest

from harness import PENSTOCK

# As llm-d-router's charts write them: some flags and values apart, some with =.
POOL = ["--pool-name", "llama", "--pool-namespace", "inference", "--pool-group", "inference.networking.k8s.io"]
PODS = ["--endpoint-selector", "app=llama,tier=gpu", "--endpoint-target-ports", "8000,8001"]
COMMON = ["--zap-encoder", "json", "--config-file", "/none/default-plugins.yaml", "--grpc-health-port", "9003"]
# As the Inference Extension's does; others than vLLM get flags for their metrics, which llm-d-router refuses, too.
EXTENSION = [*POOL, "--zap-encoder", "json", "--config-file", "/none/default-plugins.yaml", "--tracing=false", "--v", "1"]
DEFAULT = """
apiVersion: {version}
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters: {{scheme: "http", path: "/metrics", insecureSkipVerify: true}}
- type: core-metrics-extractor
  parameters: {{defaultEngine: "{engine}"}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
"""


def complaint(arguments):
    """How it ends: the configuration is not there, so that nothing starts."""
    answer = subprocess.run([PENSTOCK, "epp", *arguments], capture_output=True, text=True, timeout=60,
                            env={**os.environ, "POD_NAME": "llama-epp-7d9f8b6c5d-x2x4z", "NAMESPACE": "inference"})
    assert answer.returncode != 0
    return answer.stderr


@pytest.mark.parametrize("arguments", [
    [*POOL, *COMMON, "--tracing=false"],
    [*POOL, *COMMON, "--v=4", "--drain-timeout=60s", "--tracing=true", "--metrics-endpoint-auth=false"],
    [*PODS, *COMMON, "--secure-serving=false", "--tracing=false"],
    # Several replicas, and the value that takes their leader away again.
    [*POOL, *COMMON, "--ha-enable-leader-election", "--ha-enable-leader-election=false", "--tracing=false"],
    EXTENSION,
], ids=range(5))
def test_command_lines_of_other_charts_are_taken(arguments):
    assert "/none/default-plugins.yaml" in complaint(arguments)


def test_flags_for_metric_names_are_refused_with_what_to_use():
    said = complaint([*EXTENSION, '--total-queued-requests-metric="sglang:num_queue_reqs'])
    assert "total-queued-requests-metric" in said and "engineConfigs" in said


@pytest.mark.parametrize("version", ["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm"])
def test_their_default_configurations_load_as_the_docs_show(version, engine):
    answer = subprocess.run([PENSTOCK, "check", "--config-file", "/dev/stdin"], input=DEFAULT.format(version=version, engine=engine),
                            capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "effective configuration" in answer.stdout
