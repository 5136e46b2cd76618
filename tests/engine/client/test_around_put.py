"""Functions of `around_put` see each put of their client, may change it, and learn what became of it."""

import asyncio
import contextlib

import pytest

from supervisor import AsyncClient, Client, LeaseholdError


class Both:
    """Makes the calls of a test by the sync or the async client."""

    def __init__(self, kind, server, namespace):
        self.is_async, self.arguments = kind == "async", (server.url, namespace)

    def __call__(self, functions, *calls):
        """Make calls (queue's method, arguments, options) by a new client, and return their answers."""
        if not self.is_async:
            with Client(*self.arguments) as client:
                for function in functions:
                    assert client.around_put(function) is function
                return [getattr(client.queue("q"), name)(*args, **options) for name, args, options in calls]

        async def run():
            async with AsyncClient(*self.arguments) as client:
                for function in functions:
                    client.around_put(function)
                return [await getattr(client.queue("q"), name)(*args, **options) for name, args, options in calls]

        return asyncio.run(run())


@pytest.fixture(params=["sync", "async"])
def call(request, server, namespace):
    return Both(request.param, server, namespace)


def test_each_way_to_put_is_seen_and_answered(call, live):
    seen = []

    def look(put):
        before = (put.verb, put.queue, [{**job} for job in put.jobs])
        yield
        seen.append((*before, put.answers))

    one, added, many = call(
        [look],
        ("put", ("k", 1), {"tags": ["t"]}),
        ("add", ("k",), {"jid": "a"}),
        ("put_many", ([{"klass": "k"}, {"klass": "k", "data": 2}],), {}),
    )
    assert seen == [
        ("put", "q", [{"klass": "k", "data": 1, "tags": ["t"]}], [one]),
        ("add", "q", [{"klass": "k", "data": None, "jid": "a"}], [True]),
        ("put", "q", [{"klass": "k"}, {"klass": "k", "data": 2}], many),
    ]
    assert added is True
    assert live.queue("q").counts().waiting == 4


def test_changed_jobs_are_put_and_the_given_ones_stay(call, live):
    def stamp(put):
        for job in put.jobs:
            job["tags"] = [*job.get("tags", ()), "stamped"]
            job["data"] = {"wrapped": job.get("data")}
        yield

    given = {"klass": "k", "data": 7}
    one, [two] = call([stamp], ("put", ("k", 7), {"tags": ["own"]}), ("put_many", ([given],), {}))
    assert (live.job(one).tags, live.job(one).data) == (["own", "stamped"], {"wrapped": 7})
    assert live.job(two).data == {"wrapped": 7}
    assert given == {"klass": "k", "data": 7}


def test_functions_are_nested_in_their_order(call):
    order = []

    def function(name):
        @contextlib.contextmanager
        def around(put):
            order.append(f"{name} in")
            yield
            order.append(f"{name} out")

        return around

    call([function("outer"), function("inner")], ("put", ("k",), {}))
    assert order == ["outer in", "inner in", "inner out", "outer out"]


def test_exception_before_the_put_refuses_the_put(call, live):
    def refuse(put):
        raise PermissionError("not today")
        yield

    for name, args in (("put", ("k",)), ("add", ("k",)), ("put_many", ([{"klass": "k"}],))):
        with pytest.raises(PermissionError, match="not today"):
            call([refuse], (name, args, {}))
    assert live.queues() == {}


def test_changes_are_checked_and_errors_come_to_the_function(call, live):
    seen = []

    def spoil(put):
        put.jobs[0]["priority"] = "high"
        try:
            yield
        except TypeError as error:
            seen.append(str(error))
            raise

    with pytest.raises(TypeError, match="priority must be an int"):
        call([spoil], ("put", ("k",), {}))
    assert len(seen) == 1
    assert live.queues() == {}


@pytest.mark.parametrize(("name", "args"), [("put", ("k",)), ("add", ("k",)), ("put_many", ([{"klass": "k"}],))])
@pytest.mark.parametrize("count", [0, 2])
def test_another_number_of_jobs_is_refused_before_any_is_put(call, live, name, args, count):
    seen = []

    def multiply(put):
        put.jobs[:] = put.jobs * count
        try:
            yield
        except ValueError as error:
            seen.append(error)
            raise

    with pytest.raises(ValueError, match=f"put.jobs has {count}, and 1 was given"):
        call([multiply], (name, args, {}))
    assert len(seen) == 1
    assert live.queues() == {}


def test_swallowed_error_is_not_taken_for_an_answer(call):
    def swallow(put):
        with contextlib.suppress(TypeError):
            yield

    with pytest.raises(LeaseholdError, match="has swallowed the error of a put"):
        call([swallow], ("put", ("k",), {"priority": "high"}))


def test_caller_gets_the_answers_whatever_functions_make_of_theirs(call, live):
    def lose(put):
        yield
        put.answers.clear()

    one, added, many = call(
        [lose], ("put", ("k",), {}), ("add", ("k",), {}), ("put_many", ([{"klass": "k"}, {"klass": "k"}],), {})
    )
    assert added is True
    assert [live.job(jid).klass for jid in (one, *many)] == ["k"] * 3


@pytest.mark.parametrize("jobs", [7, [7], "k", {"klass": "k"}])
def test_wrong_jobs_are_refused_as_without_functions(call, jobs):
    def nothing(put):
        yield

    with pytest.raises(TypeError, match="jobs must be"):
        call([nothing], ("put_many", (jobs,), {}))


def test_argument_that_is_not_a_function_is_refused(live):
    with pytest.raises(TypeError, match="around must be a function of the put, not 7"):
        live.around_put(7)
