"""Reports to systemd: real datagram sockets on an injected clock."""

import os
import socket

import pytest

from supervisor.ops.notify import AGAIN_S, CLOSING_S, STATUS_S, ServiceNotifier, ServiceState

SERVING = ServiceState(True, False, None, "serving, 0/1 busy")
BOOTING = ServiceState(False, False, None, "booting, 0/1 busy")
RELOADING = ServiceState(True, True, None, "reloading, 0/1 busy")


class Manager:
    """Systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """Return the lines of each message since the last call."""
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(65536).decode().split("\n"))
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    manager = Manager(str(tmp_path / "notify") if request.param == "path" else f"@leasehold-test-{os.getpid()}")
    yield manager
    manager.close()


@pytest.fixture
def start(manager):
    made = []

    def start(**environ: str) -> ServiceNotifier:
        made.append(ServiceNotifier.from_environment({"NOTIFY_SOCKET": manager.address, **environ}, os.getpid()))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_the_supervisor_reports_ready_once_it_can_lease(manager, start):
    notify = start()
    notify.promise_ready(60.0)
    assert manager.heard() == [[f"EXTEND_TIMEOUT_USEC={int((60 + CLOSING_S) * 1e6)}"]]
    notify.update(100.0, BOOTING)
    assert manager.heard() == [["STATUS=booting, 0/1 busy"]]
    notify.update(100.1, SERVING)
    assert manager.heard() == [["READY=1", "STATUS=serving, 0/1 busy"]]
    notify.update(103.0, ServiceState(False, False, None, "redis-away, 0/1 busy"))
    assert manager.heard() == [["STATUS=redis-away, 0/1 busy"]]
    notify.update(106.0, SERVING)
    assert manager.heard() == [["STATUS=serving, 0/1 busy"]]


def test_a_reload_is_reported_even_while_redis_is_away(manager, start):
    notify = start()
    notify.update(100.0, SERVING)
    manager.heard()
    notify.update(101.5, RELOADING)
    assert manager.heard() == [["RELOADING=1", "MONOTONIC_USEC=101500000", "STATUS=reloading, 0/1 busy"]]
    notify.update(101.6, RELOADING)
    assert manager.heard() == []
    notify.update(101.7, ServiceState(False, False, None, "redis-away, 0/1 busy"))
    assert manager.heard() == [["READY=1", "STATUS=redis-away, 0/1 busy"]]


def test_a_reload_before_readiness_is_not_reported(manager, start):
    notify = start()
    notify.update(100.0, ServiceState(False, True, None, "booting"))
    notify.update(101.0, ServiceState(True, False, None, "serving"))
    assert manager.heard() == [["STATUS=booting"], ["READY=1", "STATUS=serving"]]


def test_a_drain_reports_its_time_and_only_changes_of_the_time(manager, start):
    notify = start()
    notify.update(100.0, SERVING)
    manager.heard()
    notify.update(110.0, ServiceState(False, False, 30.0, "draining, 1/1 busy, 30 s left"))
    lasts = f"EXTEND_TIMEOUT_USEC={int((30 + CLOSING_S) * 1e6)}"
    assert manager.heard() == [["STOPPING=1", lasts, "STATUS=draining, 1/1 busy, 30 s left"]]
    notify.update(111.0, ServiceState(False, False, 29.0, "draining, 1/1 busy, 29 s left"))
    assert manager.heard() == []
    notify.update(111.5, ServiceState(False, False, 6.0, "killing, 1/1 busy, 6 s left"))
    assert manager.heard() == [
        [f"EXTEND_TIMEOUT_USEC={int((6 + CLOSING_S) * 1e6)}", "STATUS=killing, 1/1 busy, 6 s left"]
    ]


def test_status_texts_are_rare_but_the_last_one_is_sent(manager, start):
    notify = start()
    notify.update(100.0, SERVING)
    for number in range(10):
        notify.update(100.0 + number / 10, ServiceState(True, False, None, f"serving, {number}/9 busy"))
    assert manager.heard() == [["READY=1", "STATUS=serving, 0/1 busy"]]
    assert notify.deadline_at() == 100.0 + STATUS_S
    notify.update(100.0 + STATUS_S, ServiceState(True, False, None, "serving, 9/9 busy"))
    assert manager.heard() == [["STATUS=serving, 9/9 busy"]]
    assert notify.deadline_at() == float("inf")


def test_a_status_is_one_line(manager, start):
    start().update(100.0, ServiceState(False, False, None, "two\nlines"))
    assert manager.heard() == [["STATUS=two lines"]]


def test_the_watchdog_is_fed_at_half_its_interval(manager, start):
    notify = start(WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid()))
    notify.update(100.0, SERVING)
    assert manager.heard() == [["READY=1", "STATUS=serving, 0/1 busy", "WATCHDOG=1"]]
    assert notify.deadline_at() == 101.5
    notify.update(101.4, SERVING)
    assert manager.heard() == []
    notify.update(101.5, SERVING)
    assert manager.heard() == [["WATCHDOG=1"]]
    assert notify.deadline_at() == 103.0


@pytest.mark.parametrize(
    "environ",
    [{}, {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "0"}],
)
def test_a_watchdog_of_another_process_is_not_fed(manager, start, environ):
    notify = start(**environ)
    notify.update(100.0, SERVING)
    assert manager.heard() == [["READY=1", "STATUS=serving, 0/1 busy"]]
    assert notify.deadline_at() == float("inf")


@pytest.mark.parametrize("address", ["", "@", "relative/path", "vsock:2:1234"])
def test_without_a_service_manager_nothing_is_sent(address):
    assert ServiceNotifier.from_environment({"NOTIFY_SOCKET": address} if address else {}, os.getpid()) is None


def test_a_failed_report_is_repeated(tmp_path):
    address = str(tmp_path / "notify")
    notify = ServiceNotifier(address, 0.0)
    notify.update(100.0, SERVING)
    assert notify.deadline_at() == 100.0 + AGAIN_S
    manager = Manager(address)
    notify.update(100.5, RELOADING)
    assert manager.heard() == []
    notify.update(100.0 + AGAIN_S, SERVING)
    assert manager.heard() == [["READY=1", "STATUS=serving, 0/1 busy"]]
    manager.close()
    notify.close()


def test_a_manager_that_does_not_read_never_blocks(manager, start):
    notify = start(WATCHDOG_USEC="2")
    now_at = 100.0
    while notify.deadline_at() != now_at + AGAIN_S:
        now_at += 1.0
        notify.update(now_at, SERVING)
        assert now_at < 100_000
    assert manager.heard()[-1] == ["WATCHDOG=1"]
    notify.update(now_at + AGAIN_S, SERVING)
    assert manager.heard() == [["WATCHDOG=1"]]
