"""A supervisor under a service manager that speaks systemd's protocol."""

import os
import signal
import socket
import threading

import pytest


class Manager:
    """The service manager's end: receives the notifications and their senders."""

    def __init__(self, stage) -> None:
        self.address = f"@{stage.mark}"
        self.heard: list[tuple[int, str]] = []  # pid and line
        self._stage = stage
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("\0" + self.address[1:])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            message, ancillary, *_ = self._socket.recvmsg(65536, 64)
            if not message:
                return
            pid = int.from_bytes(ancillary[0][2][:4], "little")
            with self._stage.news:
                self.heard += [(pid, line) for line in message.decode().split("\n")]
                self._stage.news.notify_all()

    def lines(self) -> list[str]:
        return [line for _pid, line in self.heard]

    def wait_for(self, line: str, nth: int = 1) -> None:
        """Wait for a line that begins so."""
        self._stage.wait_until(
            lambda: sum(each.startswith(line) for each in self.lines()) >= nth, f"{line} number {nth}: {self.heard}"
        )

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
            ours.sendto(b"", "\0" + self.address[1:])
        self._thread.join(5)
        self._socket.close()


@pytest.fixture
def manager(stage):
    manager = Manager(stage)
    yield manager
    manager.close()


def test_systemd_hears_of_start_watchdog_reload_and_stop(stage, manager):
    pool = stage.start(
        environment={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}, boot_timeout="40s", jobs_per_child=0
    )
    manager.wait_for("READY=1")
    pool.wait_ready()
    lines = manager.lines()
    assert lines[:2] == ["EXTEND_TIMEOUT_USEC=45000000", "STATUS=0/1 busy, booting"]
    assert lines[lines.index("READY=1") + 1] == "STATUS=0/1 busy"
    manager.wait_for("WATCHDOG=1", nth=3)

    jid = stage.queue.put("look.around")
    stage.wait_until_ended([jid])
    seen = stage.client.job(jid).result
    assert not [name for name in seen["environ"] if name.startswith(("NOTIFY_", "WATCHDOG_"))]
    assert not [entry for entry in seen["exec_environ"] if entry.startswith(("NOTIFY_", "WATCHDOG_"))]

    pool.send(signal.SIGHUP)
    pool.wait_for("reload.completed")
    manager.wait_for("READY=1", nth=2)
    lines = manager.lines()
    begun = lines.index("RELOADING=1")
    assert lines[begun + 1].startswith("MONOTONIC_USEC=")
    assert lines.index("READY=1") < begun

    assert pool.drain() == 0
    manager.wait_for("STOPPING=1")
    lines = manager.lines()
    stopping = lines.index("STOPPING=1")
    assert lines[stopping + 1].startswith("EXTEND_TIMEOUT_USEC=")
    assert "READY=1" not in lines[stopping:]
    assert {pid for pid, _line in manager.heard} == {pool.pid}
    stage.assert_nothing_left()


def test_foreign_watchdog_is_not_fed_and_failed_boots_are_never_ready(stage, manager):
    pool = stage.start(
        handlers="menu.no_such_module",
        environment={
            "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid()),
        },
    )  # fmt: skip
    assert pool.wait() == 71
    manager.wait_for("STOPPING=1")
    lines = manager.lines()
    assert "READY=1" not in lines
    assert "WATCHDOG=1" not in lines
    stage.assert_nothing_left()


def test_missing_service_manager_does_not_stop_the_work(stage):
    pool = stage.start(environment={"NOTIFY_SOCKET": "/no/such/socket", "WATCHDOG_USEC": "1000"}).wait_ready()
    stage.wait_until_ended([stage.queue.put("good.noop")])
    assert pool.drain() == 0
    stage.assert_nothing_left()
