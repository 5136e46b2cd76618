"""A handler puts jobs of its own parameters, on a real server, and refuses what it would not accept."""

import asyncio
import copy
import gc
import math
import os
import pickle
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pydantic
import pytest

from supervisor import AsyncClient, Client, NoServer, OutcomeUnknown, Retry, StoreUnavailable, around_put
from supervisor.child import handlers, typed_put
from supervisor.child.handler import HandlersError
from supervisor.child.handlers import handler
from supervisor.engine.client.around_put import registered
from supervisor.engine.model.job_to_put import JobToPut
from tests.parts import in_fork


@pytest.fixture(autouse=True)
def default_server(server, namespace, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    monkeypatch.setattr(handlers, "_registered", [])
    monkeypatch.setattr(typed_put, "_clients", {})
    yield
    for client in typed_put._clients.values():
        client.close()


@pytest.fixture
def client(server, namespace):
    with Client(server.url, namespace) as client:
        yield client


@pytest.fixture
def welcome():
    @handler(name="mail.welcome", queue="mail", tags=["new"], priority=3)
    def welcome(job, user: int, template: str = "plain", at: datetime | None = None):
        return user, template

    return welcome


def test_put_gives_the_job_its_parameters_and_declared_options(welcome, client):
    job = client.job(welcome.put(user=7))
    assert (job.klass, job.queue, job.data, job.tags, job.priority) == ("mail.welcome", "mail", {"user": 7}, ["new"], 3)
    job = client.job(welcome.put(7, "rich", at=datetime(2026, 1, 1, tzinfo=UTC)))
    assert job.data == {"user": 7, "template": "rich", "at": "2026-01-01T00:00:00Z"}


def test_put_without_declared_options_goes_to_the_default_queue(client):
    @handler(name="k")
    def send(job, user): ...

    assert client.job(send.put(user=[1])).queue == "default"


def test_options_of_one_put_replace_declared_ones(welcome, client):
    later = welcome.with_options(delay="10s", queue="bulk", client=client, priority=0)
    job = client.job(later.put(user=7))
    assert (job.state, job.queue, job.priority, job.tags) == ("scheduled", "bulk", 0, ["new"])
    job = client.job(later.with_options(at=datetime.now(UTC) + timedelta(days=1)).put(user=8))
    assert (job.state, job.queue) == ("scheduled", "bulk")


@pytest.fixture
def index():
    @handler(name="search.index", unique="index", collect=timedelta(hours=1), most=9)
    def index(job, pages: list[int]):
        return pages

    return index


def test_each_put_of_a_collecting_handler_gives_one_member_of_its_list(index, client):
    jid = index.put([7])
    assert index.put(pages=["8"]) == jid
    client.queue("default").put_many([index.job([9])])
    job = client.job(jid)
    assert job.data == [7, "8", 9]
    assert index.parameters.taken_list(job.raw, job.data) == {"pages": [7, 8, 9]}
    assert index.plain_options == {"unique": "index", "collect": 3600, "most": 9}


@pytest.mark.parametrize("pages", [[], [1, 2], ["seven"], 7])
def test_put_of_a_collecting_handler_is_checked_by_itself(index, pages):
    with pytest.raises(ValueError, match=r"search\.index: pages"):
        index.put(pages)


def test_collected_data_that_are_no_list_are_broken(index, client):
    job = client.job(client.queue("default").put("search.index", {"pages": [1]}))
    with pytest.raises(ValueError, match="the data must be a list, as collect makes it, not dict"):
        index.parameters.taken_list(job.raw, job.data)


def test_only_the_handler_decides_about_collecting(index, welcome):
    with pytest.raises(ValueError, match="collect belongs to @handler"):
        index.with_options(collect=None, most=None).put([7])
    with pytest.raises(ValueError, match="collect belongs to @handler"):
        welcome.with_options(unique="k", collect=5).put(user=7)


def test_collecting_handler_takes_one_list_or_nothing():
    @handler(name="two", unique="k", collect=5)
    def two(job, pages: list[int], users: list[int]): ...

    @handler(name="none", unique="k", collect=5)
    def none(job): ...

    with pytest.raises(HandlersError, match="it collects, so it takes one parameter"):
        two.prepare("two")
    none.prepare("none")


def test_debounced_and_throttled_handlers_are_put_like_others(client):
    @handler(name="last", unique="last", debounce="1h")
    def last(job, n: int): ...

    assert last.put(1) == last.put(2)
    assert client.job(last.put(3)).data == {"n": 3}
    rare = last.with_options(debounce=None, throttle="1h", unique="rare")
    assert rare.put(1) == rare.put(2)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "mail.welcome: user: is missing"),
        ({"user": 7, "tempalte": "x"}, "tempalte: is no parameter"),
        ({"user": "seven"}, "user: Input should be a valid integer"),
        ({"user": object()}, "user: "),
        ({"user": 7, "at": "yesterday"}, "at: Input should be a valid datetime"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_written(welcome, client, arguments, match):
    for put in (welcome.put, welcome.job, lambda **given: asyncio.run(welcome.aput(**given))):
        with pytest.raises(ValueError, match=match):
            put(**arguments)
    assert client.queues() == {}


def test_number_that_no_child_can_read_is_refused_by_name(client):
    @handler(name="k")
    def send(job, user: int, x: float = 0, sizes: tuple[int, ...] = ()): ...

    for arguments, match in [({"x": 10**400}, "k: x: "), ({"sizes": (1, 10**400)}, "k: sizes: ")]:
        with pytest.raises(ValueError, match=f"{match}number is infinity"):
            send.put(user=7, **arguments)
    assert client.queues() == {}
    assert client.job(send.put(user=2**70)).raw == b'{"user":1180591620717411303424}'


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr | None = None
    scores: dict[int, tuple[float | None, ...]] = {}


class Open(pydantic.BaseModel):
    """Says that its secret shall be in JSON."""

    password: pydantic.SecretStr
    note: str | None = None

    @pydantic.field_serializer("password", when_used="json")
    def shown(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"score": math.nan}, ["score: JSON has no nan"]),
        ({"score": None, "anything": [1, {"x": -math.inf}]}, ["anything[1].x: JSON has no -inf"]),
        ({"other": math.inf}, ["other: JSON has no inf"]),
        ({"secret": pydantic.SecretStr("pw")}, ["secret: a secret is masked in JSON"]),
        ({"secret": pydantic.SecretBytes(b"pw")}, ["secret: a secret is masked in JSON"]),
        (
            {"login": Login(password="pw", scores={7: (1.0, None, math.nan)})},
            ["login.password: a secret is masked in JSON", "login.scores.7[2]: JSON has no nan"],
        ),
    ],
)
def test_value_that_json_would_change_is_refused_by_name(client, arguments, said):
    @handler(name="k")
    def send(
        job, score: float | None = None, secret: pydantic.SecretStr | pydantic.SecretBytes | None = None,
        login: Login | None = None, anything: Any = None, **others: float | None,
    ): ...  # fmt: skip

    with pytest.raises(ValueError, match=r"^k: ") as refused:
        send.put(**arguments)
    assert [words in str(refused.value) for words in said] == [True] * len(said), refused.value
    assert client.queues() == {}


def test_secret_whose_type_says_so_is_written(client):
    @handler(name="k")
    def send(job, login: Open, other: Login | None = None): ...

    for password in ("pw", "stars**"):
        data = client.job(send.put(login=Open(password=password))).data
        assert data == {"login": {"password": password, "note": None}}
    assert client.job(send.put(login=Open(password=""), other=Login(scores={1: (None,)}))).data["other"] == {
        "password": None, "scores": {"1": [None]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error"),
    [({"prio": 1}, TypeError), ({"priority": "x"}, TypeError), ({"queue": ""}, ValueError), ({"client": 7}, TypeError),
     ({"delay": "soon"}, ValueError)],
)  # fmt: skip
def test_wrong_options_are_refused_before_anything_is_written(welcome, client, options, error):
    with pytest.raises(error):
        welcome.with_options(**options).put(user=7)
    assert client.queues() == {}


def test_handler_in_place_of_a_klass_is_refused_with_the_cure(welcome, client):
    queue = client.queue("default")
    for wrong, cure in ((welcome, r"welcome\.put\(…\)"), (welcome.job(user=7), r"put_many\(\[…\]\)")):
        for put in (queue.put, queue.add, lambda klass: queue.put_many([{"klass": klass}])):
            with pytest.raises(TypeError, match=f"klass must be a str, not .*{cure}"):
                put(wrong)
    assert client.queues() == {}


def test_misspelt_option_names_all_that_there_are(welcome):
    with pytest.raises(TypeError, match=r"with_options has no option 'quue'; it has .*client, .*durable, .*queue, "):
        welcome.with_options(quue="bulk")


def test_client_of_the_other_kind_is_refused(welcome, client, server, namespace):
    with pytest.raises(TypeError, match="client must be an AsyncClient"):
        asyncio.run(welcome.with_options(client=client).aput(user=7))
    with pytest.raises(TypeError, match="client must be a Client"):
        welcome.with_options(client=AsyncClient(server.url, namespace)).put(user=7)


def test_handler_without_parameters_puts_no_data(client):
    @handler(name="k")
    def send(job): ...

    assert client.job(send.put()).data is None
    with pytest.raises(ValueError, match="k: the handler has no parameters"):
        send.put(user=7)


def test_parameters_may_have_any_name(client):
    @handler(name="k")
    def send(job, put, args=0, kwargs=0, client=0, self=0): ...

    names = {"put": 1, "args": 2, "kwargs": 3, "client": 4, "self": 5}
    assert client.job(send.put(**names)).data == names
    assert send.with_options(lane="x").job(**names).data == names


def test_async_puts_share_a_client_that_ends_with_their_loop(welcome, client):
    async def put_twice():
        return await asyncio.gather(welcome.aput(user=1), welcome.aput(user=2), welcome.aput(user=3))

    jids = asyncio.run(put_twice())
    assert [client.job(jid).data["user"] for jid in jids] == [1, 2, 3]
    gc.collect()
    before = psutil.Process().num_fds()
    for _ in range(3):
        asyncio.run(put_twice())
    gc.collect()
    assert psutil.Process().num_fds() <= before


def test_default_client_of_a_fork_is_its_own(welcome, client):
    welcome.put(user=1)

    def put():
        [inherited] = typed_put._clients.values()
        welcome.put(user=2)
        assert [client for client in typed_put._clients.values() if client is not inherited] != []

    in_fork(put)
    welcome.put(user=3)
    assert client.queue("mail").counts().waiting == 3


# jobs that are ready to be put


def test_job_that_is_ready_to_be_put_goes_wherever_jobs_are_put(welcome, client):
    one, two = welcome.job(user=1), welcome.with_options(lane="x").job(user=2)
    assert isinstance(one, JobToPut)
    assert (one.queue, one.data, two["lane"]) == ("mail", {"user": 1}, "x")
    assert client.queues() == {}
    assert client.queue("mail").put_many([one, two]) == [one.jid, two.jid]
    assert client.job(two.jid).lane == "x"

    last = client.queue("mail").put("k", depends=[one, two])
    assert sorted(client.job(last).dependencies) == sorted([one.jid, two.jid])

    (lease,) = client.queue("mail").lease("w")
    three = welcome.job(user=3)
    assert lease.complete(then=[three])
    assert client.job(three.jid).data == {"user": 3}


def test_durable_is_an_option_of_puts_and_not_of_jobs(welcome, client):
    durable = welcome.with_options(client=client, durable=True)
    with pytest.raises(OutcomeUnknown, match="which 1 of its replicas must acknowledge"):
        durable.put(user=7)
    with pytest.raises(ValueError, match=r"durable is an option of the call that puts this job, like put_many"):
        durable.job(user=7)


def test_job_that_is_ready_to_be_put_can_be_copied_and_pickled(welcome, client):
    one = welcome.job(user=2**60, template="rich")
    for twin in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
        assert type(twin) is JobToPut and (twin.jid, twin.queue, twin.data) == (one.jid, one.queue, one.data)
        assert client.queue("mail").put_many([twin]) == [one.jid]
        assert client.job(one.jid).data == {"user": 2**60, "template": "rich"}
    plain = JobToPut({"queue": "q", "klass": "k", "jid": "j", "data": b"\xff"})
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_job_for_another_queue_is_refused_by_put_many(welcome, client):
    with pytest.raises(ValueError, match="jobs must be for the queue 'bulk'"):
        client.queue("bulk").put_many([welcome.job(user=1)])
    assert client.queues() == {}


# names


def test_klass_is_below_the_root_of_the_handlers(monkeypatch):
    def send(job): ...

    send.__module__ = "handlers.mail"
    assert handler(send).klass == "mail.send"
    send.__module__ = "app.jobs.mail"
    with pytest.raises(ValueError, match=r"the klass of app.jobs.mail.* is not known.*LEASEHOLD_HANDLERS"):
        handler(send).klass  # noqa: B018
    monkeypatch.setenv("LEASEHOLD_HANDLERS", "app/jobs")
    assert handler(send).klass == "mail.send"


@handler(name="k")
def at_module_level(job): ...


def test_handler_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level


def test_default_client_reads_the_password_file_that_the_variable_names_by_then(welcome, monkeypatch, tmp_path):
    welcome.put(user=7)
    (tmp_path / "password").write_text("wrong")
    monkeypatch.setenv("LEASEHOLD_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    with pytest.raises(StoreUnavailable, match="password"):
        welcome.put(user=7)


def test_put_in_a_handlers_process_names_the_way(welcome, monkeypatch):
    monkeypatch.delenv("LEASEHOLD_REDIS_URL")
    monkeypatch.setenv("LEASEHOLD_IN_POOL", "1")
    with pytest.raises(NoServer, match=r"job\.put\(welcome\.job\(…\)\)"):
        welcome.put(user=7)
    with pytest.raises(NoServer, match=r"job\.put\(welcome\.job\(…\)\)"):
        asyncio.run(welcome.aput(user=7))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"queue": ""}, "queue"),
        ({"priority": "high"}, "priority"),
        ({"tags": "one"}, "tags"),
        ({"expires": -1}, "expires"),
        ({"debounce": "5s"}, "debounce needs unique"),
        ({"unique": "k", "collect": "5s", "most": 0}, "most"),
        ({"unique": "k", "throttle": "5s", "every": "1m"}, "throttle='5s'"),
        ({"retry_on": "ConnectionError"}, "retry_on"),
        ({"fail_on": (7,)}, "fail_on"),
        ({"retry_on": Retry}, "retry_on"),
    ],
)
def test_wrong_declarations_are_refused_at_the_decorator(options, match):
    with pytest.raises(ValueError, match=match):
        handler(**options)


@pytest.mark.parametrize(
    ("options", "retried", "failed"),
    [
        ({}, [KeyError, OSError], []),
        ({"on_error": "fail"}, [], [KeyError]),
        ({"retry_on": OSError}, [OSError, ConnectionError], [KeyError]),
        ({"retry_on": (OSError,), "on_error": "retry"}, [OSError, KeyError], []),
        ({"fail_on": (KeyError,)}, [OSError], [KeyError]),
        ({"retry_on": LookupError, "fail_on": KeyError}, [IndexError], [KeyError, OSError]),
    ],
)
def test_exceptions_are_retried_or_fail_as_declared(options, retried, failed):
    one = handler(**options)(lambda job: 0)
    assert [one.gives_up(kind(), "retry") for kind in retried] == [False] * len(retried)
    assert [one.gives_up(kind(), "retry") for kind in failed] == [True] * len(failed)


def test_importing_a_handler_loads_neither_redis_nor_pydantic():
    code = "import sys\nfrom supervisor import handler\n@handler\ndef f(job, user): ...\n"
    code += "f.parameters\nassert not {'redis', 'pydantic', 'asyncio'} & set(sys.modules)"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0


@pytest.fixture
def no_hook_is_left():
    yield
    registered.clear()


@pytest.mark.usefixtures("no_hook_is_left")
def test_hook_of_all_clients_reads_and_changes_typed_puts(welcome, client):
    seen = []

    @around_put
    def look(put):
        for job in put.jobs:
            seen.append({**job["data"]})
            job["data"]["template"] = "rich"
        yield

    jids = [
        welcome.put(user=7),
        asyncio.run(welcome.aput(user=8)),
        *client.queue("mail").put_many([welcome.job(user=9)]),
    ]
    assert seen == [{"user": 7}, {"user": 8}, {"user": 9}]
    assert [client.job(jid).data for jid in jids] == [{"user": user, "template": "rich"} for user in (7, 8, 9)]
