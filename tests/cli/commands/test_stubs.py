"""`leasehold handlers` and `leasehold stubs` describe handlers without running them in the command."""

import json
import os
import subprocess
import sys

import pytest

from supervisor import Client
from tests.docs.pages import ROOT
from tests.lengths import PATIENCE
from tests.type_checks import mypy

MAIL = '''
import dataclasses
import enum
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import pydantic

from supervisor import JobContext, handler

print("this is no answer")


class Colour(enum.Enum):
    RED = "red"


class Node(pydantic.BaseModel):
    name: str
    below: "list[Node]" = []


@dataclasses.dataclass
class Item:
    name: str
    price: Decimal = Decimal(0)


@handler(queue="mail", tags=["new"], timeout="30s", expires="1h")
def welcome(job: JobContext, user: int, template: str = "plain", seen: datetime | None = None) -> Item:
    """Greet a \\"new\\" user."""


@handler
def order(job, items: list[Item], tree: Node, colour: Colour, id: UUID, pair: tuple[int, str], *, to="x", **rest): ...


@handler(name="it's odd/1")
def plain(job): ...


@handler(name="class")
def lists(job, names: list[str] = []): ...
'''
#: Optional models, and names that the generated module uses itself.
HARD = """
import enum
import math
from datetime import datetime
from typing import Annotated, Any, Literal, Optional

import pydantic
from typing_extensions import TypeAliasType

from supervisor import handler

Tree = TypeAliasType("Tree", "list[Tree] | int")


class Addr(pydantic.BaseModel):
    city: str
    back: "Optional[Addr]" = None


class Any_(pydantic.BaseModel):
    x: int


class Half(enum.Enum):
    LOW = 0.5


class largest(pydantic.BaseModel):
    y: int


@handler(name="list")
def lists(context, to: Addr | None = None, among: dict[str, Addr | None] = {}, *, job: list[int] = [1]): ...


@handler(name="cast")
def cast(job, list: list[str], cast: int = 1, Any: Any = None, others: str = "x", **rest: int): ...


@handler(name="Any")
def anything(job, x: Any_, handler: float = 1, elsewhere: str = "", _default: int | str = "x"): ...


@handler(name="largest")
def most(
    job, size: largest, most: float = math.inf, least: float = -0.5, large: int = 2**70, half: Half = Half.LOW,
    when: datetime = None, mode: Literal["a", "b"] = "a", tree: Tree = 1, on: int = True,
): ...


@handler(name="int")
def rest(job, **others: datetime): ...


@handler(name="1²")
def digits(job, schema: Annotated[int, pydantic.WithJsonSchema({"type": "array", "items": True})] = 1): ...
"""


@pytest.fixture
def leasehold(tmp_path):
    """Runs a command beside a package of handlers."""
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers/mail.py").write_text(MAIL)

    def run(*words, module="supervisor", **environment):
        return subprocess.run(
            [sys.executable, "-m", module, *words], cwd=tmp_path, capture_output=True, text=True,
            timeout=60 * PATIENCE, env={**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT), **environment},
        )  # fmt: skip

    return run


def test_handlers_are_listed_with_parameters_and_declarations(leasehold):
    done = leasehold("handlers")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("mail.welcome"))
    for word in ("user, template?, seen?", "queue=mail", "timeout_s=30.0", 'Greet a "new" user.'):
        assert word in row
    assert "this is no answer" not in done.stdout


def test_json_has_a_schema_for_each_handler(leasehold):
    described = {each["klass"]: each for each in json.loads(leasehold("handlers", "--json").stdout)}
    assert described.keys() == {"mail.welcome", "mail.order", "it's odd/1", "class"}
    welcome = described["mail.welcome"]
    assert welcome["function"] == "handlers.mail.welcome"
    assert welcome["parameters"] == ["user", "template", "seen"]
    assert welcome["data"]["properties"]["user"] == {"type": "integer"}
    assert welcome["data"]["properties"]["template"] == {"type": "string", "default": "plain"}
    assert (welcome["data"]["required"], welcome["data"]["additionalProperties"]) == (["user"], False)
    assert welcome["result"]["properties"].keys() == {"name", "price"}
    assert welcome["options"] == {"queue": "mail", "tags": ["new"], "expires": 3600.0}
    assert welcome["settings"] == {"timeout_s": 30.0}
    assert described["it's odd/1"]["data"] is None
    assert described["mail.order"]["data"]["additionalProperties"] is True


def test_without_pydantic_names_are_known(leasehold, tmp_path):
    (tmp_path / "handlers/mail.py").write_text("from supervisor import handler\n@handler\ndef f(job, a: int, b=2): ...")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "pydantic.py").write_text("raise ModuleNotFoundError('no', name='pydantic')\n")
    (described,) = json.loads(leasehold("handlers", "--json", PYTHONPATH=f"{hidden}:{ROOT}").stdout)
    assert described["data"]["properties"] == {"a": {}, "b": {"default": 2}}
    assert described["data"]["required"] == ["a"]


USES = """
from uuid import UUID

import jobs

jobs.mail_welcome.put(user=7)
jobs.mail_welcome.with_options(lane="x").put(user=8, template="rich")
jobs.mail_order.put(items=[{"name": "a"}], tree={"name": "x", "below": [{"name": "y"}]}, colour="red", id=UUID(int=1),
                    pair=(1, "x"))
jobs.it_s_odd_1.put()
jobs.class_.put(names=["a"])
"""
WRONG = """
import jobs

jobs.mail_welcome.put(user="x")
jobs.mail_welcome.put(usr=7)
jobs.mail_order.put(items=[{"nam": "a"}], tree={"name": "x"}, colour="blue", id=1, pair=(1, 2))
"""


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_stubs_put_what_the_handlers_take_and_are_typed(leasehold, tmp_path, server, namespace):
    done = leasehold("stubs", "--out", "jobs.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert leasehold("stubs").stdout == (tmp_path / "jobs.py").read_text()
    (tmp_path / "uses.py").write_text(USES)
    (tmp_path / "wrong.py").write_text(WRONG)
    assert mypy(tmp_path, "uses.py", "jobs.py") == []
    assert len(mypy(tmp_path, "wrong.py")) >= 6
    environment = {"LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    assert leasehold(module="uses", **environment).stderr == ""
    with Client(server.url, namespace) as client:
        jobs = {job.klass: job for queue in ("mail", "default") for job in client.queue(queue).jobs("waiting")}
        assert jobs.keys() == {"mail.welcome", "mail.order", "it's odd/1", "class"}
        assert client.queue("mail").counts().waiting == 2
        assert jobs["mail.order"].data["tree"] == {"name": "x", "below": [{"name": "y"}]}


def test_stubs_with_models_put_where_no_extra_is_installed(leasehold, tmp_path, server, namespace):
    assert leasehold("stubs", "--out", "jobs.py").returncode == 0
    (tmp_path / "uses.py").write_text("import jobs\njobs.mail_order.put(items=[], tree={}, colour=1, id=1, pair=[])\n")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in ("pydantic", "typing_extensions"):
        (hidden / f"{name}.py").write_text(f"raise ModuleNotFoundError('no', name={name!r})\n")
    environment = {"LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    assert leasehold(module="uses", PYTHONPATH=f"{hidden}:{ROOT}", **environment).stderr == ""
    with Client(server.url, namespace) as client:
        assert client.queue("default").counts().waiting == 1


HARD_USES = """
from datetime import UTC, datetime

import jobs

jobs.list_.put()
jobs.list_.put(to={"city": "x", "back": {"city": "y"}}, among={"a": None, "b": {"city": "z"}}, job=[1])
jobs.cast.put(list=["a"], cast=2, Any=[None], others="y", more=7)
jobs.Any_.put(x={"x": 1}, handler=0.5, elsewhere="x", _default=1)
jobs.largest.put(size={"y": 1}, most=1.5, when=datetime.now(UTC), mode="b", tree=[1, [2]])
jobs.int_.put(a=datetime.now(UTC))
jobs._1.put(schema=[])
"""
HARD_WRONG = """
import jobs

jobs.list_.put(to={"town": "x"})
jobs.list_.put(job=["x"])
jobs.cast.put(list=["a"], more="x")
jobs.largest.put(size={"y": 1}, mode="c")
jobs.int_.put(a=1)
"""


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_stubs_may_have_optional_models_and_names_of_their_own_module(leasehold, tmp_path, server, namespace):
    (tmp_path / "handlers/mail.py").write_text(HARD)
    assert leasehold("stubs", "--out", "jobs.py").returncode == 0
    (tmp_path / "uses.py").write_text(HARD_USES)
    (tmp_path / "wrong.py").write_text(HARD_WRONG)
    assert mypy(tmp_path, "uses.py", "jobs.py") == [], (tmp_path / "jobs.py").read_text()
    assert len(mypy(tmp_path, "wrong.py")) >= 5
    environment = {"LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    assert leasehold(module="uses", **environment).stderr == ""
    with Client(server.url, namespace) as client:
        jobs = {job.klass: job.data for job in client.queue("default").jobs("waiting")}
    assert jobs.keys() == {"list", "cast", "Any", "largest", "int", "1²"}
    assert jobs["cast"] == {"list": ["a"], "cast": 2, "Any": [None], "others": "y", "more": 7}
    assert jobs["largest"].keys() == {"size", "most", "when", "mode", "tree"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("1 / 0", "the handlers cannot be imported: ZeroDivisionError: division by zero ("),
        ("import os; os._exit(9)", "ended meanwhile (9); look for the module that exits"),
        ("", "no @handler in 'handlers'"),
        (
            "from supervisor import handler\n@handler\ndef f(job, x: 'Y'): ...",
            "the annotation of 'x' cannot be resolved",
        ),
    ],
)
def test_handlers_that_cannot_be_described_are_one_sentence(leasehold, tmp_path, source, said):
    (tmp_path / "handlers/mail.py").write_text(source)
    done = leasehold("stubs", "--out", "jobs.py")
    assert done.returncode == 71
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "jobs.py").exists()


def test_import_that_hangs_is_ended(leasehold, tmp_path):
    (tmp_path / "handlers/mail.py").write_text("import threading; threading.Event().wait()")
    done = leasehold("handlers", "--boot-timeout", "1s")
    assert done.returncode == 71
    assert "was not imported within 1 s" in done.stderr


def test_file_that_cannot_be_written_is_named(leasehold):
    done = leasehold("stubs", "--out", "nowhere/jobs.py")
    assert (done.returncode, "--out 'nowhere/jobs.py' cannot be written" in done.stderr) == (1, True)
