"""Checks the machine: interpreter, kernel, /proc, control groups, limits, disk. Runs in the command's process.

Leaves no process and no file behind. Must not raise: what cannot be checked is a finding too.
"""

import errno
import importlib.util
import os
import platform
import resource
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from supervisor.cli.doctor import interpreter
from supervisor.cli.doctor.findings import Finding, ok, problem, warning
from supervisor.config import RunConfig, no_workdir
from supervisor.exit_codes import Exit
from supervisor.linux import cgroups, kernel
from supervisor.master.model import environment, memory
from supervisor.units import megabytes

#: Descriptors that a master opens per child (sockets, output, stacks, pidfd, payloads under way), and the rest.
_FILES_PER_CHILD: Final = 8
_OTHER_FILES: Final = 64
_FREE_BYTES: Final = 256 * 2**20


# without settings


def _python() -> Iterator[Finding]:
    """Report the interpreter's build."""
    build = interpreter.build()
    slower = "" if build.is_optimised else ": about a tenth slower than an interpreter with both"
    yield ok("python", f"{build}{slower}")


def _kernel() -> Iterator[Finding]:
    """Try each system call that the pool needs."""
    works, fails = [], []
    for name, trial in _CALLS.items():
        try:
            trial()
            works.append(name)
        except (OSError, AttributeError) as error:  # AttributeError: this Python was built without the call
            fails.append(f"{name} ({error})")
    system = f"{platform.system()} {platform.release()}"
    if fails:
        yield problem(
            "kernel",
            f"{system} refuses {', '.join(fails)}: the pool cannot do without; it needs Linux 5.4 or newer, and a"
            " seccomp profile (as of a container) that lets it call these",
        )
    else:
        yield ok("kernel", f"{system} has what the pool needs: {', '.join(works)}")


def _try_pidfd() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(pidfd, 0)
    finally:
        os.close(pidfd)


def _try_packets() -> None:
    """Send a packet with a descriptor."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        kernel.send(ours, b"x", (ours.fileno(),))
        _packet, fds = kernel.receive(theirs, 16, 1)
        for fd in fds:
            os.close(fd)
        if len(fds) != 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _try_signalfd() -> None:
    kernel.SignalFd((signal.SIGUSR2,)).close()


def _in_a_child(trial: Callable[[], None]) -> None:
    """Try in a forked child what cannot be undone. Raise the errno of the trial."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            trial()
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code) if code > 0 else f"killed by signal {-code}")


def _become_a_child() -> None:
    kernel.set_parent_death_signal(signal.SIGKILL)
    kernel.become_subreaper()
    kernel.forbid_new_privileges()
    os.setsid()


_CALLS: Final[dict[str, Callable[[], None]]] = {
    "pidfd": _try_pidfd,
    "sealed memfd": lambda: os.close(kernel.sealed_memfd((b"x",))),
    "packets with descriptors": _try_packets,
    "signalfd": _try_signalfd,
    "eventfd": lambda: os.close(os.eventfd(0)),
    "parent-death signal, subreaper, no new privileges": lambda: _in_a_child(_become_a_child),
}


def _proc() -> Iterator[Finding]:
    """Check that a process can see its descendants and their memory."""
    try:
        kernel.children_of_self()
        measured = "RssAnon:" in Path("/proc/self/status").read_text()
    except OSError as error:
        yield problem(
            "proc",
            f"it cannot be read ({error}): what a job leaves running could not be found; mount it, on a kernel with"
            " CONFIG_PROC_CHILDREN",
        )
        return
    if not measured:
        yield warning("proc", "the memory of a process (RssAnon) is not in its status: memory limits do not work")
    hidden = _mount_option("/proc", "hidepid")
    if not _sees_what_is_not_dumpable():
        yield warning(
            "proc",
            f"it hides children, which are not dumpable, from their own master (hidepid={hidden}): jobs cannot be"
            " measured, and no memory limit holds; mount it without, or take ProtectProc= out of the unit",
        )
    elif hidden in {"4", "ptraceable"}:
        yield warning(
            "proc",
            f"it is mounted with hidepid={hidden}: processes of jobs that change their user are not measured, and"
            " memory limits do not hold for them",
        )
    else:
        yield ok("proc", "it shows the processes below one" + (f" (hidepid={hidden})" if hidden else ""))


def _sees_what_is_not_dumpable() -> bool:
    """Return True if a parent still sees a child that is not dumpable."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            pid = os.fork()
            if pid == 0:
                try:
                    ours.close()
                    kernel.forbid_dumping()
                    theirs.sendall(b"x")
                    theirs.recv(1)  # until the parent has looked
                finally:
                    os._exit(0)
        ours.recv(1)
        seen = memory.of(pid) is not None
    os.waitpid(pid, 0)
    return seen


def _mount_option(where: str, name: str) -> str:
    options = {each.mountpoint: each.opts.split(",") for each in psutil.disk_partitions(all=True)}
    return next((each.partition("=")[2] for each in options.get(where, ()) if each.startswith(f"{name}=")), "")


def _control_groups() -> Iterator[Finding]:
    """Report the limits of all processes together."""
    limit, quota, killed = cgroups.memory_limit(), cgroups.cpu_quota(), cgroups.OomKills().count()
    words = [
        _layout(),
        f"memory {megabytes(limit)}" if limit else "no memory limit",
        f"{quota:g} CPUs" if quota else "no CPU quota",
    ]
    if killed:
        words.append(f"{killed} killed by the kernel for lack of memory since it was made")
    yield ok("cgroup", ", ".join(words))
    if cgroups.kills_as_group():
        yield warning(
            "cgroup",
            "memory.oom.group is 1: when memory runs out the kernel kills all processes together, the supervisor too,"
            " and nobody is left to say which job it was; set it to 0 (in Kubernetes: singleProcessOOMKill), and give"
            " jobs a --memory-limit so that it does not come to that",
        )
    if quota is not None and quota < 1:
        yield warning(
            "cgroup",
            f"the CPU quota is {quota:g}: the kernel stops all processes for most of each period, also the one that"
            " renews the leases; give it one CPU, or a heartbeat that is long",
        )


def _layout() -> str:
    if (cgroups.CGROUPS / "cgroup.controllers").exists():
        return "v2"
    if (cgroups.CGROUPS / "memory").is_dir():
        return "v1"
    return "none that can be seen"


def _init() -> Iterator[Finding]:
    """Check which process gets a container's signals."""
    if os.getpid() == 1:
        yield ok("init", "this is PID 1: it gets the container's signals, and reaps orphans")
        return
    try:
        above = environment.shell_above()
    except OSError:  # hidden: then it is a host's init, which is fine
        above = None
    yield warning("init", above) if above else ok("init", f"PID {os.getpid()}, started by PID {os.getppid()}")


CHECKS: Final = (_python, _kernel, _proc, _control_groups, _init)


# with settings


def _processes(config: RunConfig) -> Iterator[Finding]:
    """Report the number of processes, and check the user's limits for it."""
    count = config.processes
    yield ok("processes", f"{count} at the same time ({config.processes_reason})")
    needed, (_soft, most) = _OTHER_FILES + _FILES_PER_CHILD * count, resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        yield problem(
            "files",
            f"at most {most} may be open (the hard limit), and {count} children need"
            f" {needed}: raise it (ulimit -Hn, LimitNOFILE, docker run --ulimit nofile), or lower --processes",
        )
    else:
        yield ok(
            "files",
            f"up to {'any number' if most == resource.RLIM_INFINITY else most} open at once, {needed} are needed",
        )
    yield from _process_limit(count)


def _process_limit(count: int) -> Iterator[Finding]:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0 and soft < 2 * count:
        yield warning(
            "processes",
            f"this user may have {soft} processes, its others included, and {count} children are wanted: forks may be"
            " refused; raise it (ulimit -u), or lower --processes",
        )


def _memory(config: RunConfig) -> Iterator[Finding]:
    """Check that the jobs' limits fit into the memory budget."""
    budget, limit = config.memory_budget_bytes, config.memory_limit_bytes
    if not budget:
        yield ok("memory", f"no budget for all processes together ({config.memory_budget_reason})")
        return
    yield ok("memory", f"{megabytes(budget)} for all processes together ({config.memory_budget_reason})")
    if limit and limit * config.processes > budget:
        yield warning(
            "memory",
            f"{config.processes} processes of up to {megabytes(limit)} each (--memory-limit) are more than the budget"
            f" of {megabytes(budget)}: some of them will wait for others",
        )


def _workdir(config: RunConfig) -> Iterator[Finding]:
    """Check that working directories can be made, and have room."""
    try:
        base = config.workdir or Path(tempfile.gettempdir())
        made = tempfile.mkdtemp(prefix="leasehold-doctor-", dir=base)
        Path(made).rmdir()
        usage = shutil.disk_usage(base)
    except OSError as error:
        yield problem("workdir", no_workdir(error), Exit.CONFIG)
        return
    if usage.free < _FREE_BYTES:
        yield warning(
            "workdir", f"{base} has {megabytes(usage.free)} free: jobs that write files may fail; make room there"
        )
    else:
        yield ok("workdir", f"{base}, {megabytes(usage.free)} free")


def _http(config: RunConfig) -> Iterator[Finding]:
    """Check that --http can be listened on."""
    if config.http is None:
        return
    from supervisor.ops import http

    try:
        http.listen(config.http).close()
    except http.Unavailable as error:
        yield problem("http", f"{error}", Exit.CONFIG)
        return
    yield ok("http", f"{config.http} is free for /livez, /readyz, /metrics and /status")
    if importlib.util.find_spec("prometheus_client") is None:
        yield warning("http", "/metrics cannot be served: pip install 'leasehold[metrics]'")


CHECKS_OF_SETTINGS: Final = (_processes, _memory, _workdir, _http)
