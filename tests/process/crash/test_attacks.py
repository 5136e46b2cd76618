"""Attacks from inside a handler on real pools: each is refused from some level of the sandbox on.

Each level and user has one pool, in which a neighbour works on unharmed. The table also has the attacks that succeed,
which deploy/docs/sandbox.md names.
"""

import ctypes
import os
import re
import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import nobody
import psutil
import pytest
from supervised import ROOT, await_ends

_SYS_NICE, _SYS_RESOURCE = 23, 24
LEVELS = ("none", "basic", "strict")
#: Less than a second on an idle machine.
SOON_S = 5.0
#: Upper bound for the master, whatever it is sent.
MASTER_BYTES = 128 << 20
WORKDIR_LIMIT = "8M"  # more than a deep tree has


@dataclass(frozen=True)
class Attack:
    """`refused`: from this level on; None: it succeeds at every level. `by_root`: where it is not refused, it succeeds
    only for root with all capabilities.
    """

    name: str
    refused: str | None
    by_root: bool = False

    def is_refused(self, level):
        return self.refused is not None and LEVELS.index(level) >= LEVELS.index(self.refused)


ATTACKS = [
    # the credentials
    Attack("own_environment", "none"),
    Attack("own_memory", "none"),
    Attack("environment_of_the_master", "none"),  # its title overwrites it
    Attack("command_lines", "none"),
    Attack("memory_files", "basic"),
    Attack("process_vm_readv", "basic"),
    Attack("ptrace", "basic"),
    Attack("own_descriptors", "none"),
    Attack("descriptors_of_others", "basic"),
    Attack("connection_of_the_master", "basic"),
    Attack("password_of_the_embedded_server", "strict"),
    # files
    Attack("write_outside", "strict"),
    Attack("read_outside", "strict"),
    Attack("directory_of_a_sibling", "strict"),
    Attack("one_large_file", "basic"),
    # processes
    Attack("signals", "basic"),
    Attack("leave_as_a_sibling", "basic"),
    Attack("leave_as_an_orphan", "basic"),
    Attack("shared_memory", "strict"),
    Attack("queues_and_semaphores", "strict"),
    Attack("user_namespace", "strict"),
    Attack("raise_limits", "basic", by_root=True),
    Attack("limits_of_others", "basic"),
    Attack("privileges", "basic", by_root=True),
    Attack("privileges_of_programs", "basic"),
    # the network
    Attack("network", "strict"),
    Attack("network_of_a_program", "strict"),
    # the sockets of a child
    Attack("sockets_of_a_sibling", "basic"),
    Attack("descriptors_where_jobs_come", "none"),
]
#: Attacks whose child is killed at every level, because it sends what it cannot know.
FORGERIES = [
    "outcomes_of_others", "ready_again", "flood", "nonsense", "descriptors_for_the_master", "a_close_that_waits",
    "closes_that_wait", "a_head_of_nothing_but_objects", "a_completion_of_holes",
]  # fmt: skip


class World:
    """The targets of attacks beside the pool: a treasure, secrets, listeners."""

    def __init__(self, stage, user, elsewhere):
        self.stage, self.user = stage, user
        self.elsewhere = elsewhere  # outside of the working directory, which is readable for its modules
        self.secret = f"sesame-{secrets.token_hex(16)}"
        self.embedded = stage.directory / ".leasehold" / "password"
        self.setuid = stage.directory / "cat"
        self.abstract = f"leasehold-{secrets.token_hex(8)}"
        self.accepted = []
        self._listeners = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._listeners[0].getsockname()[1]
        self._listeners.append(socket.socket(socket.AF_UNIX))
        self._listeners[1].bind(f"\0{self.abstract}")
        self._listeners[1].listen()
        (self.elsewhere / "treasure").write_text("gold")
        self.embedded.parent.mkdir()
        self.embedded.write_text(self.secret)
        shutil.copy("/bin/cat", self.setuid)
        redis = stage.server.redis
        redis.acl_setuser(
            "attacked", enabled=True, passwords=[f"+{self.secret}"], keys=["*"], channels=["*"], categories=["+@all"]
        )
        self.prefix = []
        if user == "nobody":
            socket_path = Path(stage.server.socket)
            socket_path.parent.chmod(0o711)
            socket_path.chmod(0o777)
            for given in (stage.directory, elsewhere):
                nobody.give(given)
            self.prefix = nobody.prefix((ROOT, stage.directory, elsewhere, socket_path.parent))
            os.chown(self.setuid, 0, 0)
        self.setuid.chmod(0o4755)

    @property
    def is_almighty(self):
        """True if the pool starts with all capabilities that count here."""
        held = int(re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
        return self.user == "the same" and all(held >> each & 1 for each in (_SYS_NICE, _SYS_RESOURCE))

    def start(self, level, **flags):
        """Limit its children to 1,024 open files, below its own limit."""
        url = self.stage.server.url_with("attacked", self.secret)
        return self.stage.start(
            environment={"LEASEHOLD_REDIS_URL": url, "OTHER": url}, handlers="attacks", sandbox=level,
            prefix=["prlimit", "--nofile=1024:4096", *self.prefix], **flags,
        ).wait_ready()  # fmt: skip

    def neighbour(self, pool, gate):
        """Put a harmless job. Returns its jid, and its child's number and pid."""
        jid = self.stage.queue.put("neighbour", str(self.stage.directory / "gates" / gate))
        child = pool.wait_for("job.started", jid=jid)["child"]
        return jid, child, pool.wait_for("child.spawned", child=child)["pid"]  # may be logged after the start

    def knowledge(self, pool, number, sibling):
        """Return what an attacker knows."""
        return {
            "master": pool.pid, "zygote": pool.zygote_pid, "sibling": sibling, "sibling_number": number,
            "elsewhere": str(self.elsewhere), "embedded": str(self.embedded), "tcp": self.port,
            "abstract": self.abstract, "setuid": str(self.setuid),
        }  # fmt: skip

    def attack(self, names, knows, **data):
        """Run the attacks one after another. Returns the jobs by the attack's name."""
        options = {"retries": 0, "max_deaths": 1}
        jids = {
            name: self.stage.queue.put("attacked", {"attack": name, "knows": knows, **data}, **options)
            for name in names
        }
        self.stage.wait_until_ended(jids.values(), 60.0)
        return {name: self.stage.client.job(jid) for name, jid in jids.items()}

    def put_quick(self, pool):
        """Start a job that needs a fork and a descriptor. Returns how long the start took."""
        put_at = time.monotonic()
        jid = self.stage.queue.put("quick", "x" * 100_000)
        self.stage.wait_until_ended([jid])
        assert self.stage.client.job(jid).result == 100_000
        return time.monotonic() - put_at

    def close(self):
        self.stage.server.redis.acl_deluser("attacked")
        for listener in self._listeners:
            listener.close()


@pytest.fixture(params=["the same", "nobody"])
def world(request, stage, tmp_path_factory):
    if request.param == "nobody" and os.geteuid() != 0:
        pytest.skip("only root can start a pool as somebody else")
    world = World(stage, request.param, tmp_path_factory.mktemp("elsewhere"))
    yield world
    world.close()


def _deviations(tried, level, is_almighty):
    """Return the attacks that did not go as the table says."""
    for attack in ATTACKS:
        job = tried[attack.name]
        if job.state != "complete":
            yield f"{attack.name} did not come to its end: {job.failure}"
        elif attack.is_refused(level) and job.result:
            yield f"{attack.name} has got through: {job.result}"
        elif not attack.is_refused(level) and not job.result and (is_almighty or not attack.by_root):
            yield f"{attack.name} fails without the sandbox, and shows nothing"


def _most_bytes(pid):
    return int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) << 10


def _ids_of(job, kind):
    return [said.split()[1] for said in job.result if said.startswith(kind)]


def _segments():
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def _remove_ownerless_objects(job):
    libc = ctypes.CDLL(None, use_errno=True)
    for each in _ids_of(job, "msg"):
        assert libc.msgctl(int(each), 0, None) == 0
    for each in _ids_of(job, "sem"):
        assert libc.semctl(int(each), 0, 0) == 0
    for each in _ids_of(job, "mq"):
        assert libc.mq_unlink(each.encode()) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_attack_is_refused_from_its_level_on(world, level):
    stage = world.stage
    limit = "none" if level == "none" else WORKDIR_LIMIT
    pool = world.start(level, processes=3, workdir_limit=limit)
    gate = stage.gate("gate")
    jid, number, sibling = world.neighbour(pool, gate)
    knows = world.knowledge(pool, number, sibling)
    tried = world.attack([attack.name for attack in ATTACKS], knows)
    assert list(_deviations(tried, level, world.is_almighty)) == []

    # A process that has left its tree ends, and unused memory is freed.
    for name in ("leave_as_a_sibling", "leave_as_an_orphan"):
        assert await_ends([int(pid) for pid in tried[name].result], 10.0) == [], name
    stage.assert_no_zombies()
    stage.wait_until(lambda: not _segments() & set(tried["shared_memory"].result), "the end of its shared memory")
    _remove_ownerless_objects(tried["queues_and_semaphores"])

    # While one job has used up its user's descriptors in flight, others start.
    held = stage.gate("held")
    greedy = {"attack": "descriptors_in_flight", "knows": None, "gate": str(stage.directory / "gates" / held)}
    greedy_jid = stage.queue.put("attacked", greedy)
    pool.wait_for("job.printed", jid=greedy_jid, line="used up")
    assert world.put_quick(pool) < SOON_S
    stage.open_gate(held)
    stage.wait_until_ended([greedy_jid])

    # Messages in the name of others end their sender at every level.
    for name, job in world.attack(FORGERIES, knows).items():
        assert "it spoke nonsense on its socket" in job.failure["message"], name
    assert world.put_quick(pool) < SOON_S
    assert _most_bytes(pool.pid) < MASTER_BYTES

    # A job that fills the disk with many files is soon killed.
    filled = world.attack(["many_files"], knows, stay=level != "none")["many_files"]
    assert filled.result == ["filled"] if level == "none" else filled.failure["reason"] == "disk"

    # Strays end with their job, awkward directories are cleaned, and no link is followed.
    left = world.attack(["own_directory_is_hard_to_clean", "own_directory_becomes_a_link", "stay_behind"], knows)
    assert {job.state for job in left.values()} == {"complete"}, [job.failure for job in left.values()]
    assert await_ends([int(left["stay_behind"].result[0])], 0.0) == []
    assert (world.elsewhere / "treasure").read_text() == "gold"

    world.attack(["signal_by_a_pipe", *(["deadly_signals"] if level != "none" else [])], knows)
    stage.open_gate(gate)
    stage.wait_until_ended([jid])
    job = stage.client.job(jid)
    assert job.result[:2] == ["mine", ["mine"]]
    assert bool(job.result[2]) == (level == "none")
    assert (job.deaths, job.interruptions) == (0, 0)
    assert pool.drain() == 0
    assert world.secret not in str(pool.events) + str(pool.said)
    stage.assert_nothing_left()


@pytest.mark.parametrize("level", ["none", "basic"])
def test_handler_that_kills_everything_in_reach_harms_no_other_job(stage, as_pid_1, level):
    """Runs in a PID namespace of its own: without a sandbox it would end the machine."""
    pool = stage.start(prefix=as_pid_1, handlers="attacks", sandbox=level, processes=2).wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("neighbour", str(stage.directory / "gates" / gate))
    pool.wait_for("job.started", jid=jid)
    attack = stage.queue.put("attacked", {"attack": "everybody", "knows": {}}, retries=0, max_deaths=1)
    if level == "none":
        pool.wait_for("zygote.lost")
    else:
        stage.wait_until_ended([attack])
    stage.open_gate(gate)
    stage.wait_until_ended([jid, attack])
    assert stage.client.job(jid).result[:2] == ["mine", ["mine"]]
    assert stage.client.job(jid).interruptions == (1 if level == "none" else 0)
    (first,) = psutil.Process(pool.pid).children()
    first.terminate()
    assert pool.wait() == 0


def test_busy_child_that_shuts_the_socket_of_its_jobs_holds_up_no_other(stage):
    """Jobs are sent ahead to a child that is reused."""
    pool = stage.start(handlers="attacks", processes=1, jobs_per_child=0, dispatch_ahead="20s").wait_ready()
    stage.wait_until_ended([stage.queue.put("deaf") for _ in range(10)])
    shutting, *others = stage.queue.put_many(
        [{"klass": "deaf", "data": "shut it", "max_deaths": 1}, *({"klass": "deaf"} for _ in range(500))]
    )
    stage.wait_until_ended([shutting, *others])
    assert stage.client.job(shutting).state == "failed"
    assert set(stage.states(others)) == {"complete"}
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("level", LEVELS)
def test_thief_gets_jobs_only_where_klasses_share_a_child(stage, level):
    """Jobs are sent ahead to a child that is reused."""
    pool = stage.start(handlers="attacks", sandbox=level, processes=1, jobs_per_child=0).wait_ready()

    def steal():
        warm = [stage.queue.put(klass, None) for klass in ["victim", "thief"] * 5]
        stage.wait_until_ended(warm)
        stage.queue.pause()
        quick = [stage.queue.put("thief", None) for _ in range(100)]
        stage.queue.put("thief", "now")
        victims = [stage.queue.put("victim", number) for number in range(30)]
        stage.queue.unpause()
        stage.wait_until_ended([*quick, *victims])
        return sum(str(stage.client.job(jid).result).startswith("stolen") for jid in victims)

    stolen = [steal() for _ in range(3)]
    assert any(stolen) == (level != "strict"), stolen
    assert pool.drain() == 0
    stage.assert_nothing_left()
