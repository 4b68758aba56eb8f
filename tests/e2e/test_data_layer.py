"""What a picker configuration knows from elsewhere: other clusters' averages, Pods from a file, requests of one moment."""
import http.server
import json
import threading
import time

import pytest

from harness import eventually

CHAT = "/v1/chat/completions"
BODY = {"model": "sim-model", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}


class ClusterMetrics:
    """The metrics page of another cluster's picker."""

    def __init__(self, queue):
        self.queue = queue
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                page = ("# TYPE llm_d_epp_average_queue_size gauge\n"
                        f'llm_d_epp_average_queue_size{{name="pool"}} {owner.queue}\n'
                        "# TYPE llm_d_epp_average_kv_cache_utilization gauge\n"
                        'llm_d_epp_average_kv_cache_utilization{name="pool"} 0.5\n').encode()
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def clusters():
    both = [ClusterMetrics(queue) for queue in (9, 1)]
    yield both
    for cluster in both:
        cluster.close()


def who_serves(gateway, times=4):
    """The endpoints that took so many requests."""
    names = set()
    for _ in range(times):
        answer = gateway.post(CHAT, BODY)
        assert answer.status_code == 200, answer.text
        names.add(gateway.decision(answer.headers["x-request-id"])["endpoint"])
    return names


def test_clusters_are_chosen_by_the_averages_that_their_pickers_report(start, tmp_path, clusters):
    engines = start.engines(2)
    endpoints = tmp_path / "clusters.json"
    endpoints.write_text(json.dumps({"endpoints": [
        {"name": name, "address": "127.0.0.1", "port": str(port),
         "labels": {"metricsAddress": "127.0.0.1", "metricsPort": str(cluster.port)}}
        for name, port, cluster in zip(("west", "east"), engines.ports, clusters)]}))
    config = tmp_path / "epp.yaml"
    config.write_text(f"""
plugins:
- {{type: multicluster-file-discovery, parameters: {{path: {endpoints}}}}}
- {{type: multicluster-metrics-data-source, parameters: {{scheme: http, interval: 50ms}}}}
- type: multicluster-metrics-extractor
- type: multicluster-queue-scorer
dataLayer:
  injectDefaults: false
  discovery: {{pluginRef: multicluster-file-discovery}}
  sources: [{{pluginRef: multicluster-metrics-data-source, extractors: [{{pluginRef: multicluster-metrics-extractor}}]}}]
""")
    gateway = start.gateway("--allow-experimental-plugins", "--config-file", config)
    eventually(lambda: who_serves(gateway) == {"default/east"}, what="the emptier cluster serves")
    clusters[0].queue, clusters[1].queue = 0, 5
    eventually(lambda: who_serves(gateway) == {"default/west"}, what="the other one is emptier")


def pods(*workers):
    """A list of Pods as the API gives it: (name, revision, role, ready)."""
    return json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [
        {"metadata": {"name": name, "labels": {"app": "llm", "disaggregatedset.x-k8s.io/revision": revision,
                                               "disaggregatedset.x-k8s.io/role": role}},
         "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}
        for name, revision, role, ready in workers]})


def test_a_rollout_follows_the_pods_of_a_file(start, tmp_path):
    engines = start.engines(2)
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text(json.dumps({"endpoints": [
        {"name": revision, "address": "127.0.0.1", "port": str(port),
         "labels": {"app": "llm", "disaggregatedset.x-k8s.io/revision": revision, "disaggregatedset.x-k8s.io/role": "decode"}}
        for revision, port in zip(("old", "new"), engines.ports)]}))
    file = tmp_path / "pods.json"
    file.write_text(pods(("a", "old", "prefill", True), ("b", "old", "decode", True), ("c", "new", "prefill", True),
                         ("d", "new", "decode", False)))
    config = tmp_path / "epp.yaml"
    config.write_text(f"""
plugins:
- {{name: pods, type: k8s-notification-source, parameters: {{version: v1, kind: Pod, path: {file}}}}}
- type: endpoint-notification-source
- type: inflight-load-producer
- name: rollout
  type: disaggregatedset-rollout-screener
  parameters: {{scope: {{labelSelector: app=llm}}, revisionGating: {{mode: sum, requireRoles: {{values: [prefill, decode]}}}}}}
- type: queue-scorer
dataLayer:
  sources:
  - {{pluginRef: pods, extractors: [{{pluginRef: rollout}}]}}
  - {{pluginRef: endpoint-notification-source, extractors: [{{pluginRef: inflight-load-producer}}]}}
""")
    gateway = start.gateway("--allow-experimental-plugins", "--endpoints-file", endpoints, "--config-file", config)
    assert who_serves(gateway, 10) == {"default/old"}, "the new revision lacks a ready decode worker"
    share = "llm_d_epp_disaggregatedset_revision_gating_share"
    assert gateway.metric_sum(share, revision="old") == 1

    file.write_text("kind: PodList\n")
    eventually(lambda: gateway.program.log_lines("a file of objects can't be used, the last good ones stay"))
    assert who_serves(gateway, 4) == {"default/old"}

    file.write_text(pods(("a", "old", "prefill", False), ("b", "old", "decode", True), ("c", "new", "prefill", True),
                         ("d", "new", "decode", True)))
    eventually(lambda: who_serves(gateway) == {"default/new"}, what="the new revision is whole")
    assert gateway.metric_sum(share, revision="new") == 1


def test_a_request_waits_for_others_of_its_moment(start, tmp_path):
    engines = start.engines(2)
    config = tmp_path / "epp.yaml"
    config.write_text("""
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 200}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer}]}]
""")
    gateway = start.gateway("--allow-experimental-plugins", "--config-file", config, model_servers=engines.urls)
    began = time.monotonic()
    answer = gateway.post(CHAT, BODY)
    assert answer.status_code == 200
    assert time.monotonic() - began >= 0.2, "alone, it waits all the same"
    assert gateway.explain(CHAT, BODY)["endpoint"], "an explanation does not wait"
