"""Landlock domains and what they allow, tried on the kernel."""

import os
import signal
import socket
from pathlib import Path

import pytest

from supervisor.linux import kernel
from supervisor.sandbox import landlock, privileges
from tests.parts import Process, await_readable, in_fork, rest


def version():
    try:
        return landlock.abi()
    except OSError:
        return 0


ABI = version()
pytestmark = pytest.mark.skipif(ABI < landlock.SCOPES_SINCE, reason=f"Landlock is of version {ABI} here")


def enter(*rules, files=True, tcp=False, scoped=0, abi=ABI):
    """A domain with these rules, (path, rights) each."""
    ruleset = landlock.create(abi, files=files, tcp=tcp, scoped=scoped)
    for path, rights in rules:
        rule = landlock.Rule(str(path), rights, landlock.handled_files(abi))
        rule.add_to(ruleset)
        rule.close()
    kernel.forbid_new_privileges()
    landlock.restrict(ruleset)
    os.close(ruleset)


def refused(act, *error):
    with pytest.raises(error or PermissionError):
        act()


@pytest.fixture
def places(tmp_path):
    for name in ("own", "readable", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def test_own_place_is_writable_and_allowed_paths_readable(places):
    own, readable, other = places / "own", places / "readable", places / "other"

    def run():
        enter((own, landlock.OWN), (readable, landlock.READ))
        (own / "new").write_text("x")
        (own / "sub").mkdir()
        (own / "new").rename(own / "sub" / "newer")
        (own / "sub" / "newer").unlink()
        os.mkfifo(own / "fifo")
        os.truncate(own / "file", 0)
        assert (readable / "file").read_text() == "readable"
        assert os.listdir(readable) == ["file"]
        refused(lambda: (readable / "file").write_text("x"))
        refused(lambda: os.truncate(readable / "file", 0))
        refused(lambda: (readable / "new").touch())
        refused(lambda: (readable / "file").unlink())
        refused(lambda: os.mkdir(readable / "sub"))
        refused(lambda: (own / "file").rename(readable / "taken"), OSError)
        refused(lambda: os.link(other / "file", own / "linked"), OSError)
        refused(lambda: (other / "file").read_text())
        refused(lambda: os.listdir(other))
        os.symlink(other / "file", own / "link")
        refused(lambda: (own / "link").read_text())
        refused(lambda: own.rename(places / "moved"), OSError)
        refused(lambda: os.mknod(own / "device", 0o020600, os.makedev(1, 3)))

    in_fork(run)


def test_file_rules_and_names_only_rules_allow_no_more(places):
    def run():
        enter((places / "readable" / "file", landlock.READ), (places / "other", landlock.READ_DIR))
        assert (places / "readable" / "file").read_text() == "readable"
        refused(lambda: os.listdir(places / "readable"))
        assert os.listdir(places / "other") == ["file"]
        refused(lambda: (places / "other" / "file").read_text())

    in_fork(run)


def test_only_the_same_domain_can_be_signalled():
    def run():
        parent = os.getppid()
        enter(files=False, scoped=landlock.SIGNALS)
        for signo in (0, signal.SIGTERM):
            refused(lambda signo=signo: os.kill(parent, signo))
            pidfd = os.pidfd_open(parent)
            refused(lambda pidfd=pidfd, signo=signo: signal.pidfd_send_signal(pidfd, signo))
        own = Process(rest)
        assert own.end() == signal.SIGKILL

    in_fork(run)


def test_two_domains_of_one_ruleset_are_separate():
    """Each can be killed from outside; neither can signal nor look into the other."""
    ruleset = landlock.create(ABI, files=False, tcp=False, scoped=landlock.SIGNALS)
    ours, theirs = os.pipe()

    def sibling():
        kernel.forbid_new_privileges()
        landlock.restrict(ruleset)
        os.write(theirs, b"x")
        rest()

    other = Process(sibling)
    await_readable(ours)

    def run():
        kernel.forbid_new_privileges()
        privileges.give_up_capabilities()  # CAP_PERFMON reads any memory, whatever the domain
        landlock.restrict(ruleset)
        refused(lambda: os.kill(other.pid, 0))
        refused(lambda: Path(f"/proc/{other.pid}/environ").read_bytes())
        refused(lambda: os.open(f"/proc/{other.pid}/mem", os.O_RDONLY))
        refused(lambda: os.listdir(f"/proc/{other.pid}/fd") and os.readlink(f"/proc/{other.pid}/fd/0"))

    in_fork(run)
    assert other.end() == signal.SIGKILL
    for fd in (ruleset, ours, theirs):
        os.close(fd)


def test_abstract_sockets_and_tcp_are_denied():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0leasehold-test-{os.getpid()}")
    listener.listen()
    tcp = socket.create_server(("127.0.0.1", 0))

    def run():
        enter(files=False, tcp=True, scoped=landlock.ABSTRACT_SOCKETS)
        refused(lambda: socket.socket(socket.AF_UNIX).connect(listener.getsockname()))
        refused(lambda: socket.socket().connect(tcp.getsockname()))
        refused(lambda: socket.socket().bind(("127.0.0.1", 0)))

    in_fork(run)
    listener.close()
    tcp.close()


#: The restrictions that each version knows: rights to files, rights to the network, and scopes.
KNOWN = {
    1: (0x1FFF, 0, 0), 2: (0x3FFF, 0, 0), 3: (0x7FFF, 0, 0), 4: (0x7FFF, 3, 0), 5: (0xFFFF, 3, 0), 6: (0xFFFF, 3, 3),
    7: (0xFFFF, 3, 3), 99: (0xFFFF, 3, 3),
}  # fmt: skip


@pytest.mark.parametrize("abi", KNOWN)
def test_each_version_restricts_exactly_its_known_rights(abi, monkeypatch):
    asked = []

    def system_call(_number, *arguments):
        asked.extend(argument._obj for argument in arguments if hasattr(argument, "_obj"))

    monkeypatch.setattr(kernel, "system_call", system_call)
    landlock.create(abi, files=True, tcp=True, scoped=landlock.SIGNALS | landlock.ABSTRACT_SOCKETS)
    (rules,) = asked
    assert (rules.files, rules.net, rules.scoped) == KNOWN[abi]
    rule = landlock.Rule("/", landlock.OWN | landlock.USE, landlock.handled_files(abi))
    rule.add_to(-1)
    rule.close()
    assert asked[1].allowed & ~KNOWN[abi][0] == 0 != asked[1].allowed


@pytest.mark.parametrize("abi", range(1, 6))
def test_older_version_restricts_files_only(places, abi):
    own, other = places / "own", places / "other"

    def run():
        enter((own, landlock.OWN), tcp=True, scoped=landlock.SIGNALS, abi=abi)
        (own / "sub").mkdir()
        for act, is_free in (
            (lambda: (own / "file").rename(own / "sub" / "file"), abi >= 2),
            (lambda: os.truncate(other / "file", 0), abi < 3),
            (lambda: socket.socket().bind(("127.0.0.1", 0)), abi < 4),
            (lambda: os.kill(os.getppid(), 0), True),
            (lambda: (other / "file").read_text(), False),
        ):
            act() if is_free else refused(act, OSError)

    in_fork(run)
