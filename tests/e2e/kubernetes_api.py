"""A small Kubernetes API server for tests: objects in memory, lists with pages, watches with bookmarks and streaming
lists, old versions forgotten on demand, refusals, cuts, silence, and times when nobody is there.

It answers as a real kube-apiserver 1.36 was recorded to (tests/vectors/kubernetes), as far as a picker asks.
"""
import collections
import contextlib
import copy
import http.server
import json
import socket
import threading
import urllib.parse

POD, POOL, OBJECTIVE, REWRITE, LEASE = "pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites", "leases"
CONFIG_MAP = "configmaps"
KINDS = {
    POD: ("", "v1", "Pod"),
    "events": ("", "v1", "Event"),
    CONFIG_MAP: ("", "v1", "ConfigMap"),
    POOL: ("inference.networking.k8s.io", "v1", "InferencePool"),
    OBJECTIVE: ("llm-d.ai", "v1alpha2", "InferenceObjective"),
    REWRITE: ("llm-d.ai", "v1alpha2", "InferenceModelRewrite"),
    LEASE: ("coordination.k8s.io", "v1", "Lease"),
}
Change = collections.namedtuple("Change", "version kind before after")


def selects(selector, labels):
    """matchLabels only: a=b,c=d."""
    wanted = dict(part.split("=", 1) for part in selector.split(",")) if selector else {}
    return all(labels.get(key) == value for key, value in wanted.items())


class KubernetesApi:
    """start() and stop() keep the port and the objects; every other change is seen by watches at once."""

    def __init__(self, namespace="models"):
        self.namespace = namespace
        self.lock = threading.Condition()
        self.version, self.oldest = 100, 0  # of the log: watches from before `oldest` are too old
        self.objects = collections.defaultdict(dict)  # kind → name → object
        self.log = []
        self.bookmarks = []  # versions of bookmarks asked for
        self.installed = set(KINDS)
        self.forbidden = set()  # (verb, kind)
        self.reviews = {}  # token → (user, may read /metrics)
        self.silent = False  # watches tell nothing
        self.streaming = True
        self.generation = 0  # watches of an earlier one break off
        self.requests = collections.Counter()  # (verb, kind)
        self.port = None
        self.server = None
        self.start()

    # --- the server

    def start(self):
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do(self):
                with contextlib.suppress(ConnectionError, BrokenPipeError):
                    api.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            connections = set()

            def get_request(self):
                connection, address = super().get_request()
                self.connections.add(connection)
                return connection, address

        self.server = Server(("127.0.0.1", self.port or 0), Handler)
        self.server.connections = set()
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.cut()

    def cut(self):
        """Breaks every connection."""
        with self.lock:
            self.generation += 1
            self.lock.notify_all()
        for connection in list(self.server.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server.connections.clear()

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

    def put(self, kind, name, *, labels=None, annotations=None, deleting=False, created="2026-01-01T00:00:00Z", namespace=None,
            **content):
        with self.lock:
            group, version, title = KINDS[kind]
            self.version += 1
            metadata = {"name": name, "namespace": namespace or self.namespace, "resourceVersion": str(self.version), "uid": f"{kind}-{name}",
                        "creationTimestamp": created}
            for key, value in (("labels", labels), ("annotations", annotations)):
                if value is not None:
                    metadata[key] = value
            if deleting:
                metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            made = {"apiVersion": f"{group}/{version}" if group else version, "kind": title, "metadata": metadata, **content}
            self._set(kind, self.key(name, namespace), made)

    def key(self, name, namespace=None):
        return name if namespace in (None, self.namespace) else f"{namespace}/{name}"

    def _set(self, kind, name, made):
        self.log.append(Change(self.version, kind, self.objects[kind].get(name), made))
        self.objects[kind][name] = made
        self.lock.notify_all()

    def delete(self, kind, name, namespace=None):
        with self.lock:
            self.version += 1
            last = copy.deepcopy(self.objects[kind].pop(self.key(name, namespace)))
            last["metadata"]["resourceVersion"] = str(self.version)
            self.log.append(Change(self.version, kind, last, None))
            self.lock.notify_all()

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
            self.log.clear()

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

    # --- answers

    def answer(self, request):
        length = int(request.headers.get("content-length", 0))
        body = json.loads(request.rfile.read(length)) if length else None
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        parts = url.path.strip("/").split("/")
        version = 2 if parts[0] == "apis" else 1
        rest = parts[version + 1:] if parts[0] == "apis" else parts[2:]
        group = parts[1] if parts[0] == "apis" else ""
        if not rest:
            return self.discover(request, group, parts[version])
        if rest[0] in ("tokenreviews", "subjectaccessreviews"):
            return self.review(request, rest[0], body)
        if rest[0] == "namespaces":
            query["namespace"] = rest[1]
            rest = rest[2:]
        kind, name = rest[0], rest[1] if len(rest) > 1 else None
        verb = {"GET": "get" if name else "watch" if query.get("watch") else "list", "POST": "create", "PUT": "update",
                "PATCH": "patch", "DELETE": "delete"}[request.command]
        with self.lock:
            self.requests[verb, kind] += 1
            there = kind in self.installed and KINDS.get(kind, ("?",))[0] == group
            allowed = (verb, kind) not in self.forbidden
        if not allowed:
            return self.refuse(request, 403, "Forbidden", f'{kind} is forbidden: User "picker" cannot {verb} resource "{kind}"')
        if not there:
            return self.refuse(request, 404, "NotFound", "the server could not find the requested resource")
        if verb == "watch":
            return self.watch(request, kind, query)
        if verb == "list":
            return self.list(request, kind, query)
        return self.one(request, verb, kind, name and self.key(name, query.get("namespace")), body)

    def send(self, request, status, document):
        data = json.dumps(document, separators=(",", ":")).encode()
        request.send_response(status)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    @staticmethod
    def status(code, reason, message):
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
                "code": code}

    def refuse(self, request, code, reason, message):
        self.send(request, code, self.status(code, reason, message))

    def discover(self, request, group, version):
        with self.lock:
            names = [kind for kind in self.installed if KINDS[kind][:2] == (group, version)]
        if not names:
            return self.refuse(request, 404, "NotFound", "the server could not find the requested resource")
        self.send(request, 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}",
                                 "resources": [{"name": name, "namespaced": True} for name in names]})

    def review(self, request, kind, body):
        with self.lock:
            self.requests["create", kind] += 1
            spec = body["spec"]
            if kind == "tokenreviews":
                user = self.reviews.get(spec["token"])
                status = {"authenticated": False} if user is None else {"authenticated": True, "user": {"username": user[0]}}
            else:
                allowed = any(user == spec["user"] and may for user, may in self.reviews.values())
                status = {"allowed": allowed and spec["nonResourceAttributes"]["verb"] == "get"}
        self.send(request, 201, {**body, "status": status})

    def selected(self, kind, query):
        for name, made in sorted(self.objects[kind].items()):
            if self.is_selected(made, query):
                yield made

    @staticmethod
    def is_selected(made, query):
        field, metadata = query.get("fieldSelector", ""), made["metadata"]
        if field.startswith("metadata.name=") and metadata["name"] != field.split("=", 1)[1]:
            return False
        if query.get("namespace", metadata["namespace"]) != metadata["namespace"]:
            return False
        return selects(query.get("labelSelector", ""), metadata.get("labels", {}))

    def list(self, request, kind, query):
        with self.lock:
            items = [copy.deepcopy(made) for made in self.selected(kind, query)]
            version = str(self.version)
        begin = int(query.get("continue", 0))
        limit = int(query.get("limit", 0)) or len(items)
        metadata = {"resourceVersion": version}
        if begin + limit < len(items):
            metadata["continue"] = str(begin + limit)
        if "PartialObjectMetadataList" in request.headers.get("accept", ""):
            items = [{"metadata": made["metadata"]} for made in items]
        self.send(request, 200, {"kind": KINDS[kind][2] + "List", "apiVersion": "v1", "metadata": metadata,
                                 "items": items[begin:begin + limit]})

    def one(self, request, verb, kind, name, body):
        with self.lock:
            if verb == "create":
                given = body["metadata"]
                given.setdefault("name", f"{given.get('generateName', '')}{self.version}")
            known = self.objects[kind].get(name or body["metadata"]["name"])
            if verb == "create":
                if known is not None:
                    return self.refuse(request, 409, "AlreadyExists", "it exists")
                name = body["metadata"]["name"]
            elif known is None:
                return self.refuse(request, 404, "NotFound", f'{kind} "{name}" not found')
            if verb in ("create", "update", "patch"):
                given = body["metadata"].get("resourceVersion") if body else None
                if verb == "update" and given and given != known["metadata"]["resourceVersion"]:
                    return self.refuse(request, 409, "Conflict", "the object has been modified")
                self.version += 1
                made = copy.deepcopy(body) if verb != "patch" else {**copy.deepcopy(known), **copy.deepcopy(body)}
                base = known["metadata"] if known else {"uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
                made["metadata"] = {**base, **made.get("metadata", {}), "resourceVersion": str(self.version)}
                self._set(kind, name, made)
                known = made
            answer = copy.deepcopy(known)
        if verb == "delete":
            self.delete(kind, name)
        self.send(request, 201 if verb == "create" else 200, answer)

    def watch(self, request, kind, query):
        initial = query.get("sendInitialEvents") == "true"
        if initial and not self.streaming:
            return self.refuse(request, 422, "Invalid", "sendInitialEvents is forbidden for watch")
        request.send_response(200)
        request.send_header("content-type", "application/json")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()

        def send(type_, made):
            line = json.dumps({"type": type_, "object": made}, separators=(",", ":")).encode() + b"\n"
            request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

        def bookmark(version, **annotations):
            send("BOOKMARK", {"kind": KINDS[kind][2], "metadata": {"resourceVersion": str(version), **annotations}})

        def end():
            request.wfile.write(b"0\r\n\r\n")

        with self.lock:
            generation = self.generation
            at = self.version if initial else int(query.get("resourceVersion") or self.version)
            items = [copy.deepcopy(made) for made in self.selected(kind, query)] if initial else []
        for made in items:
            send("ADDED", made)
        if initial:
            bookmark(at, annotations={"k8s.io/initial-events-end": "true"})
        request.wfile.flush()

        def seen(made):
            return made is not None and self.is_selected(made, query)

        while True:
            with self.lock:
                def news():
                    return (self.generation != generation or at < self.oldest or
                            not self.silent and any(v > at for v in (self.version, *self.bookmarks[-1:])))
                self.lock.wait_for(news)
                if self.generation != generation:
                    request.close_connection = True
                    return
                if at < self.oldest:
                    send("ERROR", self.status(410, "Expired", f"too old resource version: {at} ({self.oldest})"))
                    return end()
                changes = [change for change in self.log if change.version > at and change.kind == kind]
                marks = [version for version in self.bookmarks if version > at]
                at = self.version
            for change in changes:
                before, after = seen(change.before), seen(change.after)
                if after:
                    send("MODIFIED" if before else "ADDED", change.after)
                elif before:
                    send("DELETED", {**change.before, "metadata": {**change.before["metadata"],
                                                                   "resourceVersion": str(change.version)}})
            if marks:
                bookmark(marks[-1])
            request.wfile.flush()
