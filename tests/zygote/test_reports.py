"""The zygote reports to the master, although the kernel lacks memory for a moment."""

import errno
from types import SimpleNamespace

import pytest

from supervisor.linux import kernel
from supervisor.messages import Reaped, pack_control
from supervisor.zygote.zygote import Zygote
from tests.parts import refused

REPORT = Reaped(1, 2, 0, 0.0, 0)


def report(monkeypatch, refusals):
    """Send a report, of which the kernel refuses the first tries. Return what has gone."""
    sent = []
    monkeypatch.setattr(kernel, "send", refused(refusals, errno.ENOBUFS, lambda *given: sent.append(given)))
    Zygote._send(SimpleNamespace(_control="control"), REPORT)
    return sent


def test_report_is_tried_again_when_the_kernel_has_memory(monkeypatch):
    assert report(monkeypatch, 2) == [("control", pack_control(REPORT), ())]


def test_report_is_not_tried_for_ever(monkeypatch):
    with pytest.raises(OSError, match="No buffer space"):
        report(monkeypatch, kernel.MEMORY_TRIES)
