"""Fixtures: programs that are stopped at the end of the test or module."""
import pytest

from harness import Engines, Gateway


@pytest.fixture
def start(tmp_path):
    """start.engines(...), start.gateway(...): everything is stopped at the end of the test."""
    class Start:
        def __init__(self):
            self.programs = []

        def engines(self, count=1, **options):
            engines = Engines(tmp_path / f"engines-{len(self.programs)}.log", count, **options)
            self.programs.append(engines.program)
            return engines

        def gateway(self, *arguments, **keywords):
            gateway = Gateway(tmp_path / f"gateway-{len(self.programs)}.log", *arguments, **keywords)
            self.programs.append(gateway.program)
            return gateway

    started = Start()
    yield started
    for program in reversed(started.programs):
        program.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two engines and a gateway before them, for tests that leave no trace."""
    folder = tmp_path_factory.mktemp("shared")
    engines = Engines(folder / "engines.log", 2, model="sim-model", adapter=["alpha=adapters/alpha", "beta=adapters/beta"])
    gateway = Gateway(folder / "gateway.log", model_servers=engines.urls)
    gateway.engines = engines
    yield gateway
    gateway.program.stop()
    engines.program.stop()
