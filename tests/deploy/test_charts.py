"""The charts' values, their schema, and what templates read of them. Rendering them is for tests/kubernetes/."""
import json
import re

import jsonschema
import pytest
import yaml

from harness import ROOT

CHARTS = ROOT / "deploy/charts"
NAMES = ["penstock-epp", "penstock-standalone"]
SCHEMA = json.loads((CHARTS / "penstock-epp/values.schema.json").read_text())
# Taken without a default: sections of llm-d-router's values that mean nothing here, and Helm's own.
ONLY_IN_SCHEMA = {"global", "provider.gke", "router.monitoring.provider.gmp", "router.epp.resources.claims",
                  "router.proxy.proxyType", "router.proxy.mode", "router.proxy.failOpen", "router.proxy.port",
                  "router.proxy.image", "router.proxy.imagePullPolicy", "router.proxy.logLevel",
                  "router.proxy.drainSeconds", "router.proxy.args", "router.proxy.env", "router.proxy.resources"}
# Where the stand-alone chart has another default.
DIFFERENT = {"router.extraServicePorts", "router.inferencePool.create", "router.inferencePool.failureMode"}


def values_of(chart):
    return yaml.safe_load((CHARTS / chart / "values.yaml").read_text())


def paths(value, prefix=""):
    """Dotted paths of everything in a document of values; an empty map is one of them."""
    if not isinstance(value, dict) or not value:
        yield prefix
        return
    for key, below in value.items():
        yield from paths(below, f"{prefix}.{key}" if prefix else key)


def at(values, path):
    for key in path.split("."):
        values = values[key]
    return values


def schema_paths(schema, prefix=""):
    properties = schema.get("properties", {})
    if not properties:
        yield prefix
    for key, below in properties.items():
        yield from schema_paths(below, f"{prefix}.{key}" if prefix else key)


def errors(values):
    """Where a document of values breaks the schema, as dotted paths with the message."""
    found = jsonschema.Draft7Validator(SCHEMA).iter_errors(values)
    return [".".join(map(str, e.absolute_path)) + ": " + e.message for e in found]


def changed(path, value):
    values = values_of("penstock-epp")
    keys = path.split(".")
    below = values
    for key in keys[:-1]:
        below = below.setdefault(key, {})
    below[keys[-1]] = value
    return values


def test_the_schema_is_one():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("chart", NAMES)
def test_defaults_and_example_values_keep_the_schema(chart):
    assert errors(values_of(chart)) == []
    examples = list((CHARTS / chart / "ci").glob("*-values.yaml"))
    assert examples
    for file in examples:
        assert errors(yaml.safe_load(file.read_text())) == [], file.name


def test_values_and_schema_name_the_same_things():
    free = {"router.epp.resources.requests", "router.epp.resources.limits"}
    named = {p for p in paths(values_of("penstock-epp")) if not any(p.startswith(f + ".") for f in free)}
    described = {p for p in schema_paths(SCHEMA) if not any(p.startswith(o) for o in ONLY_IN_SCHEMA)} - free
    assert named == described


def test_everything_between_has_no_room_for_typing_errors():
    def closed(schema, path):
        if schema.get("properties") and path not in ("router.latencyPredictor", "router.tokenizer"):
            assert schema["additionalProperties"] is False, path
        for key, below in schema.get("properties", {}).items():
            closed(below, f"{path}.{key}" if path else key)
    closed(SCHEMA, "")


@pytest.mark.parametrize("path, value", [
    ("router.epp.replica", 2),
    ("router.epp.replicas", "two"),
    ("router.epp.replicas", -1),
    ("router.epp.image.pullPolicy", "Sometimes"),
    ("router.epp.extProcPort", 0),
    ("router.epp.grpcHealthPort", 70000),
    ("router.epp.flags", ["--v=4"]),
    ("router.epp.flags.v", {"level": 4}),
    ("router.epp.flags.--v", 4),
    ("router.epp.parsers", ["openai"]),
    ("router.epp.pluginsCustomConfig", {"mine.yaml": {"plugins": []}}),
    ("router.epp.autoscaling.type", "vpa"),
    ("router.epp.podDisruptionBudget.maxUnavailable", "half"),
    ("router.modelServers.type", "tgi"),
    ("router.modelServers.protocol", "h2c"),
    ("router.modelServers.matchLabels", {"app": 7}),
    ("router.modelServers.targetPorts", []),
    ("router.modelServers.targetPorts", [{"number": 8000}, {"number": 8000}]),
    ("router.modelServers.targetPorts", [{"number": n} for n in range(8000, 8009)]),
    ("router.modelServers.targetPorts", [8000]),
    ("router.inferencePool.failureMode", "Open"),
    ("router.inferenceObjectives", [{"name": "high"}]),
    ("router.inferenceObjectives", [{"name": "High", "priority": 1}]),
    ("router.monitoring.provider.name", "gmp"),
    ("router.monitoring.interval", "10"),
    ("router.tracing.sampling.samplerArg", 0.1),
    ("router.tokenizer.enabled", True),
    ("router.proxy.mode", "service"),
    ("router.proxy.proxyType", "agentgateway"),
    ("provider.name", "gke"),
    ("httpRoute.requestTimeout", "5 minutes"),
    ("inferenceExtension", {"replicas": 1}),
])
def test_a_wrong_value_is_an_error_that_names_it(path, value):
    found = errors(changed(path, value))
    assert found
    section, _, key = path.rpartition(".")
    assert all(e.startswith(path) or e.startswith(section) and key in e for e in found), found


def test_the_standalone_chart_differs_only_where_it_says_so():
    common, other = values_of("penstock-epp"), values_of("penstock-standalone")
    del common["router"]["proxy"], other["router"]["proxy"]
    assert {p for p in paths(common)} - DIFFERENT == {p for p in paths(other) if p not in DIFFERENT}
    assert {p for p in paths(common) if at(common, p) != at(other, p)} == DIFFERENT


def test_both_charts_share_their_templates_and_schema():
    for name in ("templates", "values.schema.json", ".helmignore"):
        assert (CHARTS / "penstock-standalone" / name).resolve() == CHARTS / "penstock-epp" / name
    assert (CHARTS / "penstock-standalone/files/envoy").resolve() == ROOT / "deploy/envoy"


def test_templates_read_only_values_that_there_are():
    values = values_of("penstock-standalone")
    names = {"router": "router", "epp": "router.epp", "proxy": "router.proxy", "servers": "router.modelServers",
             "route": "httpRoute", "monitoring": "router.monitoring", "image": "router.epp.image"}
    # Go on below what is free or a function of the template.
    free = {"router.epp.flags", "router.modelServers.matchLabels"}
    seen = 0
    for file in (CHARTS / "penstock-epp/templates").iterdir():
        text = re.sub(r"\{\{/\*.*?\*/\}\}", "", file.read_text(), flags=re.S)
        for name, rest in re.findall(r"(\.Values|\$(?:%s))((?:\.\w+)+)" % "|".join(names), text):
            path = rest[1:] if name == ".Values" else names[name[1:]] + rest
            if any(path.startswith(f) for f in free):
                continue
            at(values, path)  # KeyError: no such value
            seen += 1
    assert seen > 100


def test_versions_agree():
    version = re.search(r"project\(penstock VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    for chart in NAMES:
        described = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
        assert described["appVersion"] == version
        assert described["name"] == chart
    for variant in ("gateway", "standalone"):
        custom = yaml.safe_load((ROOT / "deploy/kubernetes" / variant / "kustomization.yaml").read_text())
        assert custom["images"] == [{"name": "penstock", "newTag": version}]


def test_flags_that_the_chart_sets_are_refused_as_values():
    """Both lists are in templates: what _flags.tpl makes of other values, _checks.tpl must refuse."""
    text = (CHARTS / "penstock-epp/templates/_flags.tpl").read_text()
    makes = set(re.findall(r'"([a-z-]+)" (?:\(printf|\$router|\$pool|\(join)', text))
    refuses = set(re.findall(r'"([a-z-]+)" "', (CHARTS / "penstock-epp/templates/_checks.tpl").read_text()))
    # A user's own word wins over these two.
    assert makes - {"tracing", "metrics-endpoint-auth"} <= refuses


@pytest.mark.parametrize("kind", ["InferenceObjective", "InferenceModelRewrite"])
def test_resource_definitions_are_whole(kind):
    plural = kind.lower() + "s"
    definition = yaml.safe_load((ROOT / f"deploy/crds/llm-d.ai_{plural}.yaml").read_text())
    assert definition["metadata"]["name"] == f"{plural}.llm-d.ai"
    assert definition["spec"]["names"] == {"kind": kind, "listKind": kind + "List", "plural": plural,
                                           "singular": kind.lower()}
    version, = definition["spec"]["versions"]
    assert version["name"] == "v1alpha2" and version["served"] and version["storage"] and "status" in version["subresources"]

    def typed(schema, path):
        assert "type" in schema, path
        for key, below in schema.get("properties", {}).items():
            typed(below, f"{path}.{key}")
        if schema["type"] == "array":
            typed(schema["items"], path + "[]")
    typed(version["schema"]["openAPIV3Schema"], kind)
    # What the status says by default is one that the schema takes.
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    jsonschema.Draft7Validator(status).validate(status["default"])


def documents_of(name):
    return re.findall(r"(?ms)^```yaml\n(.*?)^```$", (ROOT / "docs" / name).read_text())


@pytest.mark.parametrize("name", ["kubernetes.md", "migration.md"])
def test_values_in_the_docs_keep_the_schema(name):
    blocks = documents_of(name)
    assert blocks
    for text in blocks:
        assert errors(yaml.safe_load(text)) == [], text


def test_values_that_the_docs_name_are_there():
    values, text = values_of("penstock-standalone"), (ROOT / "docs/kubernetes.md").read_text()
    named = re.findall(r"\b((?:router|httpRoute|provider)(?:\.\w+)+)", text)
    assert len(named) > 20
    for path in named:
        # The selector's labels and flags are the user's.
        at(values, re.sub(r"^(router\.modelServers\.matchLabels|router\.epp\.flags)\..*", r"\1", path))


@pytest.mark.parametrize("name", ["kubernetes.md", "migration.md"])
def test_links_of_the_docs_lead_somewhere(name):
    folder = ROOT / "docs"
    for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", (folder / name).read_text()):
        file = folder / target if target else folder / name
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", file.read_text())
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, f"{target}#{anchor}"


def allowed_by_the_charts():
    """(group, resource) to verbs of every rule in the role templates, whatever the values."""
    text = (CHARTS / "penstock-epp/templates/rbac.yaml").read_text()
    text = text.replace("{{ $router.inferencePool.group }}", "inference.networking.k8s.io, inference.networking.x-k8s.io")
    found = {}
    for groups, resources, verbs in re.findall(
            r"- apiGroups: \[(.*?)\]\s+resources: \[(.*?)\]\s+(?:resourceNames: .*\s+)?verbs: \[(.*?)\]", text):
        for group in groups.split(", "):
            for resource in resources.split(", "):
                found.setdefault((group.strip('"'), resource), set()).update(verbs.split(", "))
    return found


def known_to_the_client():
    """(group, resource) by the name of the constant, of what the program's API client has a name for."""
    text = (ROOT / "src/kubernetes/resource.h").read_text()
    groups = dict(re.findall(r'string_view (k\w+Group) = "(.*?)"', text))
    kinds = re.findall(r'Resource (k\w+)\{(\w+|"[^"]*"),\s*"\w+",\s*"(\w+)"', text)
    return {name: (groups.get(group, group.strip('"')), plural) for name, group, plural in kinds}


def test_roles_allow_what_the_client_uses_and_nothing_it_has_no_name_for():
    allowed, known = allowed_by_the_charts(), known_to_the_client()
    assert len(known) >= 10 and len(allowed) >= 10
    assert {(g, r.partition("/")[0]) for g, r in allowed} <= set(known.values())
    used = set()
    for file in (ROOT / "src").rglob("*.cc"):
        # What the command line asks for itself it asks for as its user.
        if not file.name.endswith(("_test.cc", "_fuzz.cc", "_bench.cc")) and file.parent.name != "cli":
            prefix = "" if file.parent.name == "kubernetes" else "kubernetes::"
            used |= set(re.findall(rf"\b{prefix}(k[A-Z]\w+)", file.read_text()))
    for name, resource in known.items():
        assert name not in used or resource in allowed, f"{name} is used, and no rule of the charts allows {resource}"
