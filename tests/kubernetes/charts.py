"""Helm, the charts' example values, and what is skipped where."""
import os
import pathlib
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHARTS = ROOT / "deploy/charts"
HELM = pathlib.Path(os.environ.get("HELM", ROOT / "build/kubernetes/bin/helm"))
NEEDED = bool(os.environ.get("PENSTOCK_NEED_KUBERNETES"))  # as make test-kubernetes has it: nothing is skipped
many_programs = pytest.mark.skipif(not NEEDED, reason="starts a dozen programs: runs with make test-kubernetes")


def absent(what):
    """Ends a test whose program isn't built."""
    if NEEDED:
        pytest.fail(f"{what}: run tools/kubernetes-tools")
    pytest.skip(f"{what} (make test-kubernetes builds what is needed)")


class Helm:
    def run(self, *arguments):
        return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True, timeout=120)

    def template(self, chart, *arguments, release="llama", namespace="team"):
        """The objects that a release would have."""
        answer = self.run("template", release, CHARTS / chart, "--namespace", namespace, *arguments)
        assert answer.returncode == 0, answer.stderr
        return [d for d in yaml.safe_load_all(answer.stdout) if d]

    def example(self, name, chart="penstock-epp", **keywords):
        return self.template(chart, "--values", CHARTS / chart / "ci" / f"{name}-values.yaml", **keywords)

    def notes(self, name, cluster, namespace="team"):
        """What Helm prints once an example is installed."""
        values = CHARTS / "penstock-epp" / "ci" / f"{name}-values.yaml"
        answer = self.run("install", "llama", CHARTS / "penstock-epp", "--values", values, "--namespace", namespace, "--dry-run=client",
                          "--kubeconfig", cluster)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.split("\nNOTES:\n")[1]

    def refusal(self, chart, *arguments):
        """What Helm says about values that it doesn't take."""
        answer = self.run("template", "llama", CHARTS / chart, *arguments)
        assert answer.returncode != 0, "taken: " + answer.stdout[:500]
        return answer.stderr


def example_values():
    """(chart, values file) of every example beside the charts."""
    return [(chart, file) for chart in ("penstock-epp", "penstock-standalone")
            for file in sorted((CHARTS / chart / "ci").glob("*-values.yaml"))]
