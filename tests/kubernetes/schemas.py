"""Objects held to Kubernetes' published schemas without a server: build/kubernetes/swagger.json for its own kinds,
the resource definitions for the others. Stricter than the API: a field that a schema doesn't name is an error."""
import json
import pathlib

import jsonschema
import yaml

from charts import LOADER
from control_plane import TOOLS
from harness import ROOT


def missing():
    return [] if (TOOLS / "swagger.json").exists() and (TOOLS / "crds/key").exists() else ["swagger.json", "crds"]


def closed(schema):
    """The schema without room for unknown fields, and with Kubernetes' numbers-or-strings."""
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    result = dict(schema)
    if "properties" in schema:
        result["properties"] = {name: closed(below) for name, below in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = closed(schema[key])
    return result


class Schemas:
    def __init__(self):
        definitions = json.loads((TOOLS / "swagger.json").read_text())["definitions"]
        quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity"
        self.definitions = {name: closed(each) for name, each in definitions.items()}
        self.definitions[quantity] = {"type": ["string", "integer", "number"]}
        self.of = {}
        for name, definition in definitions.items():
            for kind in definition.get("x-kubernetes-group-version-kind", []):
                self.of.setdefault((kind["group"], kind["version"], kind["kind"]),
                                   {"$ref": f"#/definitions/{name}", "definitions": self.definitions})
        for file in [*(TOOLS / "crds").glob("*.yaml"), *(ROOT / "deploy/crds").glob("*.yaml")]:
            spec = yaml.load(pathlib.Path(file).read_text(), LOADER)["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                # Of every kind, whether a definition says so or not.
                schema["properties"].update(apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"})
                self.of[spec["group"], version["name"], spec["names"]["kind"]] = closed(schema)

    def errors(self, thing):
        """Where an object breaks its kind's schema."""
        group, _, version = thing["apiVersion"].rpartition("/")
        found = jsonschema.Draft7Validator(self.of[group, version, thing["kind"]]).iter_errors(thing)
        return [f"{thing['kind']}: {'.'.join(map(str, e.absolute_path))}: {e.message}" for e in found]
