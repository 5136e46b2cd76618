"""Containers by runc, of the image's files and config, as a container engine makes them. Supervisors of a Stage."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from supervised import HERE, Pool, Stage

from tests.image.building import Built

MB = 2**20
CGROUPS = Path("/sys/fs/cgroup")
#: Paths of the stage's directory and the server's socket inside of a container.
STAGE = "/stage"
REDIS = "/run/redis.sock"

_numbers = itertools.count(1)


class Engine:
    """Runs containers, and knows what each one must not leave: its process, mounts, cgroups and files."""

    def __init__(self, built: Built, directory: Path) -> None:
        self.built = built
        self.directory = directory
        self.names: list[str] = []

    def create(self, specification: dict[str, Any]) -> tuple[list[str], str]:
        """The command that runs a container of this specification, and the container's name."""
        name = f"leasehold-test-{os.getpid()}-{next(_numbers)}"
        self.names.append(name)
        specification["linux"]["cgroupsPath"] = f"/{name}"
        bundle = self.directory / name
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(specification))
        return self.command("run", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), name), name

    def specification(self, words: Iterable[str], environment: dict[str, str]) -> dict[str, Any]:
        """Return runc's specification of a container of the image.

        User, directory and variables are the image's. The container has no capabilities, a read-only root and a /tmp of
        its own.
        """
        subprocess.run(self.command("spec"), cwd=self.directory, check=True)
        specification: dict[str, Any] = json.loads((self.directory / "config.json").read_text())
        (self.directory / "config.json").unlink()
        config = self.built.config
        uid, gid = map(int, config["User"].split(":"))
        variables = [*config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        specification["process"] |= {
            "terminal": False, "user": {"uid": uid, "gid": gid}, "args": list(words), "env": variables,
            "cwd": config["WorkingDir"], "capabilities": {}, "noNewPrivileges": True,
        }  # fmt: skip
        specification["root"] = {"path": str(self.built.files), "readonly": True}
        specification["mounts"].append(mount("/tmp", "tmpfs", "mode=1777"))
        specification["linux"]["resources"] = {}
        return specification

    def tell(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=60, check=False)

    def command(self, *words: str) -> list[str]:
        return ["runc", "--root", str(self.directory / "state"), *words]

    def pid(self, name: str) -> int:
        """The container's first process, as seen from here."""
        return int((self.directory / name / "pid").read_text())

    def assert_nothing_left(self) -> None:
        """Assert that no container, process, mount or cgroup is left."""
        assert self.tell("list", "--quiet").stdout.split() == []
        assert [group for name in self.names for group in self.groups(name)] == []
        mounted = Path("/proc/self/mountinfo").read_text()
        assert str(self.directory) not in mounted and str(self.built.files) not in mounted

    def groups(self, name: str) -> list[Path]:
        return [group for group in (*CGROUPS.glob(f"*/{name}"), CGROUPS / name) if group.exists()]

    def close(self) -> None:
        """End all, by all means, and remove what is left of them."""
        for name in self.names:
            self.tell("delete", "--force", name)
            for group in self.groups(name):
                for below in sorted(group.rglob("**/"), reverse=True):
                    with contextlib.suppress(OSError):
                        below.rmdir()
        shutil.rmtree(self.directory)


class Container(Pool):
    """A supervisor that is PID 1 of a container. Signals to it go by way of `runc run`, but for KILL."""

    def __init__(self, stage: Stage, engine: Engine, specification: dict[str, Any]) -> None:
        self.engine = engine
        command, self.name = engine.create(specification)
        super().__init__(stage, command, dict(os.environ), engine.directory, is_present=False)

    @property
    def first_pid(self) -> int:
        return self.engine.pid(self.name)

    def execute(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the container, as `docker exec` does."""
        return self.engine.tell("exec", self.name, *words)

    def kill(self) -> int:
        """Kill the container, as `docker kill` or the loss of a host does. Return the exit code."""
        assert self.engine.tell("kill", self.name, "KILL").returncode == 0
        return self.wait()

    def stop(self, grace_s: float) -> int:
        """Send the image's signal, then KILL after `grace_s`, as `docker stop --time` does. Return the exit code."""
        self.send(getattr(signal, self.engine.built.config["StopSignal"]))
        try:
            return self.wait(grace_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kills_by_the_kernel(self) -> int:
        """Return how many processes of the container the kernel has killed because memory had run out."""
        files = [CGROUPS / "memory" / self.name / "memory.oom_control", CGROUPS / self.name / "memory.events"]
        lines = next(file for file in files if file.exists()).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def close(self) -> None:
        if self.process.poll() is None:
            self.engine.tell("delete", "--force", self.name)
        super().close()


class Containers:
    """Starts containers on a stage."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        self.stage = stage
        self.engine = engine
        stage.directory.chmod(0o755)
        stage.ledger.path.chmod(0o666)
        stage.server.socket.chmod(0o777)  # its directory is closed; the user of the image comes by another way

    def start(self, *, memory_mb: int = 0, pids: int = 0, tmp: bool = True, **flags: Any) -> Container:
        """`leasehold run` with the menu of handlers, with limits for the whole container."""
        stage = self.stage
        environment = {
            "LEASEHOLD_REDIS_URL": f"unix://{REDIS}", "LEASEHOLD_NAMESPACE": stage.namespace, "MENU_MARK": stage.mark,
            "MENU_LEDGER": f"{STAGE}/{stage.ledger.path.name}", "MENU_GATES": f"{STAGE}/gates",
        }  # fmt: skip
        words = [*self.engine.built.config["Entrypoint"], *stage.arguments(flags)]
        specification = self.engine.specification(words, environment)
        specification["mounts"] += [
            bind(HERE / "menu", "/app/menu"), bind(stage.directory, STAGE), bind(stage.server.socket, REDIS),
        ]  # fmt: skip
        if not tmp:
            specification["mounts"] = [each for each in specification["mounts"] if each["destination"] != "/tmp"]
        if memory_mb:
            specification["linux"]["resources"]["memory"] = {"limit": memory_mb * MB}
        if pids:
            specification["linux"]["resources"]["pids"] = {"limit": pids}
        container = Container(stage, self.engine, specification)
        container.doors = 1
        stage.add(container)
        return container

    def finish(self, *containers: Container) -> None:
        """Drain them, and nothing is left of any."""
        assert [container.drain() for container in containers] == [0] * len(containers)
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        self.stage.assert_nothing_left()
        self.engine.assert_nothing_left()


def mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def bind(source: Path, destination: str) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["bind", "rw"]}


@contextlib.contextmanager
def engine(built: Built, directory: Path) -> Iterator[Engine]:
    """A container engine of which nothing is left afterwards, also if the test fails."""
    directory.mkdir()
    engine = Engine(built, directory)
    try:
        yield engine
    finally:
        engine.close()
    engine.assert_nothing_left()
