"""Confines children by level and profile. Runs in zygote and children. Owns the steps, their order, and the report.

The zygote has the privileges to prepare the steps, and tries each in a fork. A part that is unavailable is left out and
reported, and never keeps a child from starting. A part that was available and then fails in a child ends the child: it
must not run a job with less than was promised.
"""

import contextlib
import errno
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from supervisor.linux import kernel
from supervisor.messages import CONTROL_FD, STACKS_FD, Boot, Profile
from supervisor.sandbox import landlock, preloaded, privileges, readable, seccomp

#: User and group of children under strict: those of `nobody` on all common systems.
NOBODY: Final = (65534, 65534)
ON: Final = "on"
_BASIC_UMASK: Final = 0o022
_STRICT_UMASK: Final = 0o077
_WELL: Final = "well"
_DIED: Final = "the process that tried it has died"
_MOST_WORDS_BYTES: Final = 65536
_NOT_ROOT: Final = "because the supervisor is not root"


class Confinement:
    """The confinement of all profiles of one zygote's handlers."""

    def __init__(self, boot: Boot, profiles: Collection[Profile], rebind: Callable[[], None]) -> None:
        """`rebind` ties a child to the zygote's life again, after a change of user."""
        self._boot = boot
        self._profiles = sorted(profiles)
        self._rebind = rebind
        # A profile that all handlers share is entered at a child's start; otherwise the child's first job decides.
        self.common = self._profiles[0] if len(self._profiles) == 1 else None
        self._all_hard = all(profile.level != "none" for profile in self._profiles)
        self._foreign_fds = _foreign_descriptors() if self._any_strict else {}
        self._abi, self._landlock_why = _ask_landlock() if self._any_hard else (0, "")
        self._filter, self._filter_why = _make_filter(seccomp.NoNetwork, self._any_cut_off)
        self._basic, self._basic_why = _make_filter(seccomp.Basic, self._any_hard)
        self._strict, self._strict_why = _make_filter(seccomp.Strict, self._any_strict)
        self._namespace, self._namespace_why = self._make_namespace()
        self._users_why = {profile.level: self._why_same_user(profile.level) for profile in self._profiles}
        self._capabilities_why = self._why_capabilities_stay()
        # Includes other children's working directories, which may lie below a readable path.
        self._hidden = [*boot.hidden, os.path.dirname(boot.workdir)]
        self._rules: list[landlock.Rule] = []
        self._readable: list[str] = []
        self._rulesets: dict[Profile, int] = {}
        self._make_rules()
        self.report = self._report()
        # Built in the zygote: in a fork each page that is touched first costs more than a system call.
        self._steps = {profile: list(self._steps_of(profile)) for profile in self._profiles}
        made = [self._namespace, *self._rulesets.values(), *(rule.fd for rule in self._rules)]
        self._made = list(_ranges(fd for fd in made if fd >= 0))

    # in the zygote

    @property
    def _any_hard(self) -> bool:
        return any(profile.level != "none" for profile in self._profiles)

    @property
    def _any_strict(self) -> bool:
        return any(profile.level == "strict" for profile in self._profiles)

    @property
    def _any_cut_off(self) -> bool:
        return not all(profile.network for profile in self._profiles)

    def prepare(self) -> None:
        """Apply in the zygote, after the import of foreign code, what children inherit: so it costs no fork time."""
        if self._boot.workdir_limit_bytes:
            limit = self._boot.workdir_limit_bytes
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if self._all_hard:
            _harden()
            privileges.bound_capabilities()
            if self._basic is not None:
                self._basic.install()

    @property
    def contains_trees(self) -> bool:
        """True if no process can leave the tree of its child."""
        return self._all_hard and self._basic is not None

    def _why_capabilities_stay(self) -> str:
        if not self._any_hard:
            return ""
        if why := privileges.why_not():
            return why
        answer = _in_a_fork(privileges.give_up_capabilities)
        return f"because that is refused ({answer})" if answer is not None else ""

    def _make_namespace(self) -> tuple[int, str]:
        """Return the descriptor of an empty network namespace, or -1 and why there is none."""
        if not self._any_cut_off:
            return -1, ""
        if os.geteuid() != 0:
            return -1, _NOT_ROOT
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            answer = _in_a_fork(
                lambda: kernel.send(theirs, b"n", (privileges.network_namespace(),)), untried="no process can be forked"
            )
            if answer is not None:
                return -1, f"because none can be made ({answer})"
            _packet, fds = kernel.receive(ours, 16, 1)
            return (fds[0], "") if fds else (-1, "because no descriptor is left for it")

    def user_of(self, level: str) -> tuple[int, int] | None:
        """Return uid and gid for children of this level. None: the supervisor's own."""
        if self._boot.child_user:
            return self._boot.child_user[0], self._boot.child_user[1]
        return NOBODY if level == "strict" else None

    def _why_same_user(self, level: str) -> str:
        """Return why children of this level keep the supervisor's user. Empty: they change it, or are not meant to."""
        user = self.user_of(level)
        if user is None:
            return ""
        if os.geteuid() != 0:
            return _NOT_ROOT
        if lacking := privileges.lacking(privileges.FOR_ANOTHER_USER):
            names = ", ".join(privileges.FOR_ANOTHER_USER[each] for each in sorted(lacking))
            return f"because the supervisor lacks {names}"
        # The directories above are the supervisor's alone. The child's user may pass through but not list them.
        for directory in (self._boot.workdir, os.path.dirname(self._boot.workdir)):
            os.chmod(directory, stat.S_IMODE(os.stat(directory).st_mode) | 0o011)
        needed = [self._boot.workdir, os.path.dirname(os.__file__), *(path for path in sys.path if os.path.isdir(path))]
        answer = _in_a_fork(lambda: _first_barred(user, needed))
        return f"because {answer}" if answer is not None else ""

    def _make_rules(self) -> None:
        if not self._abi:
            return
        for profile in self._profiles:
            if profile.level == "basic" and self._abi >= landlock.SCOPES_SINCE:
                self._rulesets[profile] = landlock.create(self._abi, files=False, tcp=False, scoped=_scopes(profile))
        if self._any_strict:
            self._rules = list(self._readable_rules())

    def _readable_rules(self) -> Iterator[landlock.Rule]:
        handled = landlock.handled_files(self._abi)
        self._readable = readable.outermost((*readable.default_list(), *map(os.path.realpath, self._boot.readable)))
        for path, names_only in readable.without_hidden(self._readable, self._hidden):
            with contextlib.suppress(OSError):  # gone meanwhile, or not readable for this user anyway
                yield landlock.Rule(path, landlock.READ_DIR if names_only else landlock.READ, handled)
        for path in readable.WRITABLE:
            with contextlib.suppress(OSError):
                yield landlock.Rule(path, landlock.USE, handled)

    # in a child

    def enter(self, profile: Profile, workdir: str, own_fds: Collection[int]) -> None:
        """Confine the calling child, irreversibly. `own_fds`: its descriptors beside standard input and output.

        Raises OSError where a part fails that was available in the zygote.
        """
        for step in self._steps[profile]:
            step(workdir)
        for lowest, past in self._made:
            os.closerange(lowest, past)
        if profile.level == "strict":
            self._close_foreign(own_fds)

    def _steps_of(self, profile: Profile) -> Iterator[Callable[[str], object]]:
        """Yield the steps into a profile. The order matters: a step may take away what an earlier one needs."""
        hard, strict = profile.level != "none", profile.level == "strict"
        user = self.user_of(profile.level) if not self._users_why[profile.level] else None
        if strict:
            yield lambda _workdir: os.umask(_STRICT_UMASK)
        if hard and not self._all_hard:
            yield lambda _workdir: _harden()
            if self._basic is not None:
                refuse = self._basic.install
                yield lambda _workdir: refuse()
        if not profile.network and self._namespace >= 0:
            yield lambda _workdir: privileges.enter_network(self._namespace)
        if user is not None:
            yield lambda workdir: self._become(user, workdir)
        if hard and not self._capabilities_why:
            yield lambda _workdir: privileges.give_up_capabilities()
        if user is not None:
            yield lambda _workdir: self._rebind()
            if hard:
                yield lambda _workdir: kernel.forbid_dumping()
        if profile in self._rulesets:
            ruleset = self._rulesets[profile]
            yield lambda _workdir: landlock.restrict(ruleset)
        elif strict and self._abi:
            yield lambda workdir: self._restrict_files(profile, workdir)
        if not profile.network and self._filter is not None:
            install = self._filter.install
            yield lambda _workdir: install()
        if strict and self._strict is not None:
            refuse_more = self._strict.install
            yield lambda _workdir: refuse_more()
        if strict:
            yield _keep_temporary_files_in

    def _become(self, user: tuple[int, int], workdir: str) -> None:
        os.chown(workdir, *user, follow_symlinks=False)  # a child of root may have put a link there
        privileges.become(*user)

    def _restrict_files(self, profile: Profile, workdir: str) -> None:
        tcp = not profile.network
        ruleset = landlock.create(self._abi, files=True, tcp=tcp, scoped=_scopes(profile))
        own = landlock.Rule(workdir, landlock.OWN, landlock.handled_files(self._abi))
        for rule in (*self._rules, own):
            rule.add_to(ruleset)
        own.close()
        landlock.restrict(ruleset)
        os.close(ruleset)

    def _close_foreign(self, own_fds: Collection[int]) -> None:
        """Replace descriptors that preloaded code left open by /dev/null.

        Their numbers must stay taken: otherwise their owner would soon write into other files.
        """
        if not self._foreign_fds:
            return
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd, link in self._foreign_fds.items():
            with contextlib.suppress(OSError):  # closed since
                if fd not in own_fds and os.readlink(f"/proc/self/fd/{fd}") == link:
                    os.dup2(nowhere, fd, os.get_inheritable(fd))
        os.close(nowhere)

    # report

    def _report(self) -> dict[str, str]:
        """Return the state of each part: "on …", "off: …" or "unavailable: because …"."""
        parts: dict[str, str] = {}
        for part, state in _PARTS.items():
            parts[part] = self._merged([state(self, profile) for profile in self._profiles])
        return parts

    def _merged(self, states: list[str]) -> str:
        different = list(dict.fromkeys(states))
        if len(different) == 1:
            return different[0]
        for state in different:
            if state.startswith("unavailable"):
                return state
        held = [state for state in different if state.startswith(ON)]
        if len(held) < len(different):
            return f"{held[0]} (of some handlers only, from their first job on)"
        others = ", ".join(state.removeprefix(f"{ON}: ") for state in held[1:])
        return f"{held[0]}; of some handlers from their first job on: {others}"

    def _common_part(self, profile: Profile) -> str:
        return ON if profile.level != "none" else _off(profile)

    def _umask_part(self, profile: Profile) -> str:
        return _off(profile) if profile.level == "none" else f"{ON}: {_umask_of(profile.level):03o} at least"

    def _capabilities_part(self, profile: Profile) -> str:
        if profile.level == "none":
            return _off(profile)
        return f"unavailable: {self._capabilities_why}" if self._capabilities_why else ON

    def _user_part(self, profile: Profile) -> str:
        user = self.user_of(profile.level)
        if user is None:
            return f"off: handlers run as uid {os.geteuid()}; see --child-user"
        why = self._users_why[profile.level]
        return f"unavailable: {why}" if why else f"{ON}: uid {user[0]}, gid {user[1]}"

    def _signals_part(self, profile: Profile) -> str:
        if profile.level == "none":
            return _off(profile)
        if not self._abi:
            return f"unavailable: {self._landlock_why}"
        if self._abi < landlock.SCOPES_SINCE:
            return f"unavailable: because {_older(self._abi, landlock.SCOPES_SINCE)}"
        return ON

    def _basic_part(self, profile: Profile) -> str:
        if profile.level == "none":
            return _off(profile)
        return ON if self._basic is not None else f"unavailable: because {self._basic_why}"

    def _strict_part(self, profile: Profile) -> str:
        if profile.level != "strict":
            return "off: see --sandbox strict"
        return ON if self._strict is not None else f"unavailable: because {self._strict_why}"

    def _files_part(self, profile: Profile) -> str:
        if profile.level != "strict":
            return "off: all that the user may; see --sandbox strict"
        if not self._abi:
            return f"unavailable: {self._landlock_why}"
        within = [path for path in self._hidden if any(readable.is_below(path, each) for each in self._readable)]
        but = "".join(f", but not {path}" for path in within if os.path.exists(path))
        lacks = "".join(f"; {what}: {_older(self._abi, since)}" for since, what in _OLD_FILES if self._abi < since)
        return f"{ON}: writes below the working directory alone, reads {' '.join(self._readable)}{but}{lacks}"

    def _network_part(self, profile: Profile) -> str:
        if profile.network:
            return "off: see network=False of @handler, and --sandbox strict"
        means = []
        if self._filter is not None:
            means.append("a filter of system calls")
        if self._namespace >= 0:
            means.append("an empty network namespace")
        if not means:
            return f"unavailable: because {self._filter_why}; and no network namespace {self._namespace_why}"
        without = f" (no network namespace {self._namespace_why})" if self._namespace < 0 else ""
        without += f" (no filter of system calls, because {self._filter_why})" if self._filter is None else ""
        if self._namespace < 0 and self._abi < landlock.SCOPES_SINCE:
            why = _older(self._abi, landlock.SCOPES_SINCE) if self._abi else self._landlock_why.removeprefix("because ")
            without += f" (abstract sockets of the Unix family are open: {why})"
        return f"{ON}: {' and '.join(means)}{without}"

    def _descriptors_part(self, profile: Profile) -> str:
        if profile.level == "strict":
            return f"{ON}: none of ours, and none that were open when the handlers had been imported"
        return f"{ON}: none of ours; those that the handlers' import has left open stay"

    def _file_size_part(self, _profile: Profile) -> str:
        limit = self._boot.workdir_limit_bytes
        return f"{ON}: {limit} bytes" if limit else "off: --workdir-limit is none"


_PARTS: Final[dict[str, Callable[[Confinement, Profile], str]]] = {
    "no-new-privileges": Confinement._common_part,
    "no-core": Confinement._common_part,
    "not-dumpable": Confinement._common_part,
    "umask": Confinement._umask_part,
    "file-size": Confinement._file_size_part,
    "descriptors": Confinement._descriptors_part,
    "capabilities": Confinement._capabilities_part,
    "user": Confinement._user_part,
    "signals": Confinement._signals_part,
    "limits": Confinement._basic_part,
    "tree": Confinement._basic_part,
    "ipc": Confinement._strict_part,
    "user-namespaces": Confinement._strict_part,
    "files": Confinement._files_part,
    "network": Confinement._network_part,
}


#: What handlers can or cannot do under strict where Landlock is older than this version.
_OLD_FILES: Final = (
    (2, "no file can be moved to another directory"),
    (3, "what this user may write to elsewhere can be truncated"),
)
#: The Linux release of each version of Landlock.
_LINUX: Final = {2: "5.19", 3: "6.2", landlock.SCOPES_SINCE: "6.12"}


def _older(abi: int, since: int) -> str:
    return f"Landlock is of version {abi} here, and {since} is needed (Linux {_LINUX[since]})"


def _off(profile: Profile) -> str:
    return f"off: --sandbox {profile.level}"


def _umask_of(level: str) -> int:
    return _STRICT_UMASK if level == "strict" else _BASIC_UMASK


def _scopes(profile: Profile) -> int:
    """A handler cannot signal its supervisor or other handlers. Without a network it reaches no abstract socket."""
    alone = profile.level == "strict" or not profile.network
    return landlock.SIGNALS | (landlock.ABSTRACT_SOCKETS if alone else 0)


def _harden() -> None:
    """Set what forks inherit. Runs in the zygote, or in a child if the zygote has handlers without a sandbox."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(os.umask(_BASIC_UMASK) | _BASIC_UMASK)
    kernel.forbid_dumping()
    kernel.forbid_new_privileges()


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive numbers: the first, and the one past the last."""
    first = past = -1
    for number in sorted(numbers):
        if number != past:
            if first >= 0:
                yield first, past
            first = number
        past = number + 1
    if first >= 0:
        yield first, past


def _ask_landlock() -> tuple[int, str]:
    """Return the version of Landlock, or 0 and why there is none."""
    if _in_a_fork(_touch_landlock) is not None:
        return 0, "because whoever asks for Landlock is killed: by SystemCallFilter= of systemd, or a seccomp profile"
    try:
        abi = landlock.abi()
        answer = _in_a_fork(lambda: _try_domain(abi))
        return (abi, "") if answer is None else (0, f"because Landlock is refused ({answer})")
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return 0, "because Landlock is switched off (it is missing in lsm= of the kernel's command line)"
        if error.errno == errno.ENOSYS:
            return 0, "because the kernel has no Landlock (Linux 5.13 or newer, CONFIG_SECURITY_LANDLOCK)"
        return 0, f"because Landlock is refused ({error.strerror}); a container's seccomp profile may do that"


def _touch_landlock() -> None:
    with contextlib.suppress(OSError):
        landlock.abi()


def _try_domain(abi: int) -> None:
    kernel.forbid_new_privileges()
    landlock.restrict(landlock.create(abi, files=True, tcp=False, scoped=landlock.SIGNALS))


def _make_filter(make: Callable[[], seccomp.SyscallFilter], wanted: bool) -> tuple[seccomp.SyscallFilter | None, str]:
    """Return the filter. Without one, the reason; both empty: it is not wanted."""
    if not wanted:
        return None, ""
    why = _in_a_fork(lambda: _try_filter(make))
    return (make(), "") if why is None else (None, why)


def _try_filter(make: Callable[[], seccomp.SyscallFilter]) -> str | None:
    if why := seccomp.why_not():
        return why
    kernel.forbid_new_privileges()
    try:
        make().install()
    except OSError as error:
        return f"the kernel refuses it ({error.strerror})"
    return None


def _foreign_descriptors() -> dict[int, str]:
    """Return the descriptors that preloaded code left open, and what they lead to."""
    found = preloaded.open_descriptors()
    ours = {0, 1, 2, STACKS_FD, CONTROL_FD}
    return {fd: link for fd, link in found.items() if fd not in ours and link not in preloaded.HARMLESS}


def _keep_temporary_files_in(workdir: str) -> None:
    os.environ["TMPDIR"] = workdir
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = workdir


def _first_barred(user: tuple[int, int], paths: list[str]) -> str | None:
    """Return in words the first directory that the user may not enter. Becomes that user."""
    privileges.become(*user)
    for path in paths:
        way = [str(each) for each in (*reversed(Path(path).parents), path)]
        barred = next((directory for directory in way if not os.access(directory, os.X_OK)), None)
        if barred is not None:
            return f"uid {user[0]} may not enter {barred} (on the way to {path}): let it, or choose a --child-user"
    return None


def _in_a_fork(run: Callable[[], str | None], untried: str | None = None) -> str | None:
    """Try irreversible steps in a fork. Returns the words that `run` returns or raises; None: success.

    `untried`: the result if no process can be forked now.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            pid = os.fork()
        except OSError:  # EAGAIN, ENOMEM: children try again once there is room
            return untried
        if pid == 0:
            answer: str | None = _DIED
            try:
                kernel.set_parent_death_signal(signal.SIGKILL)
                answer = run()
            except OSError as error:
                answer = error.strerror
            finally:
                theirs.send((answer or _WELL).encode())
                os._exit(0)
        theirs.close()
        said = ours.recv(_MOST_WORDS_BYTES).decode() or _DIED
        os.waitpid(pid, 0)
    return None if said == _WELL else said
