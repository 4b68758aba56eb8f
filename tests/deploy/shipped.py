"""Rules that all objects of the charts keep, whatever the values. Used on the raw manifests here, and on what Helm
renders in tests/kubernetes/."""
import re
import subprocess

import yaml


def pod_spec(deployment):
    return deployment["spec"]["template"]["spec"]


def container(deployment, name):
    return next(c for c in pod_spec(deployment)["containers"] if c["name"] == name)


def flags(deployment):
    """The picker's command line as a dict; each argument is --name=value, each name comes once."""
    found = {}
    for argument in container(deployment, "epp")["args"]:
        match = re.fullmatch(r"--([a-z][a-z0-9-]*)=(.*)", argument, re.S)
        assert match, f"{argument!r} is no --flag=value"
        assert match[1] not in found, f"--{match[1]} comes twice"
        found[match[1]] = match[2]
    return found


def known_flags(penstock):
    """Names of the flags of `penstock epp`, by its own help."""
    text = subprocess.run([penstock, "epp", "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"--([a-z][a-z0-9-]*)", text))


def ports(container):
    return {p["name"]: p["containerPort"] for p in container["ports"]}


def check_deployment(deployment):
    """Least privilege; probes, ports, volumes and flags that agree with each other."""
    pod = pod_spec(deployment)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    volumes = {v["name"] for v in pod["volumes"]}
    for each in pod["containers"]:
        context = each["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert each["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in each["resources"]["limits"]
        for mount in each["volumeMounts"]:
            assert mount["name"] in volumes
    given, epp = flags(deployment), container(deployment, "epp")
    assert int(given["grpc-port"]) == ports(epp)["grpc"]
    assert int(given["grpc-health-port"]) == ports(epp)["grpc-health"]
    assert int(given["metrics-port"]) == ports(epp)["metrics"]
    assert epp["readinessProbe"]["grpc"] == {"port": ports(epp)["grpc-health"], "service": "readiness"}
    if given.get("ha-enable-leader-election") == "true":
        # Others than the leader are alive, too.
        assert epp["livenessProbe"]["grpc"] == {"port": ports(epp)["grpc-health"], "service": "liveness"}
        assert deployment["spec"]["strategy"]["type"] == "Recreate"
    else:
        assert epp["livenessProbe"]["tcpSocket"] == {"port": "grpc-health"}
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    selector = deployment["spec"]["selector"]["matchLabels"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    names = {e["name"]: e for e in epp["env"]}
    assert names["NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    assert names["POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def check_services(documents):
    """What Services and the pool point at is there."""
    deployment = next(d for d in documents if d["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    named = {}
    for each in pod_spec(deployment)["containers"]:
        named.update(ports(each))
    services = [d for d in documents if d["kind"] == "Service"]
    for service in services:
        if service["spec"].get("clusterIP") == "None":
            continue  # the model servers'
        assert service["spec"]["selector"].items() <= labels.items()
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            assert target in named or target in named.values(), f"no container has port {target}"
    for pool in (d for d in documents if d["kind"] == "InferencePool"):
        reference = pool["spec"]["endpointPickerRef"]
        service = next(s for s in services if s["metadata"]["name"] == reference["name"])
        if any(p["port"] == reference["port"]["number"] for p in service["spec"]["ports"]):
            continue
        # Beside the picker is its Envoy, and no gateway asks.
        assert any(c["name"] == "envoy" for c in pod_spec(deployment)["containers"])


def rules(documents, *kinds):
    """What the roles allow, as a set of (group, resource, verb); a name that bounds it is left out."""
    found = set()
    for role in (d for d in documents if d["kind"] in (kinds or ("Role", "ClusterRole"))):
        for rule in role["rules"]:
            for group in rule.get("apiGroups", []):
                found |= {(group, r, v) for r in rule["resources"] for v in rule["verbs"]}
            found |= {("", url, v) for url in rule.get("nonResourceURLs", []) for v in rule["verbs"]}
    return found


def check_roles(documents):
    """Nothing is allowed by a wildcard, nothing that reads Secrets, and each binding leads to a role that is there."""
    for group, resource, verb in rules(documents):
        assert "*" not in (group, resource, verb)
        assert resource not in ("secrets", "pods/exec", "serviceaccounts/token")
    names = {(d["kind"], d["metadata"]["name"]) for d in documents}
    for binding in (d for d in documents if d["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in names
        for subject in binding["subjects"]:
            assert subject["namespace"] and subject["kind"] == "ServiceAccount"


def check_configuration(documents, penstock, folder):
    """`penstock check` takes every EndpointPickerConfig, and the one that is used is there."""
    deployment = next(d for d in documents if d["kind"] == "Deployment")
    config = next(d for d in documents if d["kind"] == "ConfigMap"
                  and d["metadata"]["name"] == deployment["metadata"]["name"])
    given = flags(deployment)
    assert given["config-file"].removeprefix("/config/") in config["data"]
    extra = ["--allow-experimental-plugins"] if given.get("allow-experimental-plugins") == "true" else []
    for name, text in config["data"].items():
        file = folder / name
        file.write_text(text)
        answer = subprocess.run([penstock, "check", "--config-file", file, *extra], capture_output=True, text=True)
        assert answer.returncode == 0, f"{name}: {answer.stdout}{answer.stderr}"


def envoy_config(documents):
    config = next(d for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["name"].endswith("-envoy"))
    return yaml.safe_load(config["data"]["envoy.yaml"])


def check_envoy(documents):
    """Envoy listens where its port says and finds the picker and the picker's health where they are."""
    deployment = next(d for d in documents if d["kind"] == "Deployment")
    config, epp = envoy_config(documents), container(deployment, "epp")
    listener = config["static_resources"]["listeners"][0]["address"]["socket_address"]
    assert listener == {"address": "0.0.0.0", "port_value": ports(container(deployment, "envoy"))["http"]}
    clusters = {c["name"]: c for c in config["static_resources"]["clusters"]}
    for name in clusters.keys() - {"picker"}:
        options = clusters[name]["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
        # uvicorn closes after 5 s.
        assert float(options["common_http_protocol_options"]["idle_timeout"].removesuffix("s")) < 5
    endpoint = clusters["picker"]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": ports(epp)["grpc"]}
    assert endpoint["health_check_config"]["port_value"] == ports(epp)["grpc-health"]
    assert flags(deployment)["secure-serving"] == "false"
