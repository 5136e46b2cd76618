"""A container whose PID 1 is systemd, with deploy/leasehold.service installed as its first lines say."""

import re
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from supervised import HERE, Pool, Stage

from tests.image.building import ROOT
from tests.image.containers import REDIS, STAGE, Engine, bind, mount

SERVICE = "leasehold.service"
UNIT = ROOT / "deploy" / SERVICE
CHANGES = f"/run/systemd/system/{SERVICE}.d"

#: Names of capabilities in the order of the kernel's numbers (capability.h).
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)


def ours() -> list[str]:
    """The capabilities that this process has itself, and so may give."""
    lines = Path("/proc/self/status").read_text().splitlines()
    bits = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return [f"CAP_{name}" for number, name in enumerate(CAPABILITIES) if bits >> number & 1]


class Machine(Pool):
    """A machine with systemd, and as a pool what the unit's journal says: each start of its supervisor."""

    def __init__(self, stage: Stage, engine: Engine, directory: Path, **settings: str) -> None:
        self.engine = engine
        self.application = directory
        self._install(stage, {"processes": "2", "log_level": "debug", **settings})
        command, self.name = engine.create(self._specification(stage))
        self.machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._wait_until_up()
        follow = f"journalctl --follow --lines=all --output=cat --unit={SERVICE} >&2"
        super().__init__(stage, engine.command("exec", self.name, "sh", "-c", follow), {}, directory, is_present=False)

    # making it

    def _install(self, stage: Stage, settings: dict[str, str]) -> None:
        """The application, its user, and the variables of its supervisor."""
        self.release("one")
        (self.application / "app/venv").symlink_to("/opt/leasehold")
        for name, line in (("passwd", "app:x:5000:5000::/srv/app:/bin/sh"), ("group", "app:x:5000:")):
            (self.application / name).write_text((self.engine.built.files / "etc" / name).read_text() + line + "\n")
        variables = {
            "LEASEHOLD_REDIS_URL": f"unix://{REDIS}", "LEASEHOLD_NAMESPACE": stage.namespace,
            "LEASEHOLD_HANDLERS": "menu", "MENU_MARK": stage.mark,
            "MENU_LEDGER": f"{STAGE}/{stage.ledger.path.name}", "MENU_GATES": f"{STAGE}/gates",
            **{f"LEASEHOLD_{name.upper()}": value for name, value in settings.items()},
        }  # fmt: skip
        self.environment = self.application / "leasehold.env"
        self.environment.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        self.environment.chmod(0o600)
        (self.application / "machine-id").write_text(f"{uuid.uuid4().hex}\n")

    def release(self, name: str, **modules: str) -> None:
        """Put a release of the handlers there, with these modules beside the menu, and have `current` lead to it."""
        release = self.application / "app/releases" / name
        shutil.copytree(HERE / "menu", release / "menu")
        for module, text in modules.items():
            (release / f"menu/{module}.py").write_text(text)
        (self.application / "next").symlink_to(f"releases/{name}")
        (self.application / "next").rename(self.application / "app/current")

    def _specification(self, stage: Stage) -> dict[str, Any]:
        specification = self.engine.specification(["/sbin/init"], {"container": "runc"})
        specification["process"] |= {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "noNewPrivileges": False,
            "capabilities": {kind: ours() for kind in ("bounding", "effective", "permitted", "inheritable")},
        }  # fmt: skip
        groups = next(each for each in specification["mounts"] if each["destination"] == "/sys/fs/cgroup")
        groups["options"].remove("ro")
        specification["linux"]["namespaces"].append({"type": "cgroup"})
        specification["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        specification["mounts"] += [
            mount("/run", "tmpfs", "mode=755"), *(mount(f"/var/{each}", "tmpfs") for each in ("log", "lib/systemd")),
            mount("/var/tmp", "tmpfs", "mode=1777"), bind(UNIT, f"/etc/systemd/system/{SERVICE}"),
            *(bind(self.application / name, f"/etc/{name}") for name in ("passwd", "group", "machine-id")),
            bind(self.environment, "/etc/leasehold.env"), bind(self.application / "app", "/srv/app"),
            bind(stage.directory, STAGE), bind(stage.server.socket, REDIS),
        ]  # fmt: skip
        return specification

    def _wait_until_up(self) -> None:
        deadline_at = time.monotonic() + 60
        while (state := self.tell("systemctl", "is-system-running").stdout.strip()) not in ("running", "degraded"):
            assert self.machine.poll() is None and time.monotonic() < deadline_at, f"systemd is {state}"
            time.sleep(0.05)  # it says so to nobody outside

    # telling it

    def tell(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.engine.tell("exec", self.name, *words)

    def systemctl(self, *words: str) -> None:
        done = self.tell("systemctl", *words, SERVICE)
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.stage.last_words()}"

    def change(self, **options: str) -> None:
        """Give options of the unit's service another value, as `systemctl edit` does."""
        lines = [f"{name}={value}" for name, value in options.items()]
        if "ExecStart" in options:
            lines.insert(0, "ExecStart=")  # else it would be one more
        text = shlex.quote("\n".join(["[Service]", *lines]))
        assert self.tell("sh", "-c", f"mkdir -p {CHANGES} && echo {text} > {CHANGES}/test.conf").returncode == 0
        assert self.tell("systemctl", "daemon-reload").returncode == 0

    def shown(self, name: str) -> str:
        """A property of the unit."""
        return self.tell("systemctl", "show", "--value", f"--property={name}", SERVICE).stdout.strip()

    def wait_until_shown(self, name: str, value: str) -> None:
        self.stage.wait_until_counted(lambda: self.shown(name) == value, 30)

    def ends(self) -> list[str]:
        """Return each end of the service's main process in systemd's words, such as `status=71`."""
        return [
            found[1] for line in list(self.said) if (found := re.search(r"Main process exited.* (status=\d+)", line))
        ]

    def groups(self) -> list[Path]:
        """The unit's control groups."""
        return [group for each in self.engine.groups(self.name) for group in each.glob(f"system.slice/{SERVICE}")]

    # ending it

    def power_off(self) -> None:
        """Have systemd stop all, as the host's shutdown does, and wait until the machine is off."""
        assert self.engine.tell("kill", self.name, str(signal.SIGRTMIN + 3)).returncode == 0
        self.machine.wait(60)
        self.wait()

    def close(self) -> None:
        if self.machine.poll() is None:
            self.engine.tell("delete", "--force", self.name)
        self.machine.wait()
        super().close()
