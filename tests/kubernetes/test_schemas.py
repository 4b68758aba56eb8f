"""Every object that the charts make keeps Kubernetes' published schemas, and none has a field that they don't name."""
import pytest
import yaml

import schemas
from charts import absent, example_values, of_other_projects
from harness import ROOT


@pytest.fixture(scope="module")
def published():
    if schemas.missing():
        absent("no published schemas")
    return schemas.Schemas()


@pytest.mark.parametrize("chart, file", example_values(), ids=lambda v: getattr(v, "stem", v))
def test_every_object_of_every_example_keeps_its_schema(helm, published, chart, file):
    objects = helm.template(chart, "--values", file)
    assert len(objects) >= 5 and [e for each in objects for e in published.errors(each)] == []


@pytest.mark.parametrize("kind, values", of_other_projects())
def test_objects_of_other_projects_keep_their_schemas_however_they_are_asked_for(helm, published, kind, values):
    made, = [each for each in helm.template("penstock-epp", "--set-json", values) if each["kind"] == kind]
    assert published.errors(made) == []


@pytest.mark.parametrize("variant", ["gateway", "standalone"])
def test_every_raw_manifest_keeps_its_schema(published, variant):
    text = (ROOT / "deploy/kubernetes" / variant / "penstock.yaml").read_text()
    assert [e for each in yaml.safe_load_all(text) for e in published.errors(each)] == []


def test_our_definitions_keep_the_schema_of_definitions(published):
    for file in (ROOT / "deploy/crds").glob("*.yaml"):
        assert published.errors(yaml.safe_load(file.read_text())) == []


def test_a_field_that_nobody_knows_is_found(published):
    thing = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 1, "targetProt": 2}]}}
    assert any("targetProt" in e for e in published.errors(thing))
    pool = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "a"},
            "spec": {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 70000}]}}
    assert any("70000" in e for e in published.errors(pool))
