"""The server that a client gets if it was given none, and the warning about it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import without_settings

ROOT = Path(__file__).parents[3]
TWO_CLIENTS = """
import sys
sys.path.insert(0, sys.argv[1])
from supervisor import AsyncClient, Client
with Client({given}) as client:
    jid = client.queue("q").put("k")
with Client({given}) as client:
    print(client.job(jid).state)
AsyncClient({given})
"""


def run(tmp_path, *words, **environ):
    clean = without_settings()
    return subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=50,
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
    )  # fmt: skip


def test_embedded_server_is_announced_once_with_its_directory(tmp_path):
    done = run(tmp_path, "-c", TWO_CLIENTS.format(given=""), str(ROOT))
    assert (done.returncode, done.stdout) == (0, "waiting\n"), done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "EmbeddedServerWarning" in line]
    assert warning.startswith("<string>:5:") and str(tmp_path / ".leasehold") in warning


@pytest.mark.parametrize("given", ['"embedded:"', ""])
def test_embedded_server_that_was_asked_for_is_not_announced(tmp_path, given):
    environ = {} if given else {"LEASEHOLD_REDIS_URL": "embedded:"}
    done = run(tmp_path, "-W", "error::UserWarning", "-c", TWO_CLIENTS.format(given=given), str(ROOT), **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waiting\n", "")


def test_warning_made_an_error_starts_no_server(tmp_path):
    done = run(tmp_path, "-W", "error::UserWarning", "-c", TWO_CLIENTS.format(given=""), str(ROOT))
    assert done.returncode == 1 and "EmbeddedServerWarning" in done.stderr.splitlines()[-1]
    assert not [*tmp_path.iterdir()]


def test_command_announces_the_embedded_server_in_one_line(tmp_path):
    done = run(tmp_path, "-m", "supervisor", "put", "k")
    assert done.returncode == 0
    line, hint = done.stderr.splitlines()
    assert line.startswith("leasehold: no LEASEHOLD_REDIS_URL: using the embedded server")
    assert "no supervisor is running" in hint
