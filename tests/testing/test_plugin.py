"""The plugin costs a session of pytest nothing until a test asks for the fixture."""

import os
import subprocess
import sys
from pathlib import Path

import supervisor
import supervisor.testing

_TEXT = """
import sys

HEAVY = {"redis", "psutil", "orjson", "asyncio", "supervisor.engine", "supervisor.child"}


def test_nothing_is_loaded():
    assert "supervisor.testing.plugin" in sys.modules
    assert HEAVY & sys.modules.keys() == set()


def test_fixture_is_there(leasehold):
    assert "redis" in sys.modules
"""


def test_session_without_the_fixture_loads_nothing_of_leasehold(tmp_path):
    (tmp_path / "test_app.py").write_text(_TEXT)
    path = str(Path(supervisor.__file__).parents[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "supervisor.testing.plugin"]
    # Other plugins of this environment load asyncio.
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "2 passed" in done.stdout, done.stdout


def test_every_public_name_is_where_it_is_said_to_be():
    assert supervisor.testing.__all__ == sorted(supervisor.testing._HOMES)
    for name in supervisor.testing.__all__:
        assert getattr(supervisor.testing, name).__module__ == f"supervisor.testing.{supervisor.testing._HOMES[name]}"
