"""A stand-in for the Kubernetes API where the real one isn't built: what an endpoint picker needs of it, in Python.

FakeCluster has the interface of control_plane.ControlPlane, so that the same tests run on both: TLS, users by token,
objects of all namespaces, lists, watches (streaming lists, bookmarks), writes with conflicts, merge patches, reviews. It
judges every request by the Roles and ClusterRoles that were applied to it; it validates no schemas and fills in no
defaults. (tests/e2e/kubernetes_api.py is the one for a watch's faults: one namespace, no users, everything breakable.)

    cluster.denied       what was refused: [(user, verb, group, resource, namespace)]
    cluster.used         what was let in, of users other than the admin: the same, as a set
"""
import contextlib
import http.server
import json
import re
import socketserver
import ssl
import threading
import time
import urllib.parse
import uuid

from control_plane import ADMIN_TOKEN, Cluster

# (group, version, plural, kind, namespaced)
BUILT_IN = [
    ("", "v1", "namespaces", "Namespace", False), ("", "v1", "pods", "Pod", True), ("", "v1", "services", "Service", True),
    ("", "v1", "configmaps", "ConfigMap", True), ("", "v1", "secrets", "Secret", True), ("", "v1", "events", "Event", True),
    ("", "v1", "serviceaccounts", "ServiceAccount", True), ("apps", "v1", "deployments", "Deployment", True),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", True),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    ("coordination.k8s.io", "v1", "leases", "Lease", True),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)]
CUSTOM = [
    ("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool", True),
    ("inference.networking.x-k8s.io", "v1alpha2", "inferenceobjectives", "InferenceObjective", True),
    ("inference.networking.x-k8s.io", "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite", True),
    ("llm-d.ai", "v1alpha2", "inferenceobjectives", "InferenceObjective", True),
    ("llm-d.ai", "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite", True)]
ADMIN = "admin"


class Refused(Exception):
    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code, self.body = code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                      "message": message, "reason": reason, "code": code}


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


class FakeCluster(Cluster):
    def __init__(self, folder):
        super().__init__(folder)
        self.lock = threading.Condition()
        self.kinds = list(BUILT_IN)
        self.objects = {}  # (group, plural, namespace, name) -> object
        self.history = []  # (version, type, key, object, the object before)
        self.version = 100
        self.users = {ADMIN_TOKEN: ADMIN}
        self.denied, self.used = [], set()
        self.watch_epoch, self.server = 0, None  # watches of an earlier epoch end

    # --- as ControlPlane ---

    def start(self):
        self._make_credentials()
        self.start_api_server()
        self.admin = self.api(ADMIN_TOKEN)
        return self

    def start_api_server(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        context.set_alpn_protocols(["http/1.1"])
        self.server = Server(("127.0.0.1", self.port), self, context)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop_api_server(self):
        """Connections break, as when the process is killed; objects stay."""
        server, self.server = self.server, None
        if server:
            server.shutdown()
            server.server_close()
            with self.lock:
                self.watch_epoch += 1
                self.lock.notify_all()
            server.break_connections()

    def stop(self):
        self.stop_api_server()
        for api in self.apis:
            api.close()
        self.apis = []

    def install_crds(self, *kinds):
        with self.lock:
            self.kinds += [kind for kind in kinds or CUSTOM if kind not in self.kinds]

    def token_of(self, namespace, account, seconds=3600):
        with self.lock:
            assert ("", "serviceaccounts", namespace, account) in self.objects, f"no service account {namespace}/{account}"
            token = str(uuid.uuid4())
            self.users[token] = f"system:serviceaccount:{namespace}:{account}"
        return token

    # --- who may what ---

    def allowed(self, user, verb, group, resource, namespace="", name="", path=None):
        """By the roles that are bound to this user."""
        if user == ADMIN:
            return True

        def grants(role):
            for rule in role.get("rules") or []:
                verbs = rule["verbs"]
                if path is not None:
                    if verb in verbs and path in rule.get("nonResourceURLs", []):
                        return True
                elif (verb in verbs and group in rule.get("apiGroups", []) and resource in rule.get("resources", [])
                      and (not rule.get("resourceNames") or name in rule["resourceNames"])):
                    return True
            return False

        def bound(binding):
            return any(user == f"system:serviceaccount:{s.get('namespace')}:{s['name']}" for s in binding.get("subjects", [])
                       if s["kind"] == "ServiceAccount")
        rbac = "rbac.authorization.k8s.io"
        for (g, plural, ns, _), binding in list(self.objects.items()):
            if g != rbac or plural not in ("rolebindings", "clusterrolebindings") or not bound(binding):
                continue
            if plural == "rolebindings" and (ns != namespace or path is not None):
                continue
            reference = binding["roleRef"]
            key = (rbac, "roles", ns, reference["name"]) if reference["kind"] == "Role" else (rbac, "clusterroles", "", reference["name"])
            if grants(self.objects.get(key, {})):
                return True
        return False

    def _check(self, user, verb, group, resource, namespace, name):
        what = (user, verb, group, resource, namespace)
        if self.allowed(user, verb, group, resource, namespace, name):
            if user != ADMIN:
                self.used.add(what)
            return
        self.denied.append(what)
        plural = resource.partition("/")[0]
        full = f"{plural}.{group}" if group else plural
        named = f' "{name}"' if name else ""
        place = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
        raise Refused(403, "Forbidden", f'{full}{named} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
                                        f'in API group "{group}"{place}')

    # --- requests ---

    def handle(self, request, method, target, body):
        """Answers one request; watches write to it themselves and return None."""
        url = urllib.parse.urlsplit(target)
        query = {k: v[0] for k, v in urllib.parse.parse_qs(url.query).items()}
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        with self.lock:
            user = self.users.get(token)
        if user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        if url.path in ("/readyz", "/livez", "/healthz"):
            return 200, "ok"
        if url.path == "/version":
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
        if discovered := self._discovery(url.path):
            return 200, discovered
        match = re.fullmatch(r"/(?:api/(v1)|apis/([^/]+)/([^/]+))(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?", url.path)
        if not match:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        group, version = match[2] or "", match[1] or match[3]
        namespace, plural, name, subresource = match[4] or "", match[5], match[6] or "", match[7] or ""
        with self.lock:
            kind = next((k for k in self.kinds if k[:3] == (group, version, plural)), None)
        if not kind:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        watch = query.get("watch") in ("1", "true")
        verb = {"GET": "get" if name else "watch" if watch else "list", "POST": "create", "PUT": "update", "PATCH": "patch",
                "DELETE": "delete"}[method]
        resource = plural + (f"/{subresource}" if subresource else "")
        with self.lock:
            # A list or watch of one name counts as of that name.
            field = re.fullmatch(r"metadata\.name=(.+)", query.get("fieldSelector", ""))
            if not (user != ADMIN and plural == "selfsubjectaccessreviews"):
                self._check(user, verb, group, resource, namespace, name or (field[1] if field and not name else ""))
        if watch and not name:
            return self._watch(request, kind, namespace, query)
        if plural.endswith("reviews"):
            return 201, self._review(kind, json.loads(body), user)
        with self.lock:
            key = (group, plural, namespace, name)
            if verb == "list":
                return 200, self._list(kind, namespace, query, "PartialObjectMetadata" in request.headers.get("accept", ""))
            if verb == "create":
                return 201, self._create(kind, namespace, json.loads(body), query)
            if verb == "patch" and request.headers.get("content-type") == "application/apply-patch+yaml" and key not in self.objects:
                return 201, self._create(kind, namespace, json.loads(body), query)
            if key not in self.objects:
                raise Refused(404, "NotFound", f'{self._full(kind)} "{name}" not found')
            if verb == "get":
                return 200, self.objects[key]
            if verb == "delete":
                return 200, self._delete(key)
            return 200, self._change(kind, key, request.headers.get("content-type", ""), verb, subresource, json.loads(body), query)

    def _discovery(self, path):
        with self.lock:
            kinds = list(self.kinds)
        if match := re.fullmatch(r"/(?:api/(v1)|apis/([^/]+)/([^/]+))", path):
            group, version = match[2] or "", match[1] or match[3]
            found = [k for k in kinds if k[:2] == (group, version)]
            verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
            resources = [{"name": k[2], "singularName": k[3].lower(), "namespaced": k[4], "kind": k[3], "verbs": verbs} for k in found]
            return found and {"kind": "APIResourceList", "apiVersion": "v1", "resources": resources,
                              "groupVersion": f"{group}/{version}" if group else version}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = sorted({k[:2] for k in kinds if k[0]})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": g, "versions": [{"groupVersion": f"{g}/{v}", "version": v}],
                 "preferredVersion": {"groupVersion": f"{g}/{v}", "version": v}} for g, v in groups]}
        return None

    @staticmethod
    def _full(kind):
        return f"{kind[2]}.{kind[0]}" if kind[0] else kind[2]

    def _record(self, what, key, thing, before=None):
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, what, key, thing, before))
        self.lock.notify_all()
        return thing

    def _create(self, kind, namespace, thing, query):
        thing.setdefault("metadata", {})
        name = thing["metadata"].get("name") or thing["metadata"].get("generateName", "") + uuid.uuid4().hex[:5]
        key = (kind[0], kind[2], namespace, name)
        if key in self.objects:
            raise Refused(409, "AlreadyExists", f'{self._full(kind)} "{name}" already exists')
        thing = {"apiVersion": f"{kind[0]}/{kind[1]}" if kind[0] else kind[1], "kind": kind[3], **thing}
        thing["metadata"] = {**thing["metadata"], "name": name, **({"namespace": namespace} if namespace else {}), "generation": 1,
                             "uid": str(uuid.uuid4()), "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if query.get("dryRun"):
            return thing
        self.objects[key] = thing
        return self._record("ADDED", key, thing)

    def _change(self, kind, key, content_type, verb, subresource, body, query):
        old = self.objects[key]
        asked = body.get("metadata", {}).get("resourceVersion")
        if asked and asked != old["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {self._full(kind)} "{key[3]}": the object has been '
                                           "modified; please apply your changes to the latest version and try again")
        if verb == "patch" and content_type not in ("application/merge-patch+json", "application/apply-patch+yaml"):
            raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}")
        new = dict(body) if verb == "update" else merged(old, body)
        if subresource == "status":
            new = {**old, "status": new.get("status", {})}
        elif verb == "update" and "status" in old:
            new["status"] = old["status"]
        new["metadata"] = {**old["metadata"], **{k: v for k, v in new["metadata"].items() if k in ("labels", "annotations", "finalizers", "deletionTimestamp")}}
        if json.dumps(new, sort_keys=True) == json.dumps(old, sort_keys=True) or query.get("dryRun"):
            return new
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        self.objects[key] = new
        return self._record("MODIFIED", key, new, old)

    def _delete(self, key):
        thing = self.objects.pop(key)
        gone = {**thing, "metadata": dict(thing["metadata"])}
        return self._record("DELETED", key, gone)

    def _matching(self, kind, namespace, query):
        def matches(key, thing):
            if key[:2] != (kind[0], kind[2]) or (namespace and key[2] != namespace):
                return False
            for name, value in re.findall(r"([\w.]+)==?([^,]*)", query.get("fieldSelector", "")):
                if {"metadata.name": key[3], "metadata.namespace": key[2]}.get(name) != value:
                    return False
            return selects(query.get("labelSelector", ""), thing["metadata"].get("labels") or {})
        return matches

    def _list(self, kind, namespace, query, metadata_only):
        matches = self._matching(kind, namespace, query)
        items = [o for k, o in sorted(self.objects.items()) if matches(k, o)]
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
        api_version = f"{kind[0]}/{kind[1]}" if kind[0] else kind[1]
        return {"apiVersion": api_version, "kind": kind[3] + "List", "metadata": meta, "items": items}

    def _watch(self, request, kind, namespace, query):
        matches = self._matching(kind, namespace, query)
        api_version = f"{kind[0]}/{kind[1]}" if kind[0] else kind[1]
        initial = query.get("sendInitialEvents") == "true"
        if initial and query.get("resourceVersionMatch") != "NotOlderThan":
            raise Refused(422, "Invalid", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        ends = time.monotonic() + int(query.get("timeoutSeconds", "300"))

        def bookmark(version, **annotations):
            meta = {"resourceVersion": str(version), **({"annotations": annotations} if annotations else {})}
            return {"type": "BOOKMARK", "object": {"apiVersion": api_version, "kind": kind[3], "metadata": meta}}
        request.begin_stream()
        with self.lock:
            epoch, start = self.watch_epoch, self.version
            asked = query.get("resourceVersion", "")
            first = []
            if initial or asked in ("", "0"):
                first = [{"type": "ADDED", "object": o} for k, o in sorted(self.objects.items()) if matches(k, o)]
                if initial:
                    first.append(bookmark(start, **{"k8s.io/initial-events-end": "true"}))
                at = start
            else:
                at = int(asked)
        for event in first:
            request.send_event(event)
        while True:
            with self.lock:
                if self.watch_epoch == epoch and self.version <= at:
                    self.lock.wait(timeout=max(0.0, ends - time.monotonic()))
                if self.watch_epoch != epoch:
                    break
                over = time.monotonic() >= ends
                events = []
                for version, what, key, thing, before in self.history:
                    if version <= at:
                        continue
                    is_in, was_in = matches(key, thing), before is not None and matches(key, before)
                    if what == "MODIFIED" and is_in != was_in:
                        # What comes to match is new to this watch, what no longer does is gone.
                        events.append({"type": "ADDED" if is_in else "DELETED", "object": thing})
                    elif is_in:
                        events.append({"type": what, "object": thing})
                at = self.version
                if over and query.get("allowWatchBookmarks") == "true":
                    events.append(bookmark(at))
            for event in events:
                request.send_event(event)
            if over:
                break
        request.end_stream()
        return None

    def _review(self, kind, review, user):
        spec = review["spec"]
        if kind[3] == "TokenReview":
            found = self.users.get(spec["token"])
            return {**review, "status": {"authenticated": True, "user": {"username": found, "groups": ["system:authenticated"]}}
                    if found else {"authenticated": False, "error": "invalid bearer token"}}
        asker = user if kind[3].startswith("Self") else spec["user"]
        with self.lock:
            if "nonResourceAttributes" in spec:
                wanted = spec["nonResourceAttributes"]
                allowed = self.allowed(asker, wanted["verb"], "", "", path=wanted["path"])
            else:
                wanted = spec["resourceAttributes"]
                resource = wanted["resource"] + (f"/{wanted['subresource']}" if wanted.get("subresource") else "")
                allowed = self.allowed(asker, wanted["verb"], wanted.get("group", ""), resource, wanted.get("namespace", ""), wanted.get("name", ""))
        return {**review, "status": {"allowed": allowed}}


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, block_on_close, request_queue_size, allow_reuse_address = True, False, 128, True

    def __init__(self, address, cluster, context):
        self.cluster, self.context, self.connections = cluster, context, set()
        super().__init__(address, Handler)

    def break_connections(self):
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.close()

    def handle_error(self, request, client_address):
        """A connection that broke is none of the tests' business."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        self.request.settimeout(60)
        self.request = self.server.context.wrap_socket(self.request, server_side=True)
        self.server.connections.add(self.request)
        super().setup()

    def finish(self):
        self.server.connections.discard(self.request)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *arguments):
        pass

    def _answer(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else b""
        try:
            answer = self.server.cluster.handle(self, self.command, self.path, body)
        except Refused as refused:
            answer = refused.code, refused.body
        if answer is None:
            return
        code, document = answer
        payload = document.encode() if isinstance(document, str) else json.dumps(document).encode()
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

    def send_event(self, event):
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def end_stream(self):
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
