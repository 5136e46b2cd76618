"""Attacks of hostile handlers on their supervisor, their neighbours and the machine, for `test_attacks.py`.

Each attack returns its gains in words. An attack has failed if it returns an empty list or raises. No attack does harm
if it succeeds: signals have the number 0, and written files are the test's own.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from supervisor import handler, messages
from supervisor.child.talk import Talk

_libc = ctypes.CDLL(None, use_errno=True)
_SECRET = re.compile(rb"sesame-[0-9a-f]{32}")
_PIDFD_GETFD, _IO_URING_SETUP = 438, 425
_PTRACE_ATTACH, _PTRACE_DETACH = 16, 17
_LONG_S = 1000

ATTACKS = {}


def attack(function):
    ATTACKS[function.__name__] = function
    return function


@handler
def attacked(job):
    """Run one attack. data: its name, and what the attacker knows: pids, paths, ports."""
    got = []
    try:
        knows = Knowledge(**job.data["knows"]) if job.data["knows"] else None
        for one in ATTACKS[job.data["attack"]](job, knows) or ():
            got.append(str(one))
    except (OSError, subprocess.SubprocessError) as refusal:
        sys.stdout.write(f"{job.data['attack']}: {refusal}\n")
    return got


@handler
def quick(job):
    """Return at once. Its large data needs a descriptor on the way."""
    return len(job.data)


@handler
def thief(job):
    """Return at once, so that other jobs are sent ahead to its child. When it is to steal, it answers them in their
    name.
    """
    if not job.data:
        return None
    jobs, stolen = _jobs(), []
    with contextlib.suppress(BlockingIOError):
        while True:
            stolen.append(messages.unpack_job(jobs.recv(100_000, socket.MSG_DONTWAIT)))
    if stolen:
        _forge(_talk(), job.token, body=b'"the thief"')
        for each in stolen:
            _forge(_talk(), each.token, body=b'"stolen from %s"' % each.payload)
        os._exit(0)
    return "nothing"


@handler
def victim(job):
    return "its own"


@handler
def deaf(job):
    """Return at once, so that other jobs are sent ahead to its child. When told to, it shuts the socket that these come
    by, and goes on.
    """
    jobs = _jobs()
    if job.data:
        jobs.shutdown(socket.SHUT_RD)
        time.sleep(_LONG_S)


@functools.cache
def _jobs():
    """Return the socket by which jobs come to this child."""
    jobs = next(fd for fd in _sockets() if not _is_same(socket.socket(fileno=os.dup(fd)), _talk()))
    return socket.socket(fileno=os.dup(jobs))


def _sockets():
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            if socket.socket(fileno=os.dup(fd)).type == socket.SOCK_SEQPACKET:
                yield fd


@handler
def neighbour(job):
    """Wait with a file in its directory, and return what has become of the file meanwhile."""
    signalled = []
    signal.signal(signal.SIGURG, lambda *_: signalled.append("signalled"))
    Path("mine").write_text("mine")
    os.close(os.open(job.data, os.O_RDONLY))
    return [Path("mine").read_text(), os.listdir(), signalled]


class Knowledge:
    def __init__(self, master, zygote, sibling, sibling_number, elsewhere, embedded, tcp, abstract, setuid):
        self.master, self.zygote, self.sibling, self.sibling_number = master, zygote, sibling, sibling_number
        self.others = {"master": master, "zygote": zygote, "sibling": sibling}
        self.elsewhere, self.embedded = Path(elsewhere), embedded
        self.tcp, self.abstract, self.setuid = tcp, abstract, setuid


def _call(function, *arguments):
    """Make a system call by libc's name or by number. Raises OSError."""
    ctypes.set_errno(0)
    answer = function(*arguments) if callable(function) else _libc.syscall(function, *arguments)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _each(knows, run):
    """Return what `run(pid)` returns for each of the other processes, without those where it fails."""
    for name, pid in knows.others.items():
        with contextlib.suppress(OSError):
            answer = run(pid)
            if answer:
                yield f"{name}: {answer}"


def _secrets(raw):
    return {found.decode() for found in _SECRET.findall(raw)}


# the credentials


@attack
def own_environment(job, knows):
    exec_environment = Path("/proc/self/environ").read_bytes()
    return _secrets(repr(os.environb).encode() + exec_environment)


@attack
def own_memory(job, knows):
    """Search its own memory for secrets that a fork may have inherited."""
    with open("/proc/self/mem", "rb", 0) as file:
        for start, size in _maps("self"):
            file.seek(start)
            with contextlib.suppress(OSError):
                yield from _secrets(file.read(size))


@attack
def environment_of_the_master(job, knows):
    return _secrets(Path(f"/proc/{knows.master}/environ").read_bytes())


@attack
def command_lines(job, knows):
    return [s for pid in knows.others.values() for s in _secrets(Path(f"/proc/{pid}/cmdline").read_bytes())]


def _maps(pid):
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, rights, *_rest = line.split()
        start, end = (int(each, 16) for each in where.split("-"))
        if rights.startswith("rw") and end - start < 64 << 20:
            yield start, end - start


@attack
def memory_files(job, knows):
    def read(pid):
        with open(f"/proc/{pid}/mem", "rb", 0) as file:
            for start, size in _maps(pid):
                file.seek(start)
                with contextlib.suppress(OSError):
                    if found := _secrets(file.read(size)) if pid == knows.master else file.read(8):
                        return found
        return None

    return _each(knows, read)


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


@attack
def process_vm_readv(job, knows):
    def read(pid):
        # Ours may lie where its own does: it is a fork of the same zygote. Else it fails of the address: EFAULT.
        here = ctypes.create_string_buffer(b"x" * 8)
        ours, theirs = _Span(ctypes.addressof(here), 8), _Span(ctypes.addressof(here), 8)
        try:
            _call(_libc.process_vm_readv, pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        except OSError as error:
            if error.errno != 14:
                raise
        return "it may be read"

    return _each(knows, read)


@attack
def ptrace(job, knows):
    def trace(pid):
        _call(_libc.ptrace, _PTRACE_ATTACH, pid, 0, 0)
        os.waitpid(pid, 0x40000000)  # __WALL
        _call(_libc.ptrace, _PTRACE_DETACH, pid, 0, 0)
        return "traced"

    return _each(knows, trace)


@attack
def own_descriptors(job, knows):
    for fd in range(256):
        with contextlib.suppress(OSError):
            peer = socket.socket(fileno=os.dup(fd)).getpeername()
            if peer:
                yield f"{fd} is connected to {peer}"


def _steal(pid):
    pidfd = os.pidfd_open(pid)
    for fd in range(64):
        with contextlib.suppress(OSError):
            yield _call(_PIDFD_GETFD, pidfd, fd, 0)


@attack
def descriptors_of_others(job, knows):
    yield from _each(knows, lambda pid: [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()][:1])
    yield from _each(knows, lambda pid: list(_steal(pid)))


@attack
def connection_of_the_master(job, knows):
    """Use the master's own connection to Redis, which asks for no password any more."""
    for fd in _steal(knows.master):
        with contextlib.suppress(OSError):
            stolen = socket.socket(fileno=fd)
            if stolen.type == socket.SOCK_STREAM and stolen.getpeername():
                yield f"connected to {stolen.getpeername()}"


@attack
def password_of_the_embedded_server(job, knows):
    return _secrets(Path(knows.embedded).read_bytes())


# files


@attack
def write_outside(job, knows):
    yield from _tries(
        lambda: (knows.elsewhere / "new").write_text("x"),
        lambda: (knows.elsewhere / "victim").write_text("x"),
        lambda: os.truncate(knows.elsewhere / "victim", 0) or "cut",
        lambda: (knows.elsewhere / "directory").mkdir() or "made",
        lambda: os.link(knows.elsewhere / "victim", "linked") or "linked",
        lambda: os.rename(knows.elsewhere / "victim", knows.elsewhere / "v") or "moved",
        lambda: os.symlink("x", knows.elsewhere / "link") or "symlink",
        lambda: os.mkfifo(knows.elsewhere / "fifo") or "fifo",
        lambda: (knows.elsewhere / "v").unlink() or "removed",
        lambda: Path(job.workdir, "..", "beside").mkdir() or "beside",
        lambda: _away_and_back(job.workdir),
        lambda: _through_a_link(knows),
        lambda: Path("/dev/shm/leasehold-attack").touch() or Path("/dev/shm/leasehold-attack").unlink() or "shm",
    )


def _away_and_back(directory):
    os.rename(directory, f"{directory}-moved")
    os.rename(f"{directory}-moved", directory)
    return "own"


def _through_a_link(knows):
    os.symlink(knows.elsewhere, "out")
    return Path("out", "through").write_text("x")


@attack
def read_outside(job, knows):
    yield from _tries(lambda: (knows.elsewhere / "treasure").read_text())


def _tries(*tries):
    for each in tries:
        with contextlib.suppress(OSError):
            yield each()


@attack
def directory_of_a_sibling(job, knows):
    """Reach a sibling's directory by its path, and by the sibling's working directory."""
    for path in (Path(job.workdir).parent / f"child-{knows.sibling_number}", Path(f"/proc/{knows.sibling}/cwd")):
        with contextlib.suppress(OSError):
            (path / "planted").write_text("x")
            yield f"{path.name}: written"
            (path / "planted").unlink()
        with contextlib.suppress(OSError):
            path.rename(f"{path}-moved")
            yield f"{path.name}: moved"
            Path(f"{path}-moved").rename(path)


@attack
def own_directory_becomes_a_link(job, knows):
    os.chdir("/")
    shutil.rmtree(job.workdir, ignore_errors=True)
    os.rmdir(job.workdir) if os.path.isdir(job.workdir) else None
    os.symlink(knows.elsewhere, job.workdir)
    yield "linked"


@attack
def own_directory_is_hard_to_clean(job, knows):
    """Leave a deep tree, closed directories, and links to foreign files."""
    os.symlink(knows.elsewhere, "link")
    os.makedirs("closed/inner")
    os.symlink(knows.elsewhere, "closed/inner/link")
    os.chmod("closed/inner", 0)
    os.chmod("closed", 0)
    for _ in range(1100):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(job.workdir)
    os.chmod(".", 0)


@attack
def one_large_file(job, knows):
    with open("large", "wb") as file:
        for _ in range(9):
            file.write(b"x" * (1 << 20))
            file.flush()
        yield file.tell()


@attack
def many_files(job, knows):
    for number in range(16):
        Path(f"{number}").write_bytes(b"x" * (1 << 20))
    time.sleep(_LONG_S if job.data["stay"] else 0)
    yield "filled"


# processes


@attack
def stay_behind(job, knows):
    """Leave a daemon with an open file that ignores all signals that it can."""
    ready, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            held = open("held", "w")  # noqa: SIM115  held is what it is
            time.sleep(_LONG_S)
            held.close()
        os.write(told, f"{pid}".encode())
        os._exit(0)
    yield os.read(ready, 32).decode()


_CLONE, _UNSHARE = (56, 272) if os.uname().machine == "x86_64" else (220, 97)
_CLONE_PARENT, _CLONE_NEWUSER = 0x8000, 0x10000000


@attack
def leave_as_a_sibling(job, knows):
    """Create processes that are siblings of the child, not its descendants. One stays, many end at once."""
    for _ in range(30):
        if _call(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            os._exit(0)
    pid = _call(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            time.sleep(1)
    yield pid


@attack
def leave_as_an_orphan(job, knows):
    """Leave orphans. The nearest subreaper adopts them: our zygote, if the child is none."""
    _call(_libc.prctl, 36, 0, 0, 0, 0)
    yield from stay_behind(job, knows)


@attack
def user_namespace(job, knows):
    _call(_UNSHARE, _CLONE_NEWUSER)
    yield "all privileges in it"


@attack
def shared_memory(job, knows):
    shmid = _call(_libc.shmget, 0, 1 << 20, 0o1600)
    _libc.shmat.restype = ctypes.c_void_p
    ctypes.memset(_libc.shmat(shmid, None, 0), 1, 1 << 20)
    yield shmid


@attack
def queues_and_semaphores(job, knows):
    for kind, get, arguments in (("msg", _libc.msgget, ()), ("sem", _libc.semget, (1,))):
        with contextlib.suppress(OSError):
            yield f"{kind} {_call(get, 0, *arguments, 0o1600)}"
    name = f"/leasehold-{job.jid}"
    with contextlib.suppress(OSError):
        _call(_libc.mq_open, name.encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
        yield f"mq {name}"


@attack
def descriptors_in_flight(job, knows):
    """Send descriptors until the kernel refuses. The kernel counts descriptors of all processes of a user."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    null = os.open(os.devnull, os.O_RDONLY)
    kept = []
    with contextlib.suppress(OSError):
        for _ in range(most // 1000):
            kept.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
            for _ in range(5):
                socket.send_fds(kept[-1][0], [b"x"], [null] * 253)
    sys.stdout.write("used up\n")
    sys.stdout.flush()
    os.close(os.open(job.data["gate"], os.O_RDONLY))
    yield f"{len(kept)} sockets"


@attack
def signals(job, knows):
    """Try signal 0, which does nothing, on all processes."""
    yield from _each(knows, lambda pid: os.kill(pid, 0) or "kill")
    yield from _each(knows, lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), 0) or "pidfd")
    yield from _each(knows, lambda pid: not _call(_libc.tgkill, pid, pid, 0) and "tgkill")
    yield from _each(knows, lambda pid: os.getpgid(pid) != os.getpgid(0) and (os.killpg(os.getpgid(pid), 0) or "group"))


@attack
def deadly_signals(job, knows):
    """Try signals that kill. Only for sandboxes that refuse them."""
    for signo in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        yield from _each(knows, lambda pid, signo=signo: os.kill(pid, signo) or f"{signo!r}")


@attack
def everybody(job, knows):
    """Kill all processes. Only in a PID namespace."""
    assert Path("/proc/1/cmdline").read_bytes().startswith(b"leasehold: master")
    os.kill(-1, signal.SIGKILL)


@attack
def signal_by_a_pipe(job, knows):
    """Have the kernel signal a sibling as the owner of a descriptor. The sibling records it."""
    near, far = socket.socketpair()
    fcntl.fcntl(near, fcntl.F_SETOWN, knows.sibling)
    fcntl.fcntl(near, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(near, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    far.send(b"x")
    return ()


@attack
def raise_limits(job, knows):
    """Raise the limits that the child or this handler has lowered."""
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (100, 100))
    for name in ("SIGPENDING", "CORE", "FSIZE", "NOFILE"):
        limit = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(limit)[1]
        with contextlib.suppress(OSError, ValueError):
            if hard != resource.RLIM_INFINITY:
                resource.setrlimit(limit, (hard + 1, hard + 1))
                yield name


@attack
def limits_of_others(job, knows):
    """Set limits of others to their present values: it is enough that this is allowed."""

    def same(pid):
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU):
            resource.prlimit(pid, limit, resource.prlimit(pid, limit))
        return "prlimit"

    yield from _each(knows, same)


@attack
def scheduling_of_others(job, knows):
    yield from _each(knows, lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(pid)) or "affinity")
    yield from _each(
        knows, lambda pid: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)) or "nice"
    )


@attack
def privileges(job, knows):
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        yield "nice"
    with contextlib.suppress(OSError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(int(score.read_text()) - 301))  # its zygote has raised it by 300
        yield "oom score"


@attack
def privileges_of_programs(job, knows):
    """Gain privileges by programs of root, by their set-uid bit or as root executes them."""
    status = subprocess.run([knows.setuid, "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    if _capabilities(status):
        yield f"{_capabilities(status):#x}"


def _capabilities(status):
    return int(re.search(r"CapEff:\s*(\w+)", status)[1], 16)


# the network


@attack
def network(job, knows):
    yield from _tries(
        lambda: socket.create_connection(("127.0.0.1", knows.tcp), 5) and "tcp",
        lambda: socket.create_connection(("::1", knows.tcp), 5) and "tcp over IPv6",
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", knows.tcp)) and "udp",
        lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) and "udp over IPv6",
        lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) and "netlink",
        lambda: socket.socketpair(socket.AF_INET) and "pair",
        lambda: _io_uring(),
        lambda: _connect_abstract(knows),
        lambda: socket.socket(40, socket.SOCK_STREAM) and "vsock",
    )


def _io_uring():
    os.close(_call(_IO_URING_SETUP, 1, ctypes.create_string_buffer(120)))
    return "io_uring"


def _connect_abstract(knows):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{knows.abstract}")
    return "abstract socket"


@attack
def network_of_a_program(job, knows):
    """Use the network in a program that the handler starts."""
    code = f"import socket; socket.create_connection(('127.0.0.1', {knows.tcp}), 5)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True)
    yield "tcp"


# its own socket, and others'


def _send_fds(sock, packet, fds):
    """Send descriptors. Wait while another test has used up those in flight: the kernel counts them by user."""
    while True:
        try:
            socket.send_fds(sock, [packet], fds)
            return
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
        time.sleep(0.01)


def _talk():
    """Return the socket by which its child answers the master."""
    return next(each for each in gc.get_objects() if isinstance(each, Talk))._talk


def _forge(talk, token, verb=messages.Verb.COMPLETED, body=b'"forged"'):
    talk.send(messages.pack_outcome(verb, token, 0.0, body))


@attack
def outcomes_of_others(job, knows):
    """Send outcomes in the name of other jobs, with tokens near its own."""
    for token in range(max(0, job.token - 100), job.token):
        _forge(_talk(), token)
    time.sleep(_LONG_S)


@attack
def ready_again(job, knows):
    _talk().send(messages.pack_ready())
    time.sleep(_LONG_S)


@attack
def flood(job, knows):
    while True:
        _talk().send(messages.pack_progress(job.token, messages.ProgressReport(0.5, "x" * 100)))


@attack
def nonsense(job, knows):
    _talk().send(os.urandom(64))
    time.sleep(_LONG_S)


@attack
def descriptors_for_the_master(job, knows):
    _send_fds(_talk(), messages.pack_outcome(messages.Verb.FOLLOWED, job.token, 0.0), [0])
    time.sleep(_LONG_S)


def _lingering(knows):
    """Return a descriptor whose last close waits in the kernel: of a socket, or of a pipe without a network."""
    try:
        sock = socket.create_connection(("127.0.0.1", knows.tcp), 5)
    except OSError:
        return os.pipe()[0]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, _LONG_S))
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(b"x" * 65536)
    return sock.detach()


def _wrapped(knows):
    """Return a socket with such a descriptor in its queue, so that nothing can change its options."""
    fd = _lingering(knows)
    outer, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _send_fds(inner, b"x", [fd])
    os.close(fd)
    return outer.detach()


def _leave(job, verb, fds):
    """Send them, and close our copies before the master receives them."""
    talk, packet = _talk(), messages.pack_outcome(verb, job.token, 0.0)
    busy = messages.pack_progress(job.token, messages.ProgressReport(0.5, "x" * 100))
    for _ in range(100):
        talk.send(busy)
    _send_fds(talk, packet, fds)
    os.closerange(min(fds), max(fds) + 1)
    time.sleep(_LONG_S)


@attack
def a_close_that_waits(job, knows):
    """Send the master a descriptor whose last close takes as long as the sender likes."""
    _leave(job, messages.Verb.PROGRESS, [_wrapped(knows)])


@attack
def closes_that_wait(job, knows):
    """Send the master such descriptors in messages that need none."""
    null = os.open(os.devnull, os.O_RDONLY)
    _leave(job, messages.Verb.FOLLOWED, [null, *(_wrapped(knows) for _ in range(5)), _lingering(knows)])


def _follow_by(job, make):
    """Send a completion in a memfd that `make(fd)` fills."""
    fd = os.memfd_create("m", os.MFD_ALLOW_SEALING)
    make(fd)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    _send_fds(_talk(), messages.pack_outcome(messages.Verb.FOLLOWED, job.token, 0.0), [fd])
    os.close(fd)
    time.sleep(_LONG_S)


@attack
def a_head_of_nothing_but_objects(job, knows):
    """Send JSON that takes thirty times its size of the master's memory when decoded."""
    size = (7 << 20) // 3 * 3  # less than --workdir-limit lets us write
    _follow_by(job, lambda fd: os.write(fd, (size + 3).to_bytes(4, "little") + b"[" + b"{}," * (size // 3) + b"1]"))


@attack
def a_completion_of_holes(job, knows):
    """Send a sparse file: it costs the sender nothing, and the master its size."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    size = messages.MAX_COMPLETION_BYTES if most == resource.RLIM_INFINITY else min(most, messages.MAX_COMPLETION_BYTES)
    _follow_by(job, lambda fd: os.ftruncate(fd, size))


@attack
def descriptors_where_jobs_come(job, knows):
    """Send descriptors into `jobs`, whose other end the master closes after the child's death."""
    for fd in _sockets():
        jobs = socket.socket(fileno=os.dup(fd))
        if not _is_same(jobs, _talk()):
            socket.send_fds(jobs, [b"x"], [_lingering(knows)])
            yield f"sent by {fd}"


def _is_same(one, other):
    return os.fstat(one.fileno()).st_ino == os.fstat(other.fileno()).st_ino


@attack
def sockets_of_a_sibling(job, knows):
    """Open the sockets of a sibling, to write an outcome of its job."""
    for fd in _steal(knows.sibling):
        with contextlib.suppress(OSError):
            if socket.socket(fileno=fd).type == socket.SOCK_SEQPACKET:
                yield "a socket between it and the master"
