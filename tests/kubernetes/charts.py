"""Helm, values that the charts are tried with, and what is skipped where."""
import json
import os
import pathlib
import subprocess

import pytest
import yaml

from harness import ROOT

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader where it is there: resource definitions are long
CHARTS = ROOT / "deploy/charts"
HELM = pathlib.Path(os.environ.get("HELM", ROOT / "build/kubernetes/bin/helm"))
NEEDED = bool(os.environ.get("PENSTOCK_NEED_KUBERNETES"))  # as make test-kubernetes has it: nothing is skipped
many_programs = pytest.mark.skipif(not NEEDED, reason="starts a dozen programs: runs with make test-kubernetes")


def absent(what, remedy="run tools/kubernetes-tools"):
    """Ends a test that can't be done here: it is skipped, or fails where everything has to be there."""
    if NEEDED:
        pytest.fail(f"{what}: {remedy}")
    pytest.skip(f"{what} (for make test-kubernetes: {remedy})")


class EachKeyOnce(LOADER):
    """A key that comes twice is an error, as it is to whoever installs what was rendered."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"a key comes twice among {sorted(keys)}"
        return super().construct_mapping(node, deep)


class Helm:
    def run(self, *arguments):
        return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True, timeout=120)

    def template(self, chart, *arguments, release="llama", namespace="team"):
        """The objects that a release would have."""
        answer = self.run("template", release, CHARTS / chart, "--namespace", namespace, *arguments)
        assert answer.returncode == 0, answer.stderr
        return [d for d in yaml.load_all(answer.stdout, EachKeyOnce) if d]

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


def of_other_projects():
    """(kind, values as --set-json takes them): every way to have an object whose kind comes with another project."""
    def monitor(rbac=True, **prometheus):
        interval = prometheus.pop("interval", "10s")
        return "ServiceMonitor", {"monitoring": {"interval": interval, "prometheus": {"enabled": True, **prometheus}}, "epp": {"rbac": {"create": rbac}}}

    def scaled(**autoscaling):
        return "ScaledObject", {"epp": {"autoscaling": {"enabled": True, "type": "keda", **autoscaling}}}

    def rule(flags=None, **rule):
        return "DestinationRule", {"epp": {"flags": flags or {}}}, {"provider": {"name": "istio", "istio": {"destinationRule": rule}}}
    policy = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}], "selectPolicy": "Min", "stabilizationWindowSeconds": 0}
    ways = {
        "monitor": monitor(),
        "monitor-for-anybody": monitor(auth={"enabled": False}),
        "monitor-with-a-secret-that-is-there": monitor(auth={"secretName": "theirs"}, rbac=False),
        "monitor-with-labels": monitor(extraLabels={"release": "prometheus", "app.kubernetes.io/part-of": "theirs"}),
        "monitor-often": monitor(interval="500ms"),
        "monitor-seldom": monitor(interval="1h2m30s"),
        "monitor-daily": monitor(interval="1d"),
        "scaled": scaled(),
        "scaled-to-one": scaled(minReplicas=1, maxReplicas=1),
        "scaled-by-more": scaled(targetCPUUtilizationPercentage=100, triggers=[
            {"type": "prometheus", "name": "requests", "metricType": "AverageValue", "authenticationRef": {"name": "reader"},
             "metadata": {"serverAddress": "http://prometheus:9090", "query": "sum(rate(llm_d_epp_request_total[1m]))", "threshold": "500"}},
            {"type": "cron", "metadata": {"timezone": "Europe/Zurich", "start": "0 6 * * *", "end": "0 20 * * *", "desiredReplicas": "4"}}]),
        "scaled-with-care": scaled(behavior={"scaleUp": policy, "scaleDown": {**policy, "selectPolicy": "Disabled"}}),
        "rule": rule(),
        "rule-said-outright": rule({"secure-serving": True}),
        "rule-of-another-host": rule(host="picker.example"),
        "rule-with-a-policy": rule(trafficPolicy={"connectionPool": {"http": {"http2MaxRequests": 10000, "idleTimeout": "1h"}},
                                                  "outlierDetection": {"consecutive5xxErrors": 5, "interval": "1s"}}),
        "rule-that-verifies": rule(trafficPolicy={"tls": {"mode": "SIMPLE", "caCertificates": "/certs/ca.crt", "subjectAltNames": ["picker"]}}),
    }
    made = []
    for name, (kind, router, *more) in ways.items():
        router["modelServers"] = {"matchLabels": {"app": "llama"}}
        values = [("router", router), *(pair for each in more for pair in each.items())]
        made.append(pytest.param(kind, ",".join(f"{key}={json.dumps(value)}" for key, value in values), id=name))
    return made
