"""A small Kubernetes API server for tests, in Python: objects in memory, discovery, lists with pages, watches with bookmarks
and streaming lists, creation, changes with conflicts, merge patches, reviews. It answers as a real kube-apiserver 1.36 was
recorded to (tests/vectors/kubernetes), as far as a picker asks; it validates no schemas and fills in no defaults.

    ApiServer         the server; who may what is for those who derive from it
    KubernetesApi     one namespace and anybody, but everything breaks on demand: old versions are forgotten, verbs refused,
                      streams cut, watches silent

tests/kubernetes/fake_api.py derives a cluster with users and roles.
"""
import bisect
import collections
import contextlib
import copy
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse
import uuid

POD, POOL, OBJECTIVE, REWRITE, LEASE = "pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites", "leases"
CONFIG_MAP = "configmaps"
Kind = collections.namedtuple("Kind", "group version plural kind namespaced")
Change = collections.namedtuple("Change", "version type key object before")
BUILT_IN = [Kind(*k) for k in [
    ("", "v1", "namespaces", "Namespace", False), ("", "v1", POD, "Pod", True), ("", "v1", "services", "Service", True),
    ("", "v1", "configmaps", "ConfigMap", True), ("", "v1", "secrets", "Secret", True), ("", "v1", "events", "Event", True),
    ("", "v1", "serviceaccounts", "ServiceAccount", True), ("apps", "v1", "deployments", "Deployment", True),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", True),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    ("coordination.k8s.io", "v1", LEASE, "Lease", True),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)]]
CUSTOM = [Kind(*k) for k in [
    ("inference.networking.k8s.io", "v1", POOL, "InferencePool", True),
    ("inference.networking.x-k8s.io", "v1alpha2", OBJECTIVE, "InferenceObjective", True),
    ("inference.networking.x-k8s.io", "v1alpha2", REWRITE, "InferenceModelRewrite", True),
    ("llm-d.ai", "v1alpha2", OBJECTIVE, "InferenceObjective", True),
    ("llm-d.ai", "v1alpha2", REWRITE, "InferenceModelRewrite", True)]]


class Refused(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code, self.body = code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                      "message": message, "reason": reason, "code": code}


def api_version(kind):
    return f"{kind.group}/{kind.version}" if kind.group else kind.version


def full_name(kind):
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def merged(old, change):
    """RFC 7396."""
    if not isinstance(change, dict):
        return change
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def selects(selector, labels):
    """Equality and set-based terms of a label selector."""
    for term in re.findall(r"[^,(]+(?:\([^)]*\))?", selector):
        if match := re.fullmatch(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*", term):
            inside = labels.get(match[1]) in [v.strip() for v in match[3].split(",")]
            if inside != (match[2] == "in"):
                return False
        elif match := re.fullmatch(r"\s*([^=!\s]+)\s*(==?|!=)\s*(\S*)\s*", term):
            if (labels.get(match[1]) == match[3]) == (match[2] == "!="):
                return False
        elif (labels.get(term.strip().lstrip("!")) is not None) == term.strip().startswith("!"):
            return False
    return True


class ApiServer:
    """start() and stop() keep the port and the objects; every change is seen by watches at once."""

    def __init__(self, kinds, port=0, tls=None):
        self.kinds, self.port, self.tls, self.server = list(kinds), port, tls, None
        self.lock = threading.Condition()
        self.version, self.oldest = 100, 0  # watches from before `oldest` are too old
        self.stored = {}  # (group, plural, namespace, name) → object
        self.history = []
        self.epoch = 0  # watches of an earlier one break off
        self.requests = collections.Counter()  # (verb, plural)
        self.bookmarks = []  # versions of bookmarks asked for
        self.silent, self.streaming = False, True  # watches tell nothing; they have streaming lists

    # --- the process

    def start(self):
        self.server = Server(("127.0.0.1", self.port), self)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self):
        """As when the process is killed."""
        server, self.server = self.server, None
        if server:
            server.shutdown()
            server.server_close()
            self._cut(server)

    def cut(self):
        """Breaks every connection."""
        self._cut(self.server)

    def _cut(self, server):
        with self.lock:
            self.epoch += 1
            self.lock.notify_all()
        server.break_connections()

    # --- for those who derive from it

    def user_of(self, token):
        """Whose a token is; None: nobody's."""
        return "picker"

    def authorize(self, user, verb, kind, resource, namespace, name):
        """Raises Refused."""

    def review(self, kind, review, user):
        """The status of a review."""
        raise NotImplementedError

    def known_kinds(self):
        return self.kinds

    # --- requests

    def handle(self, request, method, target, body):
        """Answers one request; watches write to it themselves and return None."""
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query))
        with self.lock:
            user = self.user_of(request.headers.get("authorization", "").removeprefix("Bearer "))
            kinds = list(self.known_kinds())
        if user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        if url.path in ("/readyz", "/livez", "/healthz"):
            return 200, "ok"
        if url.path == "/version":
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
        if discovered := self._discovery(kinds, url.path):
            return 200, discovered
        missing = Refused(404, "NotFound", "the server could not find the requested resource")
        match = re.fullmatch(r"/(?:api/(v1)|apis/([^/]+)/([^/]+))(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?", url.path)
        if not match:
            raise missing
        group, version = match[2] or "", match[1] or match[3]
        namespace, plural, name, subresource = match[4] or "", match[5], match[6] or "", match[7] or ""
        watch = query.get("watch") in ("1", "true") and not name
        verb = {"GET": "get" if name else "watch" if watch else "list", "POST": "create", "PUT": "update", "PATCH": "patch",
                "DELETE": "delete"}[method]
        kind = next((k for k in kinds if k[:3] == (group, version, plural)), None)
        with self.lock:
            self.requests[verb, plural] += 1
            if not kind:
                raise missing
            # A list or watch of one name counts as of that name.
            field = re.fullmatch(r"metadata\.name=(.+)", query.get("fieldSelector", ""))
            self.authorize(user, verb, kind, plural + (f"/{subresource}" if subresource else ""), namespace,
                           name or (field[1] if field else ""))
        if watch:
            return self._watch(request, kind, namespace, query)
        if plural.endswith("reviews"):
            review = json.loads(body)
            return 201, {**review, "status": self.review(kind, review, user)}
        with self.lock:
            key = (group, plural, namespace, name)
            if verb == "list":
                return 200, self._list(kind, namespace, query, "PartialObjectMetadata" in request.headers.get("accept", ""))
            content_type = request.headers.get("content-type", "")
            if verb == "create" or (verb == "patch" and content_type == "application/apply-patch+yaml" and key not in self.stored):
                return 201, self._create(kind, namespace, json.loads(body), query)
            if key not in self.stored:
                raise Refused(404, "NotFound", f'{full_name(kind)} "{name}" not found')
            if verb == "get":
                return 200, self.stored[key]
            if verb == "delete":
                return 200, self._delete(key)
            return 200, self._change(kind, key, content_type, verb, subresource, json.loads(body), query)

    @staticmethod
    def _discovery(kinds, path):
        if match := re.fullmatch(r"/(?:api/(v1)|apis/([^/]+)/([^/]+))", path):
            group, version = match[2] or "", match[1] or match[3]
            found = [k for k in kinds if k[:2] == (group, version)]
            verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
            resources = [{"name": k.plural, "singularName": k.kind.lower(), "namespaced": k.namespaced, "kind": k.kind, "verbs": verbs}
                         for k in found]
            return found and {"kind": "APIResourceList", "apiVersion": "v1", "resources": resources, "groupVersion": api_version(found[0])}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = sorted({k[:2] for k in kinds if k.group})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": g, "versions": [{"groupVersion": f"{g}/{v}", "version": v}],
                 "preferredVersion": {"groupVersion": f"{g}/{v}", "version": v}} for g, v in groups]}
        return None

    # --- objects; under the lock

    def _record(self, what, key, thing):
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        before = self.stored.get(key)
        if what == "DELETED":
            del self.stored[key]
        else:
            self.stored[key] = thing
        self.history.append(Change(self.version, what, key, thing, before))
        self.lock.notify_all()
        return thing

    def _create(self, kind, namespace, thing, query):
        meta = thing.setdefault("metadata", {})
        name = meta.get("name") or meta.get("generateName", "") + uuid.uuid4().hex[:5]
        key = (kind.group, kind.plural, namespace, name)
        if key in self.stored:
            raise Refused(409, "AlreadyExists", f'{full_name(kind)} "{name}" already exists')
        thing = {"apiVersion": api_version(kind), "kind": kind.kind, **thing}
        thing["metadata"] = {**meta, "name": name, **({"namespace": namespace} if namespace else {}), "generation": 1,
                             "uid": str(uuid.uuid4()), "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        return thing if query.get("dryRun") else self._record("ADDED", key, thing)

    def _change(self, kind, key, content_type, verb, subresource, body, query):
        old = self.stored[key]
        asked = body.get("metadata", {}).get("resourceVersion")
        if asked and asked != old["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {full_name(kind)} "{key[3]}": the object has been '
                                           "modified; please apply your changes to the latest version and try again")
        if verb == "patch" and content_type not in ("application/merge-patch+json", "application/apply-patch+yaml"):
            raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}")
        new = dict(body) if verb == "update" else merged(old, body)
        if subresource == "status":
            new = {**old, "status": new.get("status", {})}
        elif verb == "update" and "status" in old:
            new["status"] = old["status"]
        new["metadata"] = {**old["metadata"], **{k: v for k, v in new.get("metadata", {}).items()
                                                 if k in ("labels", "annotations", "finalizers", "deletionTimestamp")}}
        if json.dumps(new, sort_keys=True) == json.dumps(old, sort_keys=True) or query.get("dryRun"):
            return new
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        return self._record("MODIFIED", key, new)

    def _delete(self, key):
        thing = self.stored[key]
        return self._record("DELETED", key, {**thing, "metadata": dict(thing["metadata"])})

    @staticmethod
    def _matching(kind, namespace, query):
        fields = re.findall(r"([\w.]+)==?([^,]*)", query.get("fieldSelector", ""))
        labels = query.get("labelSelector", "")

        def matches(key, thing):
            if thing is None or key[:2] != (kind.group, kind.plural) or (namespace and key[2] != namespace):
                return False
            known = {"metadata.name": key[3], "metadata.namespace": key[2]}
            return all(known.get(name) == value for name, value in fields) and selects(labels, thing["metadata"].get("labels") or {})
        return matches

    def _matches(self, kind, namespace, query):
        matches = self._matching(kind, namespace, query)
        return [thing for key, thing in sorted(self.stored.items(), key=lambda item: item[0]) if matches(key, thing)]

    def _list(self, kind, namespace, query, metadata_only):
        items = self._matches(kind, namespace, query)
        meta = {"resourceVersion": str(self.version)}
        first = int(query.get("continue", "0"))
        if limit := int(query.get("limit", "0")):
            rest = len(items) - first - limit
            items = items[first:first + limit]
            if rest > 0:
                meta |= {"continue": str(first + limit), "remainingItemCount": rest}
        if metadata_only:
            items = [{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]} for o in items]
            return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": meta, "items": items}
        return {"apiVersion": api_version(kind), "kind": kind.kind + "List", "metadata": meta, "items": items}

    def _watch(self, request, kind, namespace, query):
        initial = query.get("sendInitialEvents") == "true"
        if initial and (not self.streaming or query.get("resourceVersionMatch") != "NotOlderThan"):
            raise Refused(422, "Invalid", "sendInitialEvents is forbidden for watch" if not self.streaming else
                          "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        matches = self._matching(kind, namespace, query)
        ends = time.monotonic() + int(query.get("timeoutSeconds", "300"))

        def bookmark(version, **annotations):
            meta = {"resourceVersion": str(version), **({"annotations": annotations} if annotations else {})}
            return {"type": "BOOKMARK", "object": {"apiVersion": api_version(kind), "kind": kind.kind, "metadata": meta}}
        with self.lock:
            epoch, at = self.epoch, self.version
            events = []
            asked = query.get("resourceVersion", "")
            if initial or asked in ("", "0"):
                events = [{"type": "ADDED", "object": thing} for thing in self._matches(kind, namespace, query)]
                if initial:
                    events.append(bookmark(at, **{"k8s.io/initial-events-end": "true"}))
            else:
                at = int(asked)
        request.begin_stream()
        while True:
            request.send_events(events)
            with self.lock:
                def news():
                    return (self.epoch != epoch or at < self.oldest or
                            not self.silent and (self.version > at or any(v > at for v in self.bookmarks[-1:])))
                over = not self.lock.wait_for(news, timeout=max(0.0, ends - time.monotonic()))
                if self.epoch != epoch:
                    request.close_connection = True
                    return None
                if at < self.oldest:
                    too_old = Refused(410, "Expired", f"too old resource version: {at} ({self.oldest})")
                    events, over = [{"type": "ERROR", "object": too_old.body}], True
                else:
                    events = []
                    for change in self.history[bisect.bisect_right(self.history, at, key=lambda c: c.version):]:
                        is_in, was_in = matches(change.key, change.object), matches(change.key, change.before)
                        # What comes to match is new to this watch, what no longer does is gone.
                        if change.type == "DELETED" and is_in or was_in and not is_in:
                            events.append({"type": "DELETED", "object": change.object})
                        elif is_in:
                            events.append({"type": "MODIFIED" if was_in else "ADDED", "object": change.object})
                    marked = over and query.get("allowWatchBookmarks") == "true" or any(v > at for v in self.bookmarks)
                    at = self.version
                    if marked:
                        events.append(bookmark(at))
            if over:
                break
        request.send_events(events)
        request.end_stream()
        return None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, block_on_close, request_queue_size, allow_reuse_address = True, False, 128, True

    def __init__(self, address, api):
        self.api, self.open = api, set()
        super().__init__(address, Handler)

    def break_connections(self):
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        """A connection that broke is none of the tests' business."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        self.raw = self.request
        self.server.open.add(self.raw)
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.server.api.tls:
            self.request.settimeout(60)
            self.request = self.server.api.tls.wrap_socket(self.request, server_side=True)
            self.server.open.discard(self.raw)
            self.raw = self.request
            self.server.open.add(self.raw)
        super().setup()

    def finish(self):
        self.server.open.discard(self.raw)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *arguments):
        pass

    def _answer(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else b""
        try:
            answer = self.server.api.handle(self, self.command, self.path, body)
        except Refused as refused:
            answer = refused.code, refused.body
        if answer is None:
            return
        code, document = answer
        payload = document.encode() if isinstance(document, str) else json.dumps(document, separators=(",", ":")).encode()
        self.send_response(code)
        self.send_header("content-type", "text/plain" if isinstance(document, str) else "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def begin_stream(self):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def send_events(self, events):
        for event in events:
            line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def end_stream(self):
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


class KubernetesApi(ApiServer):
    """Runs from the beginning. Objects as a test sets them, of one namespace unless it says so; no users, no TLS."""
    KINDS = {k.plural: k for k in [*BUILT_IN, *CUSTOM] if k.group != "inference.networking.x-k8s.io" and
             k.plural in (POD, "events", CONFIG_MAP, POOL, OBJECTIVE, REWRITE, LEASE, "tokenreviews", "subjectaccessreviews")}

    def __init__(self, namespace="models"):
        super().__init__(self.KINDS.values())
        self.namespace = namespace
        self.installed = set(self.KINDS)
        self.forbidden = set()  # (verb, plural)
        self.reviews = {}  # token → (user, may read /metrics)
        self.start()

    def known_kinds(self):
        return [kind for kind in self.kinds if kind.plural in self.installed]

    def authorize(self, user, verb, kind, resource, namespace, name):
        if (verb, kind.plural) in self.forbidden:
            raise Refused(403, "Forbidden", f'{kind.plural} is forbidden: User "{user}" cannot {verb} resource "{kind.plural}"')

    def review(self, kind, review, user):
        spec = review["spec"]
        with self.lock:
            if kind.plural == "tokenreviews":
                found = self.reviews.get(spec["token"])
                return {"authenticated": False} if found is None else {"authenticated": True, "user": {"username": found[0]}}
            allowed = any(user == spec["user"] and may for user, may in self.reviews.values())
            return {"allowed": allowed and spec["nonResourceAttributes"]["verb"] == "get"}

    def install(self, kind):
        """One more definition; objects of it are put by its plural."""
        with self.lock:
            self.KINDS = {**self.KINDS, kind.plural: kind}
            self.kinds.append(kind)
            self.installed.add(kind.plural)

    def kubeconfig(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "kubeconfig"
        file.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "picker"}}],
            "users": [{"name": "picker", "user": {"token": "picker-token"}}]}))
        return file

    # --- objects

    @property
    def objects(self):
        """plural → name (of other namespaces namespace/name) → object."""
        found = collections.defaultdict(dict)
        with self.lock:
            for (_, plural, namespace, name), thing in self.stored.items():
                found[plural][name if namespace == self.namespace else f"{namespace}/{name}"] = copy.deepcopy(thing)
        return found

    def _key(self, plural, name, namespace=None):
        return (self.KINDS[plural].group, plural, namespace or self.namespace, name)

    def put(self, plural, name, *, labels=None, annotations=None, deleting=False, created="2026-01-01T00:00:00Z", namespace=None,
            **content):
        kind, key = self.KINDS[plural], self._key(plural, name, namespace)
        metadata = {"name": name, "namespace": key[2], "uid": f"{plural}-{name}", "creationTimestamp": created}
        for field, value in (("labels", labels), ("annotations", annotations)):
            if value is not None:
                metadata[field] = value
        if deleting:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        with self.lock:
            self._record("MODIFIED" if key in self.stored else "ADDED", key,
                         {"apiVersion": api_version(kind), "kind": kind.kind, "metadata": metadata, **content})

    def delete(self, plural, name, namespace=None):
        with self.lock:
            self._delete(self._key(plural, name, namespace))

    def put_pod(self, name, ip, ready=True, labels=None, **more):
        self.put(POD, name, labels={"app": "vllm"} if labels is None else labels,
                 spec={"containers": [{"name": "engine"}]},
                 status={"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                         "conditions": [{"type": "Initialized", "status": "True"},
                                        {"type": "Ready", "status": "True" if ready else "False"}]}, **more)

    def put_pool(self, name="pool", ports=(8000,), labels=None, **spec):
        self.put(POOL, name, spec={"selector": {"matchLabels": labels or {"app": "vllm"}},
                                   "targetPorts": [{"number": port} for port in ports], "appProtocol": "http",
                                   "endpointPickerRef": {"group": "", "kind": "Service", "name": "epp", "port": {"number": 9002},
                                                         "failureMode": "FailClose"}, **spec})

    def put_objective(self, name, priority, pool="pool"):
        self.put(OBJECTIVE, name, spec={"priority": priority, "poolRef": {"group": "inference.networking.k8s.io",
                                                                          "kind": "InferencePool", "name": pool}})

    def put_rewrite(self, name, model, target, pool="pool", **more):
        self.put(REWRITE, name, spec={"poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool},
                                      "rules": [{"matches": [{"model": {"type": "Exact", "value": model}}],
                                                 "targets": [{"modelRewrite": target}]}]}, **more)

    def forget(self):
        """What happened so far can't be watched from any more."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            self.lock.notify_all()

    def bookmark(self):
        with self.lock:
            self.version += 1
            self.bookmarks.append(self.version)
            self.lock.notify_all()

    def wake(self, **changes):
        """Sets fields of the server itself."""
        with self.lock:
            for name, value in changes.items():
                setattr(self, name, value)
            self.lock.notify_all()
