"""The raw manifests of deploy/kubernetes/."""
import os
import subprocess

import pytest
import yaml

import shipped
from harness import PENSTOCK, ROOT


def test_pods_run_with_least_privilege_and_their_ports_probes_and_flags_agree(objects):
    shipped.check_deployment(objects.one("Deployment"))


def test_services_and_the_pool_lead_to_ports_that_are_there(objects):
    shipped.check_services(objects.documents)


def test_roles_allow_nothing_by_wildcard_and_bindings_lead_to_roles(objects):
    shipped.check_roles(objects.documents)


def test_every_flag_is_one_that_the_picker_knows(objects):
    assert set(shipped.flags(objects.one("Deployment"))) <= shipped.known_flags(PENSTOCK)


def test_the_picker_takes_every_configuration(objects, tmp_path):
    shipped.check_configuration(objects.documents, PENSTOCK, tmp_path)


def test_the_picker_beside_envoy_selects_pods_itself_and_needs_no_custom_resources(standalone):
    given = shipped.flags(standalone.one("Deployment"))
    assert given["endpoint-selector"] == "app=llama" and given["endpoint-target-ports"] == "8000"
    assert "pool-name" not in given
    groups = {d["apiVersion"].split("/")[0] for d in standalone.documents}
    assert groups == {"v1", "apps", "rbac.authorization.k8s.io"}
    assert {r for _, r, _ in shipped.rules(standalone.documents)} == {"pods"}


def test_envoy_beside_the_picker_runs_what_is_shipped_but_for_addresses_and_how_long_connections_live(standalone):
    shipped.check_envoy(standalone.documents)
    expected = yaml.safe_load((ROOT / "deploy/envoy/fail-close.yaml").read_text())
    listener = expected["static_resources"]["listeners"][0]
    listener["address"]["socket_address"]["port_value"] = 8081
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["common_http_protocol_options"] = {"max_connection_duration": "15s"}
    assert shipped.envoy_config(standalone.documents) == expected


def test_neither_envoy_nor_picker_ends_before_clients_have_gone_elsewhere(standalone):
    deployment = standalone.one("Deployment")
    waits = {shipped.container(deployment, name)["lifecycle"]["preStop"]["sleep"]["seconds"] for name in ("envoy", "epp")}
    assert waits == {30} and shipped.pod_spec(deployment)["terminationGracePeriodSeconds"] > 30
    assert shipped.flags(deployment)["drain-timeout"] == "0s"


def test_kustomize_names_the_image_and_namespace_that_are_there(objects):
    folder = ROOT / "deploy/kubernetes" / objects.variant
    custom = yaml.safe_load((folder / "kustomization.yaml").read_text())
    image = shipped.container(objects.one("Deployment"), "epp")["image"]
    assert image == f"{custom['images'][0]['name']}:{custom['images'][0]['newTag']}"
    assert {d["metadata"].get("namespace") for d in objects.documents} == {custom["namespace"]}


def test_manifests_carry_no_trace_of_helm(objects):
    text = (ROOT / "deploy/kubernetes" / objects.variant / "penstock.yaml").read_text()
    assert "helm.sh" not in text and "managed-by" not in text and "# Source" not in text


@pytest.mark.skipif(not (ROOT / "build/kubernetes/bin/helm").exists() and
                    not {"HELM", "PENSTOCK_NEED_KUBERNETES"} & os.environ.keys(),
                    reason="Helm is not built (make test-kubernetes builds it)")
def test_manifests_are_what_the_charts_make_now():
    answer = subprocess.run([ROOT / "tools/render-manifests", "--check"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
