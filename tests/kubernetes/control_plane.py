"""A real Kubernetes API on loopback: etcd, kube-apiserver with RBAC and, where asked for, kube-controller-manager.

    plane = ControlPlane(folder)        # running_plane() in fixtures
    plane.start()
    plane.install_crds()
    plane.create_namespace("team")
    plane.admin.apply({"apiVersion": "v1", "kind": "ConfigMap", ...})
    plane.kubeconfig(plane.token_of("team", "picker"))      # a path, for --kubeconfig or KUBECONFIG
    plane.stop_api_server(); plane.start_api_server()       # the same port, the same data
    plane.stop()

There is no scheduler and no kubelet: pods are objects, and Plane.ready_pod() gives one the status of a running pod
with the address that the test names. Programs come from build/kubernetes/ (tools/kubernetes-tools); what runs listens
on 127.0.0.1, and everything it writes is in `folder`.
"""
import base64
import contextlib
import json
import os
import pathlib
import signal
import ssl
import subprocess
import time

import httpx
import yaml

from charts import LOADER, absent
from harness import ROOT, eventually, free_port

TOOLS = pathlib.Path(os.environ.get("PENSTOCK_KUBERNETES", ROOT / "build" / "kubernetes"))
ADMIN_TOKEN, CONTROLLER_TOKEN = "admin-token", "controller-token"
NODE = "loopback"
START_SECONDS = 180  # a busy machine of two cores; 7 to 17 s else


def missing_programs(controllers=False):
    """Names of what isn't built; tests are skipped, or fail, by it."""
    names = ["etcd", "kube-apiserver", *(["kube-controller-manager"] if controllers else [])]
    found = [name for name in names if not (TOOLS / "bin" / name).exists()]
    return found + ([] if (TOOLS / "crds" / "key").exists() else ["crds"])


class ApiError(AssertionError):
    """The API refused: `status` is the HTTP status, `reason` and the message are those of its Status object."""

    def __init__(self, answer):
        try:
            body = answer.json()
        except ValueError:
            body = {}
        self.status, self.reason = answer.status_code, body.get("reason", "")
        super().__init__(f"{answer.request.method} {answer.request.url}: {answer.status_code} {body.get('message', answer.text)}")


class Patient(httpx.HTTPTransport):
    """Asks again after a 429, as clients of this API do: a server that has just begun has them for custom resources."""

    def handle_request(self, request):
        ask = super().handle_request

        def answered():
            answer = ask(request)
            if answer.status_code != 429:
                return answer
            answer.read()
            return None
        return eventually(answered, START_SECONDS, f"{request.method} {request.url} is let in")


class Api:
    """The API as one user sees it. Objects are dicts; kinds are found by discovery."""

    def __init__(self, url, authorities, token):
        self.url, self.token = url, token
        transport = Patient(verify=ssl.create_default_context(cafile=str(authorities)))
        self.http = httpx.Client(base_url=url, transport=transport, timeout=30, trust_env=False,
                                 headers={"authorization": f"Bearer {token}", "user-agent": "tests"})
        self.kinds = {}

    def close(self):
        self.http.close()

    def _resource(self, api_version, kind):
        """(plural, namespaced) of a kind."""
        if (api_version, kind) not in self.kinds:
            answer = self.http.get(("/api/" if "/" not in api_version else "/apis/") + api_version)
            if answer.status_code != 200:
                raise ApiError(answer)
            for each in answer.json()["resources"]:
                if "/" not in each["name"]:
                    self.kinds[api_version, each["kind"]] = each["name"], each["namespaced"]
        assert (api_version, kind) in self.kinds, f"the API server knows no {kind} in {api_version}"
        return self.kinds[api_version, kind]

    def serves(self, api_version, kind):
        with contextlib.suppress(AssertionError):
            return bool(self._resource(api_version, kind))
        return False

    def path(self, api_version, kind, namespace=None, name=None, subresource=None):
        plural, namespaced = self._resource(api_version, kind)
        parts = ["apis" if "/" in api_version else "api", api_version]
        if namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/" + "/".join([*parts, plural, *([name] if name else []), *([subresource] if subresource else [])])

    def _path_of(self, thing, subresource=None):
        meta = thing["metadata"]
        return self.path(thing["apiVersion"], thing["kind"], meta.get("namespace"), meta["name"], subresource)

    def _checked(self, answer):
        if answer.status_code >= 300:
            raise ApiError(answer)
        return answer.json()

    def get(self, api_version, kind, namespace, name):
        return self._checked(self.http.get(self.path(api_version, kind, namespace, name)))

    def list(self, api_version, kind, namespace=None, **query):
        items = self._checked(self.http.get(self.path(api_version, kind, namespace), params=query))["items"]
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    def watches(self, api_version, kind, namespace):
        """Whether a watch is let in: its first bytes, or its refusal."""
        query = {"watch": "1", "timeoutSeconds": "1", "resourceVersion": "0"}
        with self.http.stream("GET", self.path(api_version, kind, namespace), params=query) as answer:
            return answer.status_code == 200

    def create(self, thing, **query):
        meta = thing["metadata"]
        path = self.path(thing["apiVersion"], thing["kind"], meta.get("namespace"))
        return self._checked(self.http.post(path, json=thing, params={"fieldValidation": "Strict", **query}))

    def apply(self, thing, subresource=None, dry_run=False):
        """Server-side apply, strict about unknown fields."""
        query = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._checked(self.http.patch(self._path_of(thing, subresource), params=query, content=json.dumps(thing),
                                             headers={"content-type": "application/apply-patch+yaml"}))

    def merge(self, thing, change, subresource=None):
        """RFC 7396 on the object that `thing` names."""
        return self._checked(self.http.patch(self._path_of(thing, subresource), content=json.dumps(change),
                                             headers={"content-type": "application/merge-patch+json"}))

    def delete(self, thing, grace_seconds=0):
        return self._checked(self.http.delete(self._path_of(thing), params={"gracePeriodSeconds": grace_seconds}))

    def may(self, verb, group, resource, namespace=None, name=None):
        """A SelfSubjectAccessReview: whether this user may."""
        resource, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource,
                      **({"namespace": namespace} if namespace else {}), **({"name": name} if name else {})}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                  "spec": {"resourceAttributes": attributes}}
        return self._checked(self.http.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=review))["status"]["allowed"]


class Cluster:
    """What ControlPlane and the stand-in of fake_api.py share: credentials, users, objects that tests make."""

    controllers = False

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.apis, self.admin = [], None

    # --- credentials ---

    def _make_credentials(self):
        def openssl(*arguments):
            subprocess.run(["openssl", *map(str, arguments)], cwd=self.folder, check=True, capture_output=True)
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-x509", *curve, "-days", 2, "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.crt",
                "-addext", "keyUsage=critical,keyCertSign,digitalSignature")
        self.make_certificate("server", "kube-apiserver", names="IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc",
                              usage="serverAuth")
        openssl("genrsa", "-out", "accounts.key", 2048)
        openssl("rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
        (self.folder / "tokens.csv").write_text(
            f'{ADMIN_TOKEN},admin,u-admin,"system:masters"\n'
            f'{CONTROLLER_TOKEN},system:kube-controller-manager,u-controllers,"system:masters"\n')

    def make_certificate(self, file, user, names=None, usage="clientAuth", groups=()):
        """`file`.crt and .key in the folder, signed by the API server's authority; of a client it is the user's."""
        subject = "/CN=" + user + "".join("/O=" + group for group in groups)
        extensions = [f"extendedKeyUsage={usage}", *([f"subjectAltName={names}"] if names else [])]
        (self.folder / f"{file}.ext").write_text("\n".join(extensions) + "\n")
        for command in (["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject,
                         "-keyout", f"{file}.key", "-out", f"{file}.csr"],
                        ["x509", "-req", "-in", f"{file}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                         "-days", "2", "-extfile", f"{file}.ext", "-out", f"{file}.crt"]):
            subprocess.run(["openssl", *command], cwd=self.folder, check=True, capture_output=True)

    def api(self, token):
        api = Api(self.url, self.folder / "ca.crt", token)
        self.apis.append(api)
        return api

    def kubeconfig(self, token, name="kubeconfig", namespace="default", **user):
        """`user`: more of the user's entry; tokenFile in place of a token."""
        file = self.folder / f"{name}.yaml"
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        file.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "tests", "user": {**({"token": token} if token else {}), **user}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}]}))
        return file

    # --- objects ---

    def create_namespace(self, name):
        """If it isn't there; with a default service account, which pods need and else the controller manager makes."""
        self.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if not self.controllers:
            self.admin.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}})
        eventually(lambda: self.admin.list("v1", "ServiceAccount", name, fieldSelector="metadata.name=default"), START_SECONDS,
                   "the default service account")

    def ready_pod(self, namespace, name, address, labels, annotations=None, ready=True, account="default"):
        """A pod as a kubelet would report it once it runs at `address`."""
        pod = self.admin.create({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations or {}},
            "spec": {"containers": [{"name": "engine", "image": "engine"}], "nodeName": NODE,
                     "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "serviceAccountName": account}})
        return self.set_pod_status(pod, address, ready)

    def set_pod_status(self, pod, address, ready=True, api=None):
        state = "True" if ready else "False"
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1",
                  "conditions": [{"type": t, "status": s} for t, s in
                                 (("PodScheduled", "True"), ("Initialized", "True"), ("ContainersReady", state), ("Ready", state))]}
        return (api or self.admin).merge(pod, {"status": status}, "status")


class ControlPlane(Cluster):
    """`flags`: the API server's own."""

    def __init__(self, folder, controllers=False, flags=()):
        super().__init__(folder)
        self.controllers, self.flags = controllers, flags
        self.etcd_port, self.etcd_peer_port = free_port(), free_port()
        self.running = {}

    # --- processes ---

    def start(self):
        assert not missing_programs(self.controllers), f"run tools/kubernetes-tools: no {missing_programs(self.controllers)}"
        try:
            self._make_credentials()
            self._run("etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", f"http://127.0.0.1:{self.etcd_port}",
                      "--advertise-client-urls", f"http://127.0.0.1:{self.etcd_port}",
                      "--listen-peer-urls", f"http://127.0.0.1:{self.etcd_peer_port}",
                      "--initial-advertise-peer-urls", f"http://127.0.0.1:{self.etcd_peer_port}",
                      "--initial-cluster", f"default=http://127.0.0.1:{self.etcd_peer_port}",
                      "--unsafe-no-fsync", "--log-level", "warn")
            self.start_api_server()
            self.admin = self.api(ADMIN_TOKEN)
            if self.controllers:
                self._start_controllers()
        except BaseException:
            self.stop()
            raise
        return self

    def start_api_server(self):
        folder = self.folder
        self._run("kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.etcd_port}", "--bind-address=127.0.0.1",
                  f"--secure-port={self.port}", "--advertise-address=127.0.0.1",
                  # A loopback address can be no endpoint of the Service default/kubernetes.
                  "--endpoint-reconciler-type=none",
                  f"--tls-cert-file={folder}/server.crt", f"--tls-private-key-file={folder}/server.key",
                  f"--client-ca-file={folder}/ca.crt", f"--token-auth-file={folder}/tokens.csv",
                  "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
                  f"--service-account-key-file={folder}/accounts.pub", f"--service-account-signing-key-file={folder}/accounts.key",
                  "--authorization-mode=Node,RBAC", "--allow-privileged=true", "--profiling=false", *self.flags)
        with httpx.Client(verify=ssl.create_default_context(cafile=str(folder / "ca.crt")), trust_env=False, timeout=5,
                          headers={"authorization": f"Bearer {ADMIN_TOKEN}"}) as http:
            def ready():
                self._check_alive("etcd", "kube-apiserver")
                with contextlib.suppress(httpx.HTTPError):
                    return http.get(self.url + "/readyz").status_code == 200
                return False
            eventually(ready, START_SECONDS, "the API server is ready")

    def stop_api_server(self):
        """At once: told to end it would wait for open watches, a minute."""
        self._end("kube-apiserver", signal.SIGKILL)

    def _start_controllers(self):
        config = self.kubeconfig(CONTROLLER_TOKEN, "controllers")
        wanted = ["deployment-controller", "replicaset-controller", "endpointslice-controller", "namespace-controller",
                  "garbage-collector-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
                  "pod-garbage-collector-controller"]
        self._run("kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false", "--bind-address=127.0.0.1",
                  f"--secure-port={free_port()}", f"--service-account-private-key-file={self.folder}/accounts.key",
                  f"--root-ca-file={self.folder}/ca.crt", f"--controllers={','.join(wanted)}")
        # Without one, pods bound to it are swept up.
        self.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        account = self.admin.path("v1", "ServiceAccount", "default", "default")

        def works():
            self._check_alive("kube-controller-manager")
            return self.admin.http.get(account).status_code == 200
        eventually(works, START_SECONDS, "the controller manager makes the default service account")

    def stop(self):
        for api in self.apis:
            api.close()
        self.apis = []
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            self._end(name, signal.SIGKILL)

    def _run(self, name, *arguments):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen([TOOLS / "bin" / name, *map(str, arguments)], stdout=log, stderr=log)

    def _end(self, name, with_signal):
        process = self.running.pop(name, None)
        if process and process.poll() is None:
            process.send_signal(with_signal)
            process.wait(timeout=60)

    def _check_alive(self, *names):
        for name in names:
            if (code := self.running[name].poll()) is not None:
                tail = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                raise AssertionError(f"{name} ended with {code}:\n{tail}")

    # --- objects ---

    def token_of(self, namespace, account, seconds=3600, pod=None):
        """A token of a service account, as a pod would find it in its volume; with `pod` it ends with that pod."""
        spec = {"expirationSeconds": seconds}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.admin.http.post(self.admin.path("v1", "ServiceAccount", namespace, account, "token"), json=request)
        if answer.status_code != 201:
            raise ApiError(answer)
        return answer.json()["status"]["token"]

    def revocable_token(self, namespace, account):
        """(token, revoke): after revoke() nobody is let in by it who asks anew."""
        holder = self.ready_pod(namespace, f"holder-of-{account}", "127.0.0.9", {"app": "holder"}, account=account)
        return self.token_of(namespace, account, pod=holder), lambda: self.admin.delete(holder)

    def expired_token(self, namespace, account):
        """A token of a service account that was good until an hour ago."""
        found = self.admin.get("v1", "ServiceAccount", namespace, account)["metadata"]
        now = int(time.time())
        issuer = "https://kubernetes.default.svc"
        claims = {"iss": issuer, "aud": [issuer], "iat": now - 7200, "nbf": now - 7200, "exp": now - 3600,
                  "sub": f"system:serviceaccount:{namespace}:{account}",
                  "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": account, "uid": found["uid"]}}}

        def encoded(data):
            return base64.urlsafe_b64encode(data).rstrip(b"=")
        signed = b".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
        signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.folder / "accounts.key"], input=signed,
                                   capture_output=True, check=True).stdout
        return (signed + b"." + encoded(signature)).decode()

    def install_crds(self, *files):
        """The Gateway API's, the Inference Extension's and llm-d's, or those of `files`; waits until they are served."""
        files = files or [*sorted((TOOLS / "crds").glob("*.yaml")), *sorted((ROOT / "deploy/crds").glob("*.yaml"))]
        names, kinds = [], []
        for file in files:
            for thing in yaml.load_all(pathlib.Path(file).read_text(), LOADER):
                if thing and thing["kind"] == "CustomResourceDefinition":
                    thing.pop("status", None)
                    self.admin.apply(thing)
                    names.append(thing["metadata"]["name"])
                    kinds += [(f"{thing['spec']['group']}/{version['name']}", thing["spec"]["names"]["kind"])
                              for version in thing["spec"]["versions"] if version["served"]]

        def established():
            served = {crd["metadata"]["name"] for crd in self.admin.list("apiextensions.k8s.io/v1", "CustomResourceDefinition")
                      if any(c["type"] == "Established" and c["status"] == "True" for c in crd.get("status", {}).get("conditions") or [])}
            # Its discovery follows a moment later.
            return served >= set(names) and all(self.admin.serves(*kind) for kind in kinds)
        eventually(established, START_SECONDS, "the API server serves the resource definitions")
        return names


@contextlib.contextmanager
def running_plane(folder, **keywords):
    """A ControlPlane, stopped at the end of the block; where its programs aren't built the test ends."""
    if missing := missing_programs(keywords.get("controllers", False)):
        absent("not built: " + ", ".join(missing))
    plane = ControlPlane(folder, **keywords).start()
    try:
        yield plane
    finally:
        plane.stop()
