"""Builds deploy/Dockerfile without a container engine, and starts it: this machine in place of its base image.

Each stage is an overlay of its own over the machine's root, which nothing changes: RUN happens in a chroot of it. A
container is one more such view, read-only, with namespaces of its own, as an unprivileged user without capabilities.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.deploy.dockerfile import Instruction, Stage, context

#: The base image has Python in its PATH. This machine may have Python elsewhere.
PYTHON = Path(sys.base_prefix, "bin")
BASE_PATH = f"{PYTHON}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables by which this machine reaches the package index.
FROM_THE_MACHINE = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
PROGRAMS = ("unshare", "mount", "chroot", "setpriv", "nsenter", "env", "ip")

VIEW = """
set -eu
mount -t overlay overlay -o lowerdir=/,upperdir={upper},workdir={work} {view}
mount --rbind /dev {view}/dev
mount -t proc proc {view}/proc
"""
CONTAINER = """
mount -t tmpfs -o mode=1777 tmpfs {view}/tmp
mount --bind {socket} {view}/run/redis.sock
mount -o remount,ro {view}
ip link set lo up
"""


@dataclass
class Image:
    """The result of the stages so far, in a directory."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    uppers: dict[str, Path] = field(default_factory=dict)

    def build(self, root: Path, stages: Sequence[Stage]) -> "Image":
        """Build all stages, each from the base. The settings of the last one hold for the container."""
        for number, stage in enumerate(stages):
            self.uppers[stage.name or "final"] = self.upper = self.directory / f"stage-{number}"
            (self.directory / f"work-{number}").mkdir()
            (self.directory / f"view-{number}").mkdir()
            self.upper.mkdir(mode=0o755)
            self.environment, self.workdir, self.user, arguments = {"PATH": BASE_PATH}, "/", "0:0", {}
            self._stand_in(PYTHON)
            for each in stage.instructions:
                match each.word:
                    case "ARG":
                        arguments |= each.pairs()
                    case "ENV":
                        self.environment |= {k: v.replace("$PATH", BASE_PATH) for k, v in each.pairs().items()}
                    case "WORKDIR":
                        self.workdir = each.text
                        self._inside(each.text).mkdir(parents=True, exist_ok=True)
                    case "USER":
                        self.user = each.text
                    case "COPY":
                        self._copy(root, each)
                    case "RUN":
                        self._run(each.text, arguments)
        return self

    def container(self, words: Sequence[str], socket: Path, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        """`words` as PID 1 of a container of the image that reaches the Redis at /run/redis.sock."""
        (self.upper / "run").mkdir(exist_ok=True)
        (self.upper / "run/redis.sock").touch()
        number = self._number()
        script = VIEW.format(**self._places(number)) + CONTAINER.format(**self._places(number), socket=socket)
        script += f"exec chroot {self.directory}/view-{number} {shlex.join(self._as_the_user(words, environment))}"
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child=SIGKILL", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={"PATH": BASE_PATH},
        )  # fmt: skip

    def enter(
        self, pid: int, words: Sequence[str], environment: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as `docker exec` does, in the container whose PID 1 is `pid` out here."""
        inside = ["nsenter", "--target", str(pid), "--mount", "--pid", "--net", "--root", "--wd"]
        command = [*inside, *self._as_the_user(words, environment)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def _as_the_user(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return a command as the image's user, without capabilities, as deploy/compose.yaml runs it."""
        uid, gid = self.user.split(":")
        rights = ["--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        variables = [f"{name}={value}" for name, value in {**self.environment, **environment}.items()]
        return [
            *("setpriv", f"--reuid={uid}", f"--regid={gid}", *rights),
            *("env", "-i", "-C", self.workdir, *variables, *words),
        ]

    def _run(self, command: str, arguments: Mapping[str, str]) -> None:
        number = self._number()
        script = VIEW.format(**self._places(number))
        inside = shlex.quote(f"cd {self.workdir} && {command}")
        script += f"exec chroot --userspec={self.user} {self.directory}/view-{number} sh -c {inside}"
        environment = {**FROM_THE_MACHINE, "HOME": "/root", **self.environment, **arguments}
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "sh", "-c", script],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"RUN {command}\n{done.stdout}{done.stderr}"

    def _copy(self, root: Path, each: Instruction) -> None:
        *sources, target = each.text.split()
        goal = self._inside(target) if target.startswith("/") else self._inside(self.workdir) / target
        if "from" in each.flags:
            (source,) = sources
            shutil.copytree(Path(f"{self.uppers[each.flags['from']]}{source}"), goal, symlinks=True)
            return
        for source in map(Path, sources):
            found = [file for file in context(root) if file == source or source in file.parents]
            assert found, f"COPY {source}: .dockerignore leaves nothing of it"
            for file in found:
                place = goal / file.relative_to(source) if file != source else goal / file.name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / file, place)

    def _stand_in(self, path: Path) -> None:
        """The base image's Python may be run by everybody, as `python`; this machine's may lie in somebody's home."""
        for above in reversed([path, *path.parents[:-1]]):
            inside = self._inside(str(above))
            inside.mkdir(exist_ok=True)
            inside.chmod(0o755)
        if not (path / "python").exists():  # Debian's own
            self._inside("/usr/local/bin").mkdir(parents=True, exist_ok=True)
            (self._inside("/usr/local/bin") / "python").symlink_to(path / "python3")

    def _inside(self, path: str) -> Path:
        return Path(f"{self.upper}{path}")

    def _number(self) -> int:
        return len(self.uppers) - 1

    def _places(self, number: int) -> dict[str, Path]:
        return {part: self.directory / f"{name}-{number}" for part, name in _PLACES.items()}


_PLACES = {"upper": "stage", "work": "work", "view": "view"}


def skip_where_it_cannot_be(directory: Path) -> None:
    """An overlay over / in a mount namespace, with its changes in `directory`: root may make one, in most places."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"this machine has no {', '.join(missing)}")
    places = {part: directory / f"tried-{part}" for part in ("upper", "work", "view")}
    for place in places.values():
        place.mkdir()
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--fork", "sh", "-c", VIEW.format(**places)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"this machine gives no overlay of its root: {tried.stderr.strip()}")
