"""The image, built once for the whole session, and containers of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "process"))  # as tests/process/conftest.py has it

pytest.register_assert_rewrite("supervised")

from supervised import Stage  # noqa: E402  found by the lines above

from supervisor.engine.client.sync_client import Client  # noqa: E402
from tests.image import building, containers  # noqa: E402


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Iterator[building.Built]:
    building.skip_where_it_cannot_be()
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "worker" in shared.name or shared.name.startswith("popen") else shared
    with building.built(shared / "image") as built:
        yield built


@pytest.fixture
def boxes(built, server, namespace, tmp_path) -> Iterator[containers.Containers]:
    """Starts containers of the image, beside a stage. Whatever still runs at the end of the test is killed."""
    (tmp_path / "stage").mkdir()
    with containers.engine(built, tmp_path / "engine") as engine, Client(server.url, namespace) as client:
        stage = Stage(tmp_path / "stage", server, namespace, client)
        try:
            yield containers.Containers(stage, engine)
        finally:
            stage.close()
