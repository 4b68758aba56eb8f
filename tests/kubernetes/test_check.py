"""`penstock check --config-map`: the configurations of a cluster's ConfigMap, and what they mean otherwise than to
llm-d-router. On the stand-in and on a real API server."""
import os
import subprocess

import pytest
import yaml

from control_plane import ADMIN_TOKEN
from harness import PENSTOCK
from workload import MANIFESTS

NAMESPACE = "checked"


@pytest.fixture(scope="module")
def objects(cluster):
    cluster.create_namespace(NAMESPACE)
    objects = list(yaml.safe_load_all(MANIFESTS.replace("namespace: inference", f"namespace: {NAMESPACE}")))
    for each in objects:
        cluster.admin.apply(each)
    cluster.admin.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": NAMESPACE}, "data": {
        "a.yaml": "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: precise-prefix-cache-scorer\n",
        "notes.txt": "nothing"}})
    cluster.admin.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "short", "namespace": NAMESPACE}, "data": {
        "picker.yaml": "plugins: [{type: queue-scorer}]\n"}})
    return objects


def check(cluster, *arguments, token=ADMIN_TOKEN, **environment):
    file = cluster.kubeconfig(token, "check", NAMESPACE)
    return subprocess.run([PENSTOCK, "check", "--kubeconfig", file, *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_each_configuration_is_checked_and_its_differences_told(cluster, objects):
    for name in (f"{NAMESPACE}/llama-epp", "llama-epp"):
        answer = check(cluster, "--config-map", name)
        assert answer.returncode == 0, answer.stderr
        first, second = answer.stdout.split(f"configmap {NAMESPACE}/llama-epp, ")[1:]
        assert first.startswith("default-plugins.yaml\n") and second.startswith("payload-agnostic.yaml\n")
        assert "effective configuration:" in first
        told = first.split("different from llm-d-router (docs/compatibility.md):\n")[1]
        assert "  approx-prefix-cache-producer: " in told and "  queue-scorer: " in told
        assert "prefix-cache" not in second.split("different from llm-d-router")[1]


def test_one_file_can_be_named(cluster, objects):
    answer = check(cluster, "--config-map", f"{NAMESPACE}/llama-epp:payload-agnostic.yaml")
    assert answer.returncode == 0 and answer.stdout.count("effective configuration:") == 1
    answer = check(cluster, "--config-map", f"{NAMESPACE}/llama-epp:none.yaml")
    assert answer.returncode == 1
    assert f"configmap {NAMESPACE}/llama-epp has no file none.yaml, but: default-plugins.yaml, payload-agnostic.yaml" in answer.stderr


def test_the_only_file_needs_no_kind(cluster, objects):
    answer = check(cluster, "--config-map", "short")
    assert answer.returncode == 0 and f"configmap {NAMESPACE}/short, picker.yaml\n" in answer.stdout
    assert "queue-scorer x 1" in answer.stdout.replace("queue-scorer/", "")


def test_what_does_not_load_is_named_with_its_place(cluster, objects):
    answer = check(cluster, "--config-map", "other")
    assert answer.returncode == 1
    assert f"configmap {NAMESPACE}/other, a.yaml: " in answer.stderr and "precise-prefix-cache-scorer" in answer.stderr


def test_a_configmap_that_is_not_there_or_may_not_be_read_is_an_error_that_says_so(cluster, objects):
    answer = check(cluster, "--config-map", "none")
    assert answer.returncode == 1 and f'not_found: get configmaps "none" in namespace "{NAMESPACE}"' in answer.stderr
    answer = check(cluster, "--config-map", "llama-epp", token=cluster.token_of(NAMESPACE, "llama-epp"))
    assert answer.returncode == 1 and f'forbidden: get configmaps "llama-epp" in namespace "{NAMESPACE}"' in answer.stderr


@pytest.mark.parametrize("name", ["a/b:", "/b", "a/", "a/b/c", ":c"])
def test_a_name_of_another_shape_is_an_error_that_says_so(name):
    answer = subprocess.run([PENSTOCK, "check", "--config-map", name], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1 and f"--config-map: '{name}' is not [NAMESPACE/]NAME[:FILE]" in answer.stderr


def test_differences_of_a_file(tmp_path):
    answer = subprocess.run([PENSTOCK, "check", "--differences"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0 and "different from llm-d-router" in answer.stdout
    answer = subprocess.run([PENSTOCK, "check"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0 and "different from llm-d-router" not in answer.stdout
