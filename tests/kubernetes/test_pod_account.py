"""`penstock epp` in a pod: the cluster by KUBERNETES_SERVICE_HOST and _PORT, its account by the files that a kubelet mounts
below /var/run/secrets. On the stand-in and on a real API server; the files are put there in a mount namespace of the
picker's own."""
import os
import subprocess

import httpx
import pytest

from charts import absent
from harness import PENSTOCK, eventually
from workload import SECONDS, Team

# Asks again within a minute where it is refused.
LONG = 2 * SECONDS
# Runs "$@" where `$0` is the folder of the account. /var/run is empty there but for it.
MOUNT = """run=$(readlink -f /var/run) && mount -t tmpfs none "$run" && mkdir -p "$run/secrets/kubernetes.io" &&
ln -s "$0" "$run/secrets/kubernetes.io/serviceaccount" && exec "$@\""""


def mounting():
    """How to run a command with a mount namespace of its own; ends the test where this machine allows none."""
    for way in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        tried = subprocess.run([*way, "sh", "-c", MOUNT, "/nowhere", "true"], capture_output=True, text=True, timeout=20)
        if tried.returncode == 0:
            return way
    return absent(f"no mount namespace: {tried.stderr.strip()}", "run it as root, or where users may have namespaces")


class MountedAccount:
    """The volume of a service account, as a kubelet keeps it: names lead through ..data into a folder that is replaced as
    a whole."""

    def __init__(self, cluster, folder, namespace, **files):
        self.way, self.folder, self.versions = mounting(), folder, 0
        self.environment = {"KUBECONFIG": "", "HOME": str(folder / "home"), "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                            "KUBERNETES_SERVICE_PORT": str(cluster.port)}
        self.files = {"ca.crt": (cluster.folder / "ca.crt").read_text(), "namespace": namespace, **files}
        folder.mkdir()
        self.write()
        for name in self.files:
            (folder / name).symlink_to(f"..data/{name}")

    def write(self, **files):
        self.files |= files
        self.versions += 1
        version = self.folder / f"..version-{self.versions}"
        version.mkdir()
        for name, text in self.files.items():
            (version / name).write_text(text)
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")

    @property
    def command(self):
        return [*self.way, "sh", "-c", MOUNT, self.folder]


@pytest.fixture
def team(cluster, tmp_path):
    team = Team(cluster, tmp_path)
    yield team
    team.stop()


def refused(picker, reason):
    return picker.known()[1].get("pods", {}).get("reason") == reason


def test_the_account_of_a_pod_is_used_and_its_next_token_taken(team):
    team.pod(0)
    token, revoke = team.cluster.revocable_token(team.namespace, "llama-epp")
    account = MountedAccount(team.cluster, team.folder / "account", team.namespace, token=token)
    picker = team.picker(mounted=account)
    picker.wait_for_endpoints(1)
    said = httpx.get(f"{picker.admin}/readyz", timeout=10).json()["kubernetes"]
    assert (said["cluster"], said["server"], said["namespace"]) == ("in-cluster", f"127.0.0.1:{team.cluster.port}", team.namespace)
    revoke()
    team.cluster.stop_api_server()  # or its watches would go on for minutes
    team.cluster.start_api_server()
    eventually(lambda: refused(picker, "unauthorized"), LONG, "the token is refused")
    assert picker.is_serving("readiness") and picker.endpoints() == 1
    team.pod(1)
    account.write(token=team.cluster.token_of(team.namespace, "llama-epp"))
    picker.wait_for_endpoints(2, LONG)
    assert not refused(picker, "unauthorized")


def test_a_server_that_the_mounted_authority_has_not_signed_is_told_nothing(team, tmp_path):
    team.pod(0)
    other = tmp_path / "other.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=another authority", "-keyout", tmp_path / "other.key", "-out", other], check=True, capture_output=True)
    account = MountedAccount(team.cluster, team.folder / "account", team.namespace,
                             token=team.cluster.token_of(team.namespace, "llama-epp"), **{"ca.crt": other.read_text()})
    picker = team.picker(mounted=account, ready=False)
    eventually(lambda: "certificate" in picker.known()[1]["inferencepools"].get("error", ""), SECONDS, "the server is not trusted")
    assert not picker.is_serving("readiness")


def test_a_pod_without_a_token_is_told_so_at_once(tmp_path):
    way = mounting()
    ended = subprocess.run([*way, "sh", "-c", MOUNT, tmp_path, PENSTOCK, "epp", "--pool-name", "llama"], capture_output=True, text=True,
                           timeout=60, env={**os.environ, "KUBECONFIG": "", "HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                                            "KUBERNETES_SERVICE_PORT": "443"})
    assert ended.returncode == 1
    assert "/var/run/secrets/kubernetes.io/serviceaccount/token does not exist" in ended.stdout + ended.stderr
