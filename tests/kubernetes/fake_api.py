"""A stand-in for the Kubernetes API where the real one isn't built: FakeCluster has the interface of
control_plane.ControlPlane, so that the same tests run on both. TLS, users by token, objects of all namespaces; it judges
every request by the Roles and ClusterRoles that were applied to it. The server itself is tests/e2e/kubernetes_api.py.

    cluster.denied       what was refused: [(user, verb, group, resource, namespace)]
    cluster.used         what was let in, of users other than the admin: the same, as a set
"""
import ssl
import uuid

from control_plane import ADMIN_TOKEN, Cluster
from kubernetes_api import BUILT_IN, CUSTOM, ApiServer, Refused, full_name

ADMIN = "admin"
RBAC = "rbac.authorization.k8s.io"


class RoleServer(ApiServer):
    """Lets in whom the roles allow."""

    def __init__(self, port, tls):
        super().__init__(BUILT_IN, port, tls)
        self.users = {ADMIN_TOKEN: ADMIN}
        self.denied, self.used = [], set()

    def user_of(self, token):
        return self.users.get(token)

    def authorize(self, user, verb, kind, resource, namespace, name):
        what = (user, verb, kind.group, resource, namespace)
        if kind.plural == "selfsubjectaccessreviews" or self.allowed(user, verb, kind.group, resource, namespace, name):
            if user != ADMIN:
                self.used.add(what)
            return
        self.denied.append(what)
        named = f' "{name}"' if name else ""
        place = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
        raise Refused(403, "Forbidden", f'{full_name(kind)}{named} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
                                        f'in API group "{kind.group}"{place}')

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
        for (group_of, plural, of, _), binding in list(self.stored.items()):
            if group_of != RBAC or plural not in ("rolebindings", "clusterrolebindings") or not bound(binding):
                continue
            if plural == "rolebindings" and (of != namespace or path is not None):
                continue
            reference = binding["roleRef"]
            key = (RBAC, "roles", of, reference["name"]) if reference["kind"] == "Role" else (RBAC, "clusterroles", "", reference["name"])
            if grants(self.stored.get(key, {})):
                return True
        return False

    def review(self, kind, review, user):
        spec = review["spec"]
        with self.lock:
            if kind.kind == "TokenReview":
                found = self.users.get(spec["token"])
                return {"authenticated": True, "user": {"username": found, "groups": ["system:authenticated"]}} if found else {
                    "authenticated": False, "error": "invalid bearer token"}
            asker = user if kind.kind.startswith("Self") else spec["user"]
            if "nonResourceAttributes" in spec:
                wanted = spec["nonResourceAttributes"]
                return {"allowed": self.allowed(asker, wanted["verb"], "", "", path=wanted["path"])}
            wanted = spec["resourceAttributes"]
            resource = wanted["resource"] + (f"/{wanted['subresource']}" if wanted.get("subresource") else "")
            return {"allowed": self.allowed(asker, wanted["verb"], wanted.get("group", ""), resource, wanted.get("namespace", ""),
                                            wanted.get("name", ""))}


class FakeCluster(Cluster):
    def start(self):
        self._make_credentials()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        tls.set_alpn_protocols(["http/1.1"])
        self.server = RoleServer(self.port, tls)
        self.denied, self.used = self.server.denied, self.server.used
        self.start_api_server()
        self.admin = self.api(ADMIN_TOKEN)
        return self

    def start_api_server(self):
        self.server.start()

    def stop_api_server(self):
        """Connections break, as when the process is killed; objects stay."""
        self.server.stop()

    def stop(self):
        self.stop_api_server()
        for api in self.apis:
            api.close()
        self.apis = []

    def install_crds(self, *kinds):
        with self.server.lock:
            self.server.kinds += [kind for kind in kinds or CUSTOM if kind not in self.server.kinds]

    def token_of(self, namespace, account, seconds=3600):
        with self.server.lock:
            assert ("", "serviceaccounts", namespace, account) in self.server.stored, f"no service account {namespace}/{account}"
            token = str(uuid.uuid4())
            self.server.users[token] = f"system:serviceaccount:{namespace}:{account}"
        return token

    def revocable_token(self, namespace, account):
        token = self.token_of(namespace, account)
        return token, lambda: self.server.users.pop(token)
