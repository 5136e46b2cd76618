"""The restrictions of each level, and the report where a part is unavailable."""

import errno
import os
import resource
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from supervisor import sandbox
from supervisor.messages import Boot, HandlerSettings, Profile
from supervisor.sandbox import confinement, landlock, preloaded, privileges, seccomp
from supervisor.sandbox.confinement import Confinement
from supervisor.sandbox.workdir import Workdir
from tests.parts import Process, in_fork

NONE, BASIC, STRICT = Profile("none", True), Profile("basic", True), Profile("strict", False)
is_root = os.geteuid() == 0


@pytest.fixture
def tmp_path(open_directory):
    return open_directory


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "master" / "zygote").mkdir(parents=True, mode=0o700)
    return tmp_path / "master" / "zygote"


def boot_of(workdir, level, **fields):
    return Boot("handlers", str(workdir), 1, "retry", 0, 1024, sandbox=level, **fields)


def confined(workdir, run, *profiles, enters=None, **fields):
    """Run as a child that has entered the last of these profiles, or `enters`. Returns the report."""
    boot = boot_of(workdir, profiles[-1].level, **fields)
    report = {}

    def in_child():
        guard = sandbox.Guard()
        made = Confinement(boot, set(profiles), guard.bind)
        made.prepare()
        pid = guard.fork()
        if pid == 0:
            Workdir(str(workdir / "child")).claim()
            made.enter(enters or profiles[-1], str(workdir / "child"), ())
            run()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    in_fork(in_child)

    def describe():
        made = Confinement(boot, set(profiles), lambda: None)
        (workdir / "report").write_text(repr(made.report))

    in_fork(describe)
    report.update(eval((workdir / "report").read_text()))
    return report


def status():
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: line.split(":")[1].strip() for line in lines}


def test_level_none_changes_nothing(workdir):
    umask = os.umask(0o022)
    os.umask(umask)
    before = resource.getrlimit(resource.RLIMIT_CORE), umask

    def run():
        assert status()["NoNewPrivs"] == "0"
        assert (resource.getrlimit(resource.RLIMIT_CORE), os.umask(0o77)) == before
        os.kill(os.getppid(), 0)
        assert privileges.held() or not is_root

    report = confined(workdir, run, NONE)
    assert report["signals"] == report["no-core"] == "off: --sandbox none"


def test_basic_takes_privileges_and_signals_only(workdir):
    os.umask(0o027)

    def run():
        now = status()
        assert now["NoNewPrivs"] == "1"
        assert int(now["CapEff"], 16) == int(now["CapPrm"], 16) == 0
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == (2**20, 2**20)
        assert os.umask(0) == 0o027
        assert os.getuid() == os.geteuid() == (0 if is_root else os.getuid())
        with pytest.raises(PermissionError):
            os.kill(os.getppid(), 0)
        socket.socket().close()
        (workdir / "beside").touch()

    report = confined(workdir, run, BASIC, workdir_limit_bytes=2**20)
    os.umask(0o022)
    assert report["no-new-privileges"] == report["capabilities"] == report["signals"] == "on"
    assert report["file-size"] == f"on: {2**20} bytes"
    assert report["user"].startswith("off: ")
    assert report["files"].startswith("off: ")
    assert report["network"].startswith("off: ")


def test_strict_leaves_own_directory_and_readable_list(workdir, tmp_path):
    (tmp_path / "given").write_text("given")

    def run():
        import subprocess

        assert os.umask(0o77) == 0o77
        assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(workdir / "child")
        with tempfile.NamedTemporaryFile() as file:
            assert Path(file.name).parent == workdir / "child"
        assert subprocess.run(["ls"], capture_output=True, check=True).stdout == b""
        assert (tmp_path / "given").read_text() == "given"
        with open("/dev/null", "w") as sink:
            sink.write("x")
        for act in (
            lambda: (workdir / "beside").touch(), lambda: os.listdir(tmp_path), lambda: Path("/etc/shadow").read_text(),
            lambda: (tmp_path / "given").write_text("x"), socket.socket, lambda: os.kill(os.getppid(), 0),
            lambda: os.rename(workdir / "child", workdir / "moved"),
        ):  # fmt: skip
            with pytest.raises(PermissionError):
                act()

    report = confined(workdir, run, STRICT, readable=[str(tmp_path / "given")])
    assert report["files"].startswith("on: writes below the working directory alone, reads ")
    assert str(tmp_path / "given") in report["files"]
    assert report["network"].startswith("on: a filter of system calls")


@pytest.mark.skipif(not is_root, reason="only root can become another")
def test_other_user_owns_its_directory_and_dies_with_the_zygote(workdir, monkeypatch):
    import ctypes

    monkeypatch.setattr(confinement, "_first_barred", lambda _user, _paths: None)  # the interpreter may be root's own

    def run():
        assert os.getresuid() == (1234,) * 3
        assert os.getresgid() == (2345,) * 3
        assert os.getgroups() == []
        told = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(told), 0, 0, 0)  # PR_GET_PDEATHSIG
        assert told.value == 9
        assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0  # PR_GET_DUMPABLE
        Path("file").touch()
        Workdir(str(workdir / "child")).claim()
        assert os.listdir(".") == []

    report = confined(workdir, run, BASIC, child_user=[1234, 2345])
    assert report["user"] == "on: uid 1234, gid 2345"


@pytest.mark.skipif(not is_root, reason="only root can become another")
def test_user_that_cannot_reach_the_code_is_not_taken(workdir, tmp_path):
    tmp_path.chmod(0o700)
    report = confined(workdir, lambda: None, BASIC, child_user=[1234, 2345])
    assert report["user"].startswith(f"unavailable: because uid 1234 may not enter {tmp_path} (on the way to {workdir}")


def test_supervisor_without_root_reports_no_other_user_or_namespace(workdir):
    workdir.chmod(0o777)
    workdir.parent.chmod(0o777)

    def run():
        if is_root:
            privileges.become(65534, 65534)
        report = Confinement(boot_of(workdir, "strict"), {STRICT}, lambda: None).report
        assert report["user"] == "unavailable: because the supervisor is not root"
        assert report["network"].startswith("on: a filter of system calls (no network namespace because")

    in_fork(run)


def test_first_job_decides_where_handlers_differ(workdir):
    offline = Profile("basic", False)

    def run():
        with pytest.raises(PermissionError):
            socket.socket()
        (workdir / "beside").touch()

    report = confined(workdir, run, BASIC, STRICT, offline, enters=offline)
    assert report["files"].endswith("(of some handlers only, from their first job on)")
    assert report["no-core"] == "on"
    assert report["umask"] == "on: 022 at least; of some handlers from their first job on: 077 at least"

    def compare():
        assert Confinement(boot_of(workdir, "basic"), {BASIC}, lambda: None).common == BASIC
        assert Confinement(boot_of(workdir, "basic"), {BASIC, offline}, lambda: None).common is None

    in_fork(compare)


def test_handlers_own_level_holds_in_a_run_without_sandbox(workdir):
    def run():
        assert status()["NoNewPrivs"] == "1"
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        with pytest.raises(PermissionError):
            os.kill(os.getppid(), 0)

    confined(workdir, run, NONE, BASIC)


def test_strict_replaces_descriptors_of_preloaded_code(workdir):
    def run(profile, expected):
        files = [os.open(__file__, os.O_RDONLY), os.open("/dev/urandom", os.O_RDONLY)]

        def look():
            found = [os.readlink(f"/proc/self/fd/{fd}") for fd in files]
            assert found == [expected, "/dev/urandom"]
            others = preloaded.open_descriptors().values()
            assert not [link for link in others if "landlock" in link or link.startswith("net:")]

        made = Confinement(boot_of(workdir, profile.level), {profile}, lambda: None)
        made.prepare()
        Workdir(str(workdir / "child")).claim()
        made.enter(profile, str(workdir / "child"), ())
        look()

    for profile, expected in ((STRICT, "/dev/null"), (BASIC, __file__)):
        assert Process(lambda p=profile, e=expected: run(p, e)).await_end() == 0


# unavailable parts


def no_landlock(number):
    def refuse():
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_rest_holds_without_landlock_and_the_cause_is_reported(workdir, monkeypatch, number):
    monkeypatch.setattr(landlock, "abi", no_landlock(number))

    def run():
        with pytest.raises(PermissionError):
            socket.socket()
        assert int(status()["CapEff"], 16) == 0
        os.kill(os.getppid(), 0) if os.getuid() == 0 else None

    report = confined(workdir, run, STRICT)
    assert report["files"].startswith("unavailable: because ")
    assert report["signals"].startswith("unavailable: because ")
    assert report["network"].startswith("on: ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("abi", range(1, 7))
def test_old_landlock_restricts_files_and_reports_the_rest(workdir, monkeypatch, abi):
    monkeypatch.setattr(landlock, "abi", lambda: abi)
    monkeypatch.setattr(privileges, "network_namespace", no_landlock(errno.EPERM))

    def run():
        with pytest.raises(PermissionError):
            (workdir / "beside").touch()

    report = confined(workdir, run, STRICT)
    needed = f"Landlock is of version {abi} here, and 6 is needed (Linux 6.12)"
    assert report["signals"] == ("on" if abi == 6 else f"unavailable: because {needed}")
    assert (f" (abstract sockets of the Unix family are open: {needed})" in report["network"]) == (abi < 6)
    assert report["files"].startswith("on: ")
    assert ("; no file can be moved to another directory: " in report["files"]) == (abi < 2)
    assert ("; what this user may write to elsewhere can be truncated: " in report["files"]) == (abi < 3)


def test_namespace_alone_denies_the_network_without_a_filter(workdir, monkeypatch):
    monkeypatch.setattr(seccomp, "why_not", lambda: "there is none")

    def run():
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", 1), 1)

    report = confined(workdir, run, Profile("basic", False))
    assert "there is none" in report["network"]
    monkeypatch.setattr(privileges, "network_namespace", no_landlock(errno.EPERM))
    report = confined(workdir, lambda: None, Profile("basic", False))
    assert report["network"].startswith("unavailable: because there is none; and no network namespace because ")


@pytest.mark.parametrize("level", ["basic", "strict"])
def test_part_refused_only_in_use_is_unavailable(workdir, monkeypatch, level):
    monkeypatch.setattr(seccomp.SyscallFilter, "install", lambda _filter: no_landlock(errno.EPERM)())
    monkeypatch.setattr(privileges, "give_up_capabilities", no_landlock(errno.EPERM))
    report = confined(workdir, lambda: None, Profile(level, level == "basic"))
    assert report["limits"] == "unavailable: because the kernel refuses it (Operation not permitted)"
    assert report["capabilities"] == "unavailable: because that is refused (Operation not permitted)"


def test_deadly_trial_ends_no_zygote(workdir, monkeypatch):
    """systemd's SystemCallFilter= kills a process like that if it sets no errno."""

    def end():
        os.kill(os.getpid(), signal.SIGKILL)

    for module, name in ((landlock, "abi"), (seccomp, "why_not"), (privileges, "give_up_capabilities")):
        monkeypatch.setattr(module, name, end)
    report = confined(workdir, lambda: None, BASIC)
    for part in ("signals", "limits", "capabilities"):
        assert report[part].startswith("unavailable: because ")


def test_filters_work_where_only_the_thread_flag_exists(workdir, monkeypatch):
    monkeypatch.setattr(seccomp, "_FLAGS", 1 << 20)

    def run():
        with pytest.raises(PermissionError):
            socket.socket()

    assert confined(workdir, run, Profile("basic", False))["limits"] == "on"


@pytest.mark.skipif(not is_root, reason="only root has what is lacking here")
def test_user_stays_where_capabilities_are_missing(workdir, monkeypatch):
    monkeypatch.setattr(privileges, "lacking", lambda _wanted: {privileges.KILL})
    report = confined(workdir, lambda: os.chown(".", 0, 0), STRICT)
    assert report["user"] == "unavailable: because the supervisor lacks CAP_KILL"


def test_cost_of_the_levels_per_fork(workdir, measured):
    """Record what each level adds to a fork, as the child sees it."""
    import time

    def cost_of(profile):
        made = Confinement(boot_of(workdir, profile.level), {profile}, lambda: None)
        made.prepare()
        costs = []
        for _ in range(11):
            ours, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                Workdir(str(workdir / "child")).claim()
                began = time.perf_counter()
                made.enter(profile, str(workdir / "child"), ())
                os.write(theirs, b"%d" % (1e9 * (time.perf_counter() - began)))
                os._exit(0)
            os.waitpid(pid, 0)
            costs.append(int(os.read(ours, 20)) / 1000)
            os.close(ours)
            os.close(theirs)
        return sorted(costs)[len(costs) // 2]

    def run():
        words = ", ".join(f"{profile.level} {cost_of(profile):.0f} us" for profile in (NONE, BASIC, STRICT))
        (workdir / "costs").write_text(words)

    in_fork(run, 30.0)
    measured(f"entering costs a child {(workdir / 'costs').read_text()}")


# choices of handlers


def test_run_decides_what_a_handler_leaves_open():
    assert HandlerSettings().within("strict").profile == STRICT
    assert HandlerSettings().within("basic").profile == BASIC
    assert HandlerSettings().within("none").profile == NONE
    assert HandlerSettings(network=True).within("strict").profile == Profile("strict", True)
    assert HandlerSettings(sandbox="strict").within("none").profile == STRICT
    assert HandlerSettings(network=False).within("basic").profile == Profile("basic", False)
