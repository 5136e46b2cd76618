"""Fixtures of the commands' tests: a namespace, a client, the command line in this process, and played supervisors."""

import io
import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from supervisor.cli.lib.parser import dispatch
from supervisor.engine.client.sync_client import Client
from tests.engine.played import PlayedWorker


def with_sorted_keys(pairs):
    """Decode an object of JSON, and check that its keys are sorted."""
    assert [key for key, _ in pairs] == sorted(key for key, _ in pairs)
    return dict(pairs)


@dataclass(frozen=True)
class Said:
    """A command's exit code and output."""

    code: int
    out: str
    err: str


class Shell:
    """The command line in this process, some ms per call. The environment names the server."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        self._capsys.readouterr()
        code = dispatch(words)
        said = self._capsys.readouterr()
        assert "internal error" not in said.err, said.err
        return Said(code, said.out, said.err)

    def good(self, *words: str) -> str:
        """Return the result of a command that writes nothing to stderr."""
        said = self(*words)
        assert (said.code, said.err) == (0, ""), said
        return said.out

    def line(self, *words: str) -> str:
        """Return the result, which is one line."""
        out = self.good(*words)
        assert out.endswith("\n") and out.count("\n") == 1, out
        return out.removesuffix("\n")

    def put(self, *words: str) -> str:
        """Put a job while no supervisor runs, as the one hint says, and return the jid."""
        said = self("put", *words)
        assert said.code == 0 and "no supervisor is running" in self._sentence(said.err), said
        return said.out.removesuffix("\n")

    def json(self, *words: str):
        """Return the value of the result, which is one line of JSON with sorted keys."""
        return json.loads(self.line(*words, "--json"), object_pairs_hook=with_sorted_keys)

    def rows(self, *words: str) -> list[list[str]]:
        """Return the cells of a table's rows, headings first."""
        lines = self.good(*words).splitlines()
        return [line.split() for line in lines if line.strip(" ─")]

    def noted(self, *words: str) -> str:
        """Return the one sentence beside an empty result."""
        said = self(*words)
        assert (said.code, said.out) == (0, ""), said
        return self._sentence(said.err)

    def refused(self, code: int, *words: str) -> str:
        """Return the one sentence of a refusal with empty stdout."""
        said = self(*words)
        assert (said.code, said.out) == (code, ""), said
        return self._sentence(said.err)

    @staticmethod
    def _sentence(text: str) -> str:
        assert text.startswith("leasehold: ") and text.count("\n") == 1 and text.endswith("\n"), text
        return text.removeprefix("leasehold: ").removesuffix("\n")


@pytest.fixture
def shell(server, namespace, monkeypatch, capsys):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    return Shell(capsys)


@pytest.fixture
def answer(monkeypatch):
    """A user at a terminal types this."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    return lambda text: monkeypatch.setattr(sys, "stdin", Terminal(text))


@pytest.fixture
def jobs(server, namespace):
    """A client of the namespace that the commands use."""
    with Client(server.url, namespace) as client:
        yield client


@pytest.fixture
def played(server, namespace):
    """Play supervisors, each in a thread, that give this answer: played(answer)."""
    with ExitStack() as stack:

        def start(answer):
            worker = PlayedWorker(server.url, namespace, lambda _ask: answer)
            stack.callback(worker.close)
            return stack.enter_context(worker.listening())

        yield start


@pytest.fixture
def silent(server, namespace):
    """A supervisor that never reads its queries."""
    worker = PlayedWorker(server.url, namespace)
    yield worker.start()
    worker.close()
