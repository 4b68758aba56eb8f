"""Helm and a real API server, where tools/kubernetes-tools has built them. `make test` skips what isn't there; with
PENSTOCK_NEED_KUBERNETES (make test-kubernetes) that is an error, and what starts many programs runs too."""
import pathlib
import sys

import pytest

for folder in ("deploy", "e2e"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / folder))

from charts import HELM, Helm, absent  # noqa: E402
from control_plane import running_plane  # noqa: E402
from fake_api import FakeCluster  # noqa: E402


@pytest.fixture(scope="session")
def helm():
    if not HELM.exists():
        absent("Helm is not built")
    return Helm()


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    """One API server for the session, with all resource definitions and without controllers."""
    with running_plane(tmp_path_factory.mktemp("plane")) as plane:
        plane.install_crds()
        yield plane


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """The stand-in for an API server, one for the session."""
    cluster = FakeCluster(tmp_path_factory.mktemp("stand-in")).start()
    cluster.install_crds()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session", params=["stand_in", "plane"])
def cluster(request):
    """Both, the stand-in always and the real one where it is built."""
    return request.getfixturevalue(request.param)
