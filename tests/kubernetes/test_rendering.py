"""What Helm makes of the charts, with several documents of values."""
import subprocess

import pytest
import yaml

import shipped
from charts import CHARTS, example_values
from data_plane import envoy_binary
from harness import PENSTOCK, ROOT

LABELS = ["--set-json", 'router.modelServers.matchLabels={"app":"llama"}']
MANY = ["--set", "router.allPools=true", "--set", "router.inferencePool.create=false", "--set"]
EXAMPLES = pytest.mark.parametrize("chart, file", example_values(), ids=lambda v: getattr(v, "stem", v))


def of(objects, kind, name=None):
    found = [o for o in objects if o["kind"] == kind and (name is None or o["metadata"]["name"] == name)]
    assert len(found) == 1, f"{len(found)} {kind} {name or ''}"
    return found[0]


@EXAMPLES
def test_helm_lint_has_nothing_to_say(helm, chart, file):
    answer = helm.run("lint", "--strict", CHARTS / chart, "--values", file)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@EXAMPLES
def test_every_example_keeps_the_rules(helm, chart, file, tmp_path):
    objects = helm.template(chart, "--values", file)
    names = [(o["apiVersion"], o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names), "an object comes twice"
    deployment = of(objects, "Deployment")
    shipped.check_deployment(deployment)
    shipped.check_services(objects)
    shipped.check_roles(objects)
    assert set(shipped.flags(deployment)) <= shipped.known_flags(PENSTOCK)
    shipped.check_configuration(objects, PENSTOCK, tmp_path)
    if chart == "penstock-standalone":
        shipped.check_envoy(objects)
    for each in objects:
        if not each["kind"].startswith("ClusterRole"):
            assert each["metadata"]["namespace"] == "team", each["metadata"]["name"]


def test_everything_is_made_of_the_values_that_ask_for_it(helm):
    objects = helm.example("everything")
    epp = shipped.container(of(objects, "Deployment"), "epp")
    assert epp["image"] == "registry.example/team/penstock:1.2.3" and epp["imagePullPolicy"] == "Always"
    assert shipped.flags(of(objects, "Deployment")) == {
        "config-file": "/config/mine.yaml", "pool-name": "llama", "pool-group": "inference.networking.k8s.io",
        "grpc-port": "9012", "grpc-health-port": "9013", "metrics-port": "9191", "metrics-endpoint-auth": "true",
        "tracing": "true", "cert-path": "/certs", "enable-cert-reload": "true", "v": "4", "drain-timeout": "45s",
        "emit-endpoint-scores": "true", "grpc-max-recv-msg-size": "104857600",
        "shared-state-url": "rediss://store.inference:6379/1", "shared-state-staleness": "2s",
        "shared-state-password-file": "/shared-state/secret"}
    pod = shipped.pod_spec(of(objects, "Deployment"))
    assert pod["priorityClassName"] == "system-cluster-critical" and pod["imagePullSecrets"] == [{"name": "pull"}]
    assert {v["name"] for v in pod["volumes"]} == {"config", "certs", "scratch", "shared-state"}
    environment = {e["name"]: e.get("value") for e in epp["env"]}
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317" and environment["EXTRA"] == "yes"
    pool = of(objects, "InferencePool")["spec"]
    assert pool["selector"]["matchLabels"] == {"app": "llama", "tier": "gpu"}
    assert [p["number"] for p in pool["targetPorts"]] == [8000, 8001]
    assert pool["endpointPickerRef"] == {"name": "llama-epp", "port": {"number": 9012}, "failureMode": "FailClose"}
    assert {o["metadata"]["name"]: o["spec"]["priority"] for o in objects if o["kind"] == "InferenceObjective"} == {"high": 5, "batch": -1}
    assert "replicas" not in of(objects, "Deployment")["spec"]  # the autoscaler's
    scaler = of(objects, "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 4)
    assert of(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    monitor = of(objects, "ServiceMonitor")
    secret = of(objects, "Secret")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"]["name"] == secret["metadata"]["name"]
    reader = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert reader == "llama-epp-metrics-reader" and of(objects, "ServiceAccount", reader)
    route = of(objects, "HTTPRoute")["spec"]
    assert route["parentRefs"][0]["namespace"] == "gateways"
    assert route["rules"][0]["backendRefs"][0] == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llama"}
    headers = {h["name"]: h["value"] for h in route["rules"][0]["matches"][0]["headers"]}
    assert headers == {"X-Gateway-Base-Model-Name": "llama", "x-tenant": "a"}
    rule = of(objects, "DestinationRule")["spec"]
    assert rule["host"] == "llama-epp.team.svc.cluster.local" and rule["trafficPolicy"]["tls"]["insecureSkipVerify"]


def test_the_least_makes_nothing_that_nobody_asked_for(helm):
    assert sorted(o["kind"] for o in helm.example("minimal")) == [
        "ConfigMap", "Deployment", "InferencePool", "Role", "RoleBinding", "Service", "ServiceAccount"]
    assert sorted(o["kind"] for o in helm.example("minimal", "penstock-standalone")) == [
        "ConfigMap", "ConfigMap", "Deployment", "Role", "RoleBinding", "Service", "ServiceAccount"]


def test_roles_follow_what_the_picker_does(helm):
    read = {("", "pods", v) for v in ("list", "watch")}
    assert shipped.rules(helm.example("minimal", "penstock-standalone")) == read
    pool = shipped.rules(helm.example("minimal"))
    assert {r for r in pool if r[1] == "inferencepools"} == {("inference.networking.k8s.io", "inferencepools", v) for v in ("list", "watch")}
    assert not any(r[0] in ("coordination.k8s.io", "authentication.k8s.io") for r in pool)
    # A leader's lease, by its name.
    election = helm.example("leader-election")
    assert shipped.rules(election) - pool == {("coordination.k8s.io", "leases", v) for v in ("create", "get", "update")}
    named = [r for r in of(election, "Role")["rules"] if "resourceNames" in r]
    assert [r["resourceNames"] for r in named] == [["epp-team-llama.llm-d.ai"]]
    # Who scrapes, where somebody does and is asked who he is.
    reviews = {("authentication.k8s.io", "tokenreviews", "create"), ("authorization.k8s.io", "subjectaccessreviews", "create"), ("", "/metrics", "get")}
    followed = {("apps", "deployments", v) for v in ("list", "watch")}  # by the configuration's sources of objects
    assert shipped.rules(helm.example("everything"), "ClusterRole") == reviews | followed
    assert {("example.com", "widgets", v) for v in ("list", "watch")} <= shipped.rules(helm.example("everything"), "Role")
    assert shipped.rules(helm.example("grpc"), "ClusterRole") == set()


def test_an_existing_pool_is_served_and_not_made(helm):
    objects = helm.example("existing-pool")
    given = shipped.flags(of(objects, "Deployment"))
    assert given["pool-name"] == "llama" and given["pool-group"] == "inference.networking.x-k8s.io"
    assert "InferencePool" not in {o["kind"] for o in objects}
    assert shipped.pod_spec(of(objects, "Deployment"))["serviceAccountName"] == "given"
    assert "ServiceAccount" not in {o["kind"] for o in objects}
    scaled = of(objects, "ScaledObject")["spec"]
    assert [t["type"] for t in scaled["triggers"]] == ["cpu", "prometheus"]


def test_labels_select_pods_where_there_is_no_pool(helm):
    objects = helm.template("penstock-epp", "--set", "router.inferencePool.create=false", "--set-json",
                            'router.modelServers={"matchLabels":{"app":"llama","tier":"gpu"},"targetPorts":[{"number":8000},{"number":8001}]}')
    given = shipped.flags(of(objects, "Deployment"))
    assert given["endpoint-selector"] == "app=llama,tier=gpu" and given["endpoint-target-ports"] == "8000,8001"
    assert "pool-name" not in given


def test_pools_may_share_the_service_by_ports_of_their_own(helm):
    objects = helm.example("pool-ports")
    assert shipped.flags(of(objects, "Deployment"))["pool-ports"] == "9100-9103"
    ports = {p["name"]: (p["port"], p["targetPort"]) for p in of(objects, "Service")["spec"]["ports"]}
    assert ports == {"grpc-ext-proc": (9002, "grpc"), "http-metrics": (9090, "metrics"),
                     **{f"pool-{n}": (n, f"pool-{n}") for n in range(9100, 9104)}}
    assert of(objects, "DestinationRule")["spec"]["host"] == "llama-epp.team.svc.cluster.local"
    alone = helm.template("penstock-epp", *MANY, "router.poolPorts=9100")
    assert [p["port"] for p in of(alone, "Service")["spec"]["ports"]] == [9002, 9100, 9090]


def test_one_gives_way_when_envoy_fails_open(helm):
    objects = helm.example("fail-open", "penstock-standalone")
    expected = yaml.safe_load((ROOT / "deploy/envoy/fail-open.yaml").read_text())
    config = shipped.envoy_config(objects)
    clusters = {c["name"]: c for c in config["static_resources"]["clusters"]}
    servers = of(objects, "Service", "llama-epp-servers")
    assert servers["spec"]["clusterIP"] == "None" and servers["spec"]["selector"] == {"app": "llama"}
    found = [e["endpoint"]["address"]["socket_address"] for e in clusters["model_servers"]["load_assignment"]["endpoints"][0]["lb_endpoints"]]
    assert found == [{"address": "llama-epp-servers.team.svc.cluster.local", "port_value": p} for p in (8000, 8001)]
    assert clusters["model_servers"]["type"] == "STRICT_DNS"
    # All else is as it is shipped and tested.
    filters = expected["static_resources"]["listeners"][0]["filter_chains"]
    filters[0]["filters"][0]["typed_config"]["common_http_protocol_options"] = {"max_connection_duration": "30s"}
    assert config["static_resources"]["listeners"][0]["filter_chains"] == filters


@pytest.mark.parametrize("name", ["minimal", "fail-open"])
def test_envoy_takes_the_configuration_beside_the_picker(helm, name, tmp_path):
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(shipped.envoy_config(helm.example(name, "penstock-standalone"))))
    answer = subprocess.run([envoy_binary(), "--mode", "validate", "--config-path", file, "--disable-hot-restart"],
                            capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("arguments, names", [
    ([], "router.modelServers.matchLabels"),
    ([*LABELS, "--set", "router.epp.flags.pool-name=x"], "router.epp.flags.pool-name"),
    ([*LABELS, "--set", "router.epp.flags.config-text=x"], "router.epp.flags.config-text"),
    ([*LABELS, "--set", "router.inferencePool.name=x"], "router.inferencePool.name"),
    ([*LABELS, "--set", "router.inferencePool.group=inference.networking.x-k8s.io"], "router.inferencePool.group"),
    ([*LABELS, "--set", "router.inferencePool.create=false", "--set-json", 'router.inferenceObjectives=[{"name":"a","priority":1}]'], "router.inferenceObjectives"),
    ([*LABELS, "--set", "router.inferencePool.create=false", "--set", "httpRoute.create=true"], "httpRoute.create"),
    ([*LABELS, "--set", "router.epp.pluginsConfigFile=other.yaml"], "router.epp.pluginsConfigFile"),
    ([*LABELS, "--set", "router.epp.autoscaling.enabled=true", "--set", "router.epp.flags.ha-enable-leader-election=true"], "router.epp.autoscaling.enabled"),
    ([*LABELS, "--set", "router.epp.autoscaling.enabled=true", "--set", "router.epp.autoscaling.minReplicas=9"], "router.epp.autoscaling.minReplicas"),
    ([*LABELS, "--set", "router.proxy.enabled=true"], "router.proxy.enabled"),
    ([*LABELS, "--set", "router.poolPorts=9100"], "router.poolPorts"),
    ([*MANY, "router.poolPorts=9100-9099"], "router.poolPorts"),
    ([*MANY, "router.poolPorts=9100-9164"], "router.poolPorts"),
    ([*MANY, "router.poolPorts=65535-65536"], "router.poolPorts"),
    ([*MANY, "router.poolPorts=0-3"], "router.poolPorts"),
    ([*MANY, "router.poolPorts=9000-9010"], "router.poolPorts: holds port 9002"),
    ([*MANY, "router.epp.flags.pool-ports=9100"], "router.epp.flags.pool-ports"),
    # The schema's.
    ([*LABELS, "--set", "router.epp.replica=2"], "replica"),
    ([*LABELS, "--set", "router.epp.image.pullPolicy=Sometimes"], "pullPolicy"),
    ([*LABELS, "--set", "provider.name=gke"], "name"),
])
def test_values_that_do_not_go_together_are_refused_by_name(helm, arguments, names):
    assert names in helm.refusal("penstock-epp", *arguments)


@pytest.mark.parametrize("value, names", [
    ("router.epp.tls.secretName=cert", "router.epp.tls.secretName"),
    ("router.proxy.drainSeconds=130", "router.proxy.drainSeconds"),
    ("router.epp.flags.secure-serving=true", "router.epp.flags.secure-serving"),
])
def test_values_that_do_not_go_with_envoy_beside_the_picker_are_refused_by_name(helm, value, names):
    assert names in helm.refusal("penstock-standalone", *LABELS, "--set", value)


def test_pods_are_replaced_when_their_configuration_changes_and_only_then(helm):
    def annotations(*arguments):
        return of(helm.template("penstock-epp", *LABELS, *arguments), "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations() == annotations("--set", "router.epp.podDisruptionBudget.enabled=false")
    assert annotations() != annotations("--set", "router.modelServers.type=sglang")


def test_labels_by_which_pods_are_selected_are_the_charts(helm):
    objects = helm.template("penstock-epp", *LABELS, "--set-json",
                            'router.epp.podLabels={"app.kubernetes.io/name":"mine","app.kubernetes.io/instance":"a","team":"b"}')
    shipped.check_deployment(of(objects, "Deployment"))
    assert of(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]["team"] == "b"
    shipped.check_services(objects)


def test_long_release_names_stay_names(helm):
    objects = helm.template("penstock-epp", *LABELS, release="a" * 53)
    for each in objects:
        assert len(each["metadata"]["name"]) <= 63


@pytest.mark.parametrize("chart", ["penstock-epp", "penstock-standalone"])
def test_a_packaged_chart_is_whole(helm, chart, tmp_path):
    """The stand-alone chart shares files by links: a package has them in place of the links."""
    answer = helm.run("package", CHARTS / chart, "--destination", tmp_path)
    assert answer.returncode == 0, answer.stderr
    package, = tmp_path.glob("*.tgz")
    values = ["--values", CHARTS / chart / "ci/minimal-values.yaml"]
    assert helm.template(package, *values) == helm.template(chart, *values)
    assert "router.modelServers.matchLabels" in helm.refusal(package)
