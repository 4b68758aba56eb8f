"""Fixtures: programs that are stopped at the end of the test or module."""
import pytest

from data_plane import Envoy, Picker
from harness import Engines, Gateway
from picker_streams import leaves_nothing


class Start:
    """start.engines(...), start.gateway(...), start.picker(...), start.envoy(...); stop() ends them all."""

    def __init__(self, folder):
        self.folder, self.parts = folder, []

    def _keep(self, part):
        self.parts.append(part)
        return part

    def engines(self, count=1, **options):
        return self._keep(Engines(self.folder / f"engines-{len(self.parts)}.log", count, **options))

    def gateway(self, *arguments, **keywords):
        return self._keep(Gateway(self.folder / f"gateway-{len(self.parts)}.log", *arguments, **keywords))

    def picker(self, ports, *flags, **keywords):
        return self._keep(Picker(self.folder / f"picker-{len(self.parts)}", ports, *flags, **keywords))

    def envoy(self, file, *ports, **keywords):
        return self._keep(Envoy(self.folder / f"envoy-{len(self.parts)}", file, *ports, **keywords))

    def stop(self):
        for part in reversed(self.parts):
            part.program.stop()


@pytest.fixture
def start(tmp_path):
    """Everything it starts is stopped at the end of the test."""
    started = Start(tmp_path)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def start_for_module(tmp_path_factory):
    """The same, stopped at the end of the module."""
    started = Start(tmp_path_factory.mktemp("module"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def shared(start_for_module):
    """Two engines and a gateway before them, for tests that leave no trace."""
    engines = start_for_module.engines(2, model="sim-model", adapter=["alpha=adapters/alpha", "beta=adapters/beta"])
    gateway = start_for_module.gateway(model_servers=engines.urls)
    gateway.engines = engines
    return gateway


# A picker that is spoken to directly.

@pytest.fixture(scope="module")
def engines(start_for_module):
    return start_for_module.engines(2)


@pytest.fixture(scope="module")
def picker(start_for_module, engines):
    return start_for_module.picker(engines.ports, "--emit-endpoint-scores")


@pytest.fixture
def connection(picker):
    with picker.connect() as connection:
        yield connection
    leaves_nothing(picker)
    assert picker.program.process.poll() is None, picker.program.log_text()[-2000:]
