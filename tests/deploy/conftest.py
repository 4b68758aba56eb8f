"""What is shipped in deploy/ is held to the program, to Kubernetes' rules and to itself, without Helm and without a
cluster; tests/kubernetes/ does it with both."""
import pathlib
import sys

import pytest
import yaml

for folder in ("deploy", "e2e"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / folder))

from harness import ROOT  # noqa: E402


def documents(variant):
    return [d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes" / variant / "penstock.yaml").read_text()) if d]


@pytest.fixture(params=["gateway", "standalone"])
def objects(request):
    """The raw manifests of one variant, by kind; a kind that comes more than once is a list."""
    return Objects(documents(request.param), request.param)


@pytest.fixture
def standalone():
    return Objects(documents("standalone"), "standalone")


class Objects:
    def __init__(self, documents, variant):
        self.documents, self.variant = documents, variant

    def of(self, kind):
        found = [d for d in self.documents if d["kind"] == kind]
        assert found, f"no {kind} among the objects of {self.variant}"
        return found

    def one(self, kind):
        found = self.of(kind)
        assert len(found) == 1, f"{len(found)} of {kind}"
        return found[0]
