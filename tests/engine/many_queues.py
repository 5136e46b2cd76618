"""Leases that pass over quiet queues, as those of many queues do, for tests that have few."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.engine.model import scripts


@contextmanager
def leases_of_many_queues() -> Iterator[None]:
    """Let each lease count as one of many queues."""
    text = scripts.LEASE.text.replace("local MANY_QUEUES = 4", "local MANY_QUEUES = 0")
    assert text != scripts.LEASE.text
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(vars(scripts.LEASE), "sha", scripts.Script("lease", text).sha)
        patched.setitem(vars(scripts.LEASE), "text", text)
        yield
