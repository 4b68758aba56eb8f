"""A pool's life behind the chart's picker: a real API server with RBAC and the controllers of Deployments, a kubelet that
runs the picker's pods, Envoy led to them as a gateway would, simulated engines as pods, and clients that ask all the
time. Nothing that happens in an orderly cluster may cost one of them an answer."""
import contextlib
import os

import pytest
import yaml

import harness
from charts import many_programs
from control_plane import ADMIN_TOKEN, running_plane
from node import Clients, Gateway, Kubelet
from redis_server import Redis
from workload import CHAT, LABELS, SECONDS, Workload, port_free_on

pytestmark = many_programs

REPLICAS = 2
POOL = "llama"
# How long the API server stays killed.
AWAY_SECONDS = float(os.environ.get("PENSTOCK_API_SERVER_AWAY_SECONDS", "30"))


class Site(Workload):
    """A namespace with a release of the chart, two engines, and the programs that a cluster would run for them."""

    def __init__(self, plane, helm, folder):
        # Engines that take a while, so that something is always on its way.
        super().__init__(plane, folder, "inference", ["--decode-ms", "15", "--prefill-tokens-per-second", "0"])
        self.helm, self.parts, self.releases = helm, [], {}
        try:
            self._begin(folder)
        except BaseException:
            self.stop()
            raise

    def _begin(self, folder):
        plane, pickers = self.cluster, [f"127.0.2.{n}" for n in range(1, 40)]
        self.picker_ports = [port_free_on(pickers) for _ in range(3)]
        self.redis = self._keep(Redis(folder))
        self.kubelet = self._keep(Kubelet(plane, self.namespace, folder / "pods"))
        self.install(POOL, {"inferencePool": {"failureMode": "FailClose"}, "inferenceObjectives": [{"name": "high", "priority": 7}]},
                     sharedState={"url": self.redis.url})
        self.pool = self.object(POOL, "InferencePool", POOL)
        self.pod(0), self.pod(1)
        self.gateway = self._keep(Gateway(plane, self.kubelet, self.namespace, POOL, folder / "gateway"))
        self.url = self.gateway.url
        self.wait_for_pickers(REPLICAS)
        self.wait_for_endpoints(2)
        self.until(self.gateway.envoy.stats, SECONDS, "Envoy has its filter")
        self.until(lambda: len(self.gateway.led_to) == REPLICAS, SECONDS, "the gateway is led to the pickers")

    def until(self, condition, seconds, what):
        """eventually(), or what went wrong in another thread."""
        def checked():
            for part in self.parts:
                if part.errors:
                    raise part.errors[0]
            return condition()
        harness.eventually(checked, seconds, what)

    def _keep(self, part):
        self.parts.append(part)
        return part

    def install(self, release, router, **epp):
        """`helm install RELEASE penstock-epp`, and again: `helm upgrade`."""
        ext_proc, health, metrics = self.picker_ports
        values = {"router": {
            "metricsPort": metrics, "modelServers": {"matchLabels": LABELS, "targetPorts": [{"number": self.port}]},
            "monitoring": {"prometheus": {"enabled": True, "auth": {"secretName": f"{release}-reader"}}},
            "epp": {"replicas": REPLICAS, "extProcPort": ext_proc, "grpcHealthPort": health, "flags": {"drain-timeout": "10s"}, **epp},
            **router}}
        file = self.folder / f"{release}-values.yaml"
        file.write_text(yaml.safe_dump(values))
        self.releases[release] = self.helm.template("penstock-epp", "--values", file, release=release, namespace=self.namespace)
        for each in self.releases[release]:
            self.cluster.admin.apply(each)

    def object(self, release, kind, name):
        return next(o for o in self.releases[release] if o["kind"] == kind and o["metadata"]["name"] == name)

    def deployment(self, name):
        return self.cluster.admin.get("apps/v1", "Deployment", self.namespace, name)

    def restart(self, name):
        """`kubectl rollout restart`, and until `kubectl rollout status` would end and the last old pod has gone."""
        old = set(self.kubelet.pods)
        generation = str(self.deployment(name)["metadata"]["generation"])
        self.cluster.admin.merge(self.deployment(name), {"spec": {"template": {"metadata": {"annotations": {"restarted": generation}}}}})
        self.until(lambda: self.rolled_out(name) and not old & set(self.kubelet.pods), 3 * SECONDS, "the rollout ends")
        return old

    def rolled_out(self, name):
        found = self.deployment(name)
        status, wanted = found.get("status", {}), found["spec"]["replicas"]
        return (status.get("observedGeneration") == found["metadata"]["generation"] and status.get("updatedReplicas") == wanted
                and status.get("availableReplicas") == wanted and status.get("replicas") == wanted)

    def wait_for_pickers(self, count):
        self.until(lambda: len(self.kubelet.ready()) == count, 2 * SECONDS, f"{count} pickers are ready")

    def wait_for_endpoints(self, count):
        """In the picture of every picker."""
        self.until(lambda: all(p.endpoints() == count for p in self.kubelet.ready()), SECONDS, f"{count} endpoints in every picker")

    def knows(self, text):
        """Waits until every picker's endpoints show it."""
        self.until(lambda: all(text in p.get("/debug/endpoints").text for p in self.kubelet.ready()), SECONDS, text)

    def remove(self, index):
        """As a kubelet ends a pod: told at once, gone when nothing is on its way any more."""
        pod = self.pods.pop(index)
        self.cluster.admin.delete(pod, grace_seconds=60)
        self.until(lambda: self.idle(index), SECONDS, "the engine's last request is answered")
        self.engines.pop((index, self.port)).stop()
        self.cluster.admin.delete(pod)

    def idle(self, index):
        state = self.state(index)
        return state["running"] + state["waiting"] == 0

    @contextlib.contextmanager
    def clients(self):
        """While clients ask, each of whom must get a whole answer each time."""
        clients = Clients(self.url + CHAT)
        try:
            clients.wait_for(10)
            yield clients
            clients.wait_for(10)
        finally:
            clients.stop()
        assert clients.failures == []
        self.until(lambda: True, 0, "")

    def stop(self):
        for part in reversed(self.parts):
            part.stop()
        super().stop()


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory):
    """An API server of this module alone, which kills it, with controllers."""
    with running_plane(tmp_path_factory.mktemp("plane"), controllers=True) as plane:
        plane.install_crds()
        yield plane


@pytest.fixture(scope="module")
def site(own_plane, helm, tmp_path_factory):
    """Two pickers, two engines; each test leaves it so."""
    site = Site(own_plane, helm, tmp_path_factory.mktemp("site"))
    yield site
    site.stop()


def test_engines_come_and_go(site):
    with site.clients():
        site.pod(2), site.pod(3)
        site.wait_for_endpoints(4)
        site.serve(site, [0, 1, 2, 3])
        for index in (2, 3):
            site.remove(index)
        site.wait_for_endpoints(2)


def test_an_engine_that_is_not_ready_gets_nothing_and_finishes_what_it_has(site):
    with site.clients():
        site.cluster.set_pod_status(site.pods[1], site.addresses[1], ready=False)
        site.wait_for_endpoints(1)
        site.until(lambda: site.idle(1), SECONDS, "the drained engine is idle")
        site.serve(site, [0], others=[1])
        site.cluster.set_pod_status(site.pods[1], site.addresses[1], ready=True)
        site.wait_for_endpoints(2)
        site.serve(site, [0, 1])


def test_an_engine_is_relabelled_away_and_back(site):
    with site.clients():
        site.cluster.admin.merge(site.pods[1], {"metadata": {"labels": {"app": "other"}}})
        site.wait_for_endpoints(1)
        site.until(lambda: site.idle(1), SECONDS, "the relabelled engine is idle")
        site.serve(site, [0], others=[1])
        site.cluster.admin.merge(site.pods[1], {"metadata": {"labels": LABELS}})
        site.wait_for_endpoints(2)


def test_the_pool_gets_another_port_and_two(site):
    site.engine(0, site.other_port), site.engine(1, site.other_port)

    def ports(*numbers):
        site.cluster.admin.merge(site.pool, {"spec": {"targetPorts": [{"number": n} for n in numbers]}})
    with site.clients():
        ports(site.port, site.other_port)
        site.wait_for_endpoints(4)
        ports(site.other_port)
        site.wait_for_endpoints(2)
        site.knows(str(site.other_port))
        site.serve(site, [0, 1], port=site.other_port)
        ports(site.port)
        site.knows(str(site.port))
        site.wait_for_endpoints(2)


def test_objectives_and_rewrites_change(site):
    def counted(priority):
        site.ask(site, **{"x-llm-d-inference-objective": "high"})
        return sum(p.metric_sum("llm_d_epp_request_total", priority=str(priority)) for p in site.kubelet.ready()) > 0

    def answers(model, status):
        body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
        # Every picker has to know: with two, ten in a row.
        return all(site.http.post(site.url + CHAT, json=body).status_code == status for _ in range(10))
    with site.clients():
        site.until(lambda: counted(7), SECONDS, "the priority")
        site.cluster.admin.merge(site.object(POOL, "InferenceObjective", "high"), {"spec": {"priority": 3}})
        site.until(lambda: counted(3), SECONDS, "the other priority")
        rewrite = site.apply("InferenceModelRewrite", "public", {"rules": [
            {"matches": [{"model": {"type": "Exact", "value": "public"}}], "targets": [{"modelRewrite": "sim-model"}]}]})
        site.until(lambda: answers("public", 200), SECONDS, "the rewrite")
        site.cluster.admin.merge(rewrite, {"spec": {"rules": [{"matches": [{"model": {"type": "Exact", "value": "open"}}],
                                                               "targets": [{"modelRewrite": "sim-model"}]}]}})
        site.until(lambda: answers("open", 200) and answers("public", 404), SECONDS, "the other rewrite")
        site.cluster.admin.delete(rewrite)
        site.until(lambda: answers("open", 404), SECONDS, "no rewrite")


def test_the_api_server_is_killed_and_comes_back(site):
    with site.clients() as clients:
        site.cluster.stop_api_server()
        for picker in site.kubelet.ready():
            site.until(lambda p=picker: p.metric_sum("penstock_kubernetes_synced", resource="pods") == 0, SECONDS, "the picture is stale")
        clients.go_on_for(AWAY_SECONDS)
        assert len(site.kubelet.ready()) == REPLICAS and all(p.endpoints() == 2 for p in site.kubelet.ready())
        site.cluster.start_api_server()
        site.pod(2)
        site.wait_for_endpoints(3)
        site.serve(site, [0, 1, 2])
        site.remove(2)
        site.wait_for_endpoints(2)
    for picker in site.kubelet.ready():
        site.until(lambda p=picker: p.metric_sum("penstock_kubernetes_synced") == 4, SECONDS, "all is followed again")


def test_the_scrapers_account_reads_metrics_and_nothing_else(site):
    picker = site.kubelet.ready()[0]
    reader = site.cluster.token_of(site.namespace, "llama-epp-metrics-reader")

    def get(path, token):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return site.http.get(picker.admin + path, headers=headers).status_code
    assert [get("/metrics", token) for token in (None, "nobody's", reader)] == [401, 401, 200]
    assert [get("/debug/endpoints", token) for token in (None, "nobody's", reader)] == [401, 401, 403]
    assert get("/debug/endpoints", ADMIN_TOKEN) == 200 and get("/healthz", None) == 200


def test_the_pickers_are_restarted_one_by_one(site):
    with site.clients():
        old = site.restart("llama-epp")
        assert len(old) == REPLICAS
        site.wait_for_pickers(REPLICAS)
        site.wait_for_endpoints(2)
        site.serve(site, [0, 1])


def test_the_pickers_share_state_through_redis_and_work_on_without_it(site):
    def others_of(picker):
        state = picker.get("/debug/shared-state").json()
        replicas = state["pools"][f"{site.namespace}/{POOL}"]["replicas"]
        return state["state"], {r["replica"] for r in replicas if r["state"] == "fresh"}

    def all_share():
        pickers = site.kubelet.ready()
        names = {p.name for p in pickers}
        return len(names) == REPLICAS and all(others_of(p) == ("connected", names - {p.name}) for p in pickers)
    with site.clients() as clients:
        site.until(all_share, SECONDS, "each picker knows the other")
        site.redis.kill()
        site.until(lambda: all(p.metric_sum("penstock_shared_state_connected") == 0 for p in site.kubelet.ready()), SECONDS, "the store is lost")
        clients.go_on_for(3)
        site.redis.start()
        site.until(all_share, SECONDS, "and found again")


def test_the_pool_is_led_to_another_release_and_back(site):
    """Section 3 of docs/migration.md."""
    with site.clients():
        site.install("other", {"inferencePool": {"create": False, "name": POOL}})
        site.until(lambda: site.rolled_out("other-epp"), 2 * SECONDS, "the other release is ready")
        site.wait_for_endpoints(2)
        others = {p.address for p in site.kubelet.ready() if p.name.startswith("other-epp-")}

        def lead_to(name):
            site.cluster.admin.merge(site.pool, {"spec": {"endpointPickerRef": {"name": name}}})
        lead_to("other-epp")
        site.until(lambda: {address for address, _ in site.gateway.led_to} == others, SECONDS, "the gateway is led there")
        new = [p for p in site.kubelet.ready() if p.address in others]
        before = [p.metric_sum("llm_d_epp_request_total") for p in new]
        site.until(lambda: all(p.metric_sum("llm_d_epp_request_total") > b for p, b in zip(new, before)), SECONDS, "they are asked")
        lead_to("llama-epp")
        site.until(lambda: not {address for address, _ in site.gateway.led_to} & others, SECONDS, "the gateway is led back")
        site.serve(site, [0, 1])
    site.cluster.admin.merge(site.deployment("other-epp"), {"spec": {"replicas": 0}})
    site.wait_for_pickers(REPLICAS)
    site.until(lambda: len(site.kubelet.pods) == REPLICAS, SECONDS, "the other pickers have gone")
