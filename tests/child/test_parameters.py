"""The parameters of handlers: which there are, what fills them, and how wrong data is named."""

import dataclasses
import enum
import functools
import sys
import types
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import orjson
import pydantic
import pytest
import typing_extensions
from pydantic.alias_generators import to_camel

from supervisor.child import answers
from supervisor.child.context import JobCalls, JobContext
from supervisor.child.handler import Handler, HandlersError
from supervisor.child.parameters import WrongShape, parameters_of
from supervisor.messages import HandlerSettings, JobMessage, Verb


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Item:
    name: str
    price: Decimal


class Receipt(pydantic.BaseModel):
    number: int
    at: datetime


class Account(pydantic.BaseModel):
    """A model whose JSON has aliases and a computed field."""

    model_config = pydantic.ConfigDict(alias_generator=to_camel, extra="forbid")
    user_id: int
    settings: pydantic.Json[dict[str, int]] = {}

    @pydantic.computed_field
    def label(self) -> str:
        return f"user {self.user_id}"


@dataclasses.dataclass
class Counted:
    names: list[str]
    count: int = dataclasses.field(init=False)
    first: str = dataclasses.field(init=False, default="")

    def __post_init__(self):
        self.count, self.first = len(self.names), self.names[0]


class TwoNames(pydantic.BaseModel):
    user_id: int = pydantic.Field(validation_alias="userId", serialization_alias="user")


class Options(typing_extensions.TypedDict, total=False):
    loud: bool


def of(function):
    parameters = parameters_of(function)
    assert parameters is not None
    return parameters


def taken(function, data):
    raw = orjson.dumps(data)
    return of(function).taken(raw, orjson.loads(raw))


@pytest.fixture(params=["with pydantic", "without"])
def either(request, monkeypatch):
    """Runs a test with the extra `typed`, and without it."""
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "pydantic", None)
        monkeypatch.delitem(sys.modules, "supervisor.child.annotations", raising=False)


def plain(job): ...
def untyped(job, user, template="plain"): ...
def typed(job, user: int, template: str = "plain"): ...
def open_ended(job, user: int, **others): ...
def rest_only(job, **others): ...
def keyword_only(job, *, user: int): ...


@functools.wraps(typed)
def wrapped(*args, **kwargs): ...


# which parameters there are


@pytest.mark.parametrize(
    "function",
    [plain, lambda: 0, lambda *a, **k: 0, lambda job, *a: 0, lambda job, *a, **hidden: 0, print, dict],
)
def test_handler_that_takes_only_its_context_takes_any_data(function):
    assert parameters_of(function) is None


@pytest.mark.parametrize(
    ("function", "names", "required"),
    [
        (untyped, ("user", "template"), ("user",)),
        (typed, ("user", "template"), ("user",)),
        (wrapped, ("user", "template"), ("user",)),
        (open_ended, ("user",), ("user",)),
        (keyword_only, ("user",), ("user",)),
        (functools.partial(typed, template="x"), ("user", "template"), ("user",)),
    ],
)
def test_parameters_are_those_behind_the_context(function, names, required, either):
    assert (of(function).names, of(function).required) == (names, required)


def test_positional_only_parameter_is_refused():
    def send(job, user, /): ...

    with pytest.raises(TypeError, match="'user' is positional-only"):
        parameters_of(send)


def test_annotation_without_a_meaning_for_data_is_refused():
    class Session: ...

    def send(job, user: int, session: Session): ...

    with pytest.raises(HandlersError, match=r"handler 'mail.send': no data can be checked .* of 'session'"):
        Handler(send, None, HandlerSettings()).prepare("mail.send")


class Unfinished(pydantic.BaseModel):
    at: "Nowhere"  # noqa: F821


class Raising:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        raise OSError("no file")


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("Nowhere", "the annotation of 'it' cannot be resolved: name 'Nowhere' is not defined; import it outside"),
        (Unfinished, "Unfinished'>): name 'Nowhere' is not defined; import it outside"),
        (list[Unfinished] | None, "name 'Nowhere' is not defined"),
        ("1/0", "the annotation of 'it' cannot be resolved: ZeroDivisionError: division by zero"),
        ("exit()", "the annotation of 'it' cannot be resolved: SystemExit"),
        ("x y", "the annotation of 'it' cannot be resolved: SyntaxError"),
        ({"a": int}, "no data can be checked against the annotation of 'it' ({'a': <class 'int'>})"),
        (Raising, "OSError: no file"),
    ],
)
def test_annotation_that_makes_no_type_is_refused_in_one_sentence(annotation, said):
    def send(job, user: int, it: annotation): ...

    with pytest.raises(HandlersError) as refused:
        Handler(send, None, HandlerSettings()).prepare("mail.send")
    assert str(refused.value).startswith("handler 'mail.send': ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_annotations_of_context_and_result_need_not_resolve():
    def send(job: "Nowhere", user: int) -> "Elsewhere": ...  # noqa: F821

    assert taken(send, {"user": 7}) == {"user": 7}
    assert Handler(send, None, HandlerSettings()).result_adapter is None


def test_result_of_an_unfinished_type_is_plain_json():
    def send(job) -> Unfinished: ...

    assert Handler(send, None, HandlerSettings()).result_adapter is None


# what fills them


@pytest.mark.parametrize("function", [untyped, typed, wrapped, open_ended])
def test_keys_become_arguments_and_defaults_stay_the_functions(function, either):
    assert taken(function, {"user": 7}) == {"user": 7}


def test_data_that_was_not_given_fills_only_defaults(either):
    def send(job, user=1): ...

    assert taken(send, None) == {}
    with pytest.raises(WrongShape, match="user: is missing"):
        taken(typed, None)


def test_other_keys_go_to_others(either):
    assert taken(open_ended, {"user": 7, "more": [1]}) == {"user": 7, "more": [1]}
    assert taken(rest_only, {"a": 1, "b": [2]}) == {"a": 1, "b": [2]}
    assert taken(rest_only, None) == {}
    for function, data in [(open_ended, {"user": 7, "job": 1}), (rest_only, {"a": 1, "job": 1})]:
        with pytest.raises(WrongShape, match="job: is no parameter, but the job itself"):
            taken(function, data)
    with pytest.raises(WrongShape, match="an object with the keys any others, not list"):
        taken(rest_only, [1])


def test_annotation_of_others_holds_for_each_of_them():
    def send(job, /, user: str, **others: int): ...
    def rest(job, **others: datetime): ...
    def nested(job, **others: Item): ...

    assert taken(send, {"user": "x", "a": "7", "job": 8}) == {"user": "x", "a": 7, "job": 8}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert taken(rest, orjson.loads(of(rest).dumped({"a": at}))) == {"a": at}
    for call in (taken, lambda function, data: of(function).dumped(data)):
        with pytest.raises(WrongShape, match=r"^a: Input should be a valid integer"):
            call(send, {"user": "x", "a": "zz"})
        with pytest.raises(WrongShape, match=r"^a\.prize: "):
            call(nested, {"a": {"name": "a", "price": "2", "prize": "2"}})


def test_annotation_of_others_without_a_meaning_for_data_is_refused():
    class Session: ...

    def send(job, user: int, **sessions: Session): ...

    with pytest.raises(HandlersError, match=r"the annotation of 'sessions'"):
        Handler(send, None, HandlerSettings()).prepare("send")


def test_key_may_have_the_name_of_a_positional_only_context(either):
    def send(job, /, user, **others): ...

    assert taken(send, {"user": 7, "job": 1}) == {"user": 7, "job": 1}


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        ({}, ["user: is missing"]),
        ({"user": 1, "tempalte": "x"}, ["tempalte: is no parameter"]),
        ({"usr": 1}, ["user: is missing", "usr: is no parameter"]),
        ([1], ["the data must be an object with the keys user, template, not list: [1]"]),
        ("x", ["the data must be an object with the keys user, template, not str: 'x'"]),
        (7, ["not int: 7"]),
        ({"user": 1, "job": 2}, ["job: is no parameter"]),
    ],
)
@pytest.mark.parametrize("function", [untyped, typed])
def test_wrong_names_are_each_named(function, data, problems, either):
    with pytest.raises(WrongShape) as refused:
        taken(function, data)
    assert [problem in str(refused.value) for problem in problems] == [True] * len(problems), refused.value


@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (int, "7", 7),
        (float, 1, 1.0),
        (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (Decimal, "1.10", Decimal("1.10")),
        (uuid.UUID, "12345678123456781234567812345678", uuid.UUID(int=0x12345678123456781234567812345678)),
        (Colour, "red", Colour.RED),
        (Annotated[int, pydantic.Field(ge=3)], 3, 3),
        (int | None, None, None),
        (list[Item], [{"name": "a", "price": "2"}], [Item("a", Decimal(2))]),
        (Receipt, {"number": 1, "at": 0}, Receipt(number=1, at=datetime.fromtimestamp(0, UTC))),
        (Options, {"loud": True}, {"loud": True}),
        (Any, {"x": [None]}, {"x": [None]}),
    ],
)
def test_annotations_make_values_of_json(annotation, data, value):
    def send(job, it: annotation): ...

    assert taken(send, {"it": data}) == {"it": value}
    assert of(send).taken(of(send).dumped({"it": value}), {"it": ...}) == {"it": value}


@pytest.mark.parametrize(
    ("annotation", "value", "data"),
    [
        (Account, Account(userId=7, settings='{"a": 1}'), {"userId": 7, "settings": '{"a":1}'}),
        (list[Account] | None, [Account(userId=7)], [{"userId": 7, "settings": "{}"}]),
        (Counted, Counted(["a", "b"]), {"names": ["a", "b"]}),
        (dict[str, Counted | None], {"x": Counted(["a"])}, {"x": {"names": ["a"]}}),
        (pydantic.Json[list[int]], [1, 2], "[1,2]"),
        (pydantic.Json, {"a": None}, '{"a":null}'),
        (TwoNames, {"userId": 7}, {"userId": 7}),
    ],
)
def test_value_that_is_written_otherwise_than_it_is_named_arrives(annotation, value, data):
    def send(job, it: annotation): ...

    raw = of(send).dumped({"it": value})
    assert orjson.loads(raw) == {"it": data}
    arrived = of(send).taken(raw, orjson.loads(raw))["it"]
    assert arrived == (TwoNames(userId=7) if annotation is TwoNames else value)


def test_parameter_may_have_an_alias_in_the_data():
    def send(job, user_id: Annotated[int, pydantic.Field(alias="userId")]): ...

    assert of(send).dumped({"user_id": 7}) == b'{"userId":7}'
    assert taken(send, {"userId": 7}) == {"user_id": 7}


def test_model_that_does_not_take_its_own_json_is_not_put():
    def send(job, it: TwoNames): ...

    with pytest.raises(WrongShape, match=r"it\.userId: is missing"):
        of(send).dumped({"it": TwoNames(userId=7)})


@pytest.mark.parametrize(
    ("annotation", "data", "path"),
    [
        (int, "seven", "it: Input should be a valid integer"),
        (list[Item], [{"name": "a", "price": "2"}, {"name": 5}], "it[1].price: is missing"),
        (Item, {"name": "a", "price": "2", "prize": "2"}, "it.prize: "),
        (Options, {"lout": True}, "it.lout: is no parameter"),
        (Receipt, {"number": 1}, "it.at: is missing"),
        (Annotated[int, pydantic.Field(ge=3)], 2, "greater than or equal to 3"),
        (Colour, "blue", "it: Input should be 'red', and not 'blue'"),
        (int | str, [], "it.int: "),
    ],
)
def test_wrong_types_are_named_with_their_path(annotation, data, path):
    def send(job, it: annotation): ...

    with pytest.raises(WrongShape) as refused:
        taken(send, {"it": data})
    assert path in str(refused.value)
    with pytest.raises(WrongShape):
        of(send).dumped({"it": data})


def test_only_the_first_of_many_wrong_fields_are_named():
    def send(job, numbers: list[int]): ...

    with pytest.raises(WrongShape) as refused:
        taken(send, {"numbers": ["x" * 1000] * 5000})
    assert str(refused.value).endswith("; and 4980 more")
    assert len(str(refused.value)) < 5000


# arguments by position


def called(function, data):
    raw = orjson.dumps(data)
    message = JobMessage(0, "", "", "", 0, 0, 0, 0, [], None, False, 0.0, False, raw, is_call=True)
    return Handler(function, None, HandlerSettings()).arguments_of(JobContext(message, "", JobCalls()))


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        ([7, "rich"], {"user": 7, "template": "rich"}),
        ([7], {"user": 7}),
        ({"args": [7], "kwargs": {"template": "rich"}}, {"user": 7, "template": "rich"}),
    ],
)
@pytest.mark.parametrize("function", [untyped, typed])
def test_arguments_of_a_call_are_given_by_position_and_by_name(function, data, arguments, either):
    assert called(function, data) == arguments


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "user: is missing"),
        ([7, "rich", 1], "3 values were given by position for the parameters user, template"),
        ({"args": [7], "kwargs": {"user": 8}}, "user: was given twice, by position and by name"),
        ({"args": [7], "kwargs": {"tmplate": "x"}}, "tmplate: is no parameter"),
        ({"args": ["rich"], "kwargs": {"job": 1}}, "job: is no parameter, but the job itself"),
    ],
)
@pytest.mark.parametrize("function", [untyped, typed])
def test_wrong_arguments_of_a_call_are_named(function, data, problem, either):
    with pytest.raises(WrongShape, match=problem):
        called(function, data)


def test_annotations_hold_for_arguments_of_a_call():
    assert called(typed, ["7"]) == {"user": 7}
    assert called(open_ended, {"args": [7], "kwargs": {"more": [1]}}) == {"user": 7, "more": [1]}
    with pytest.raises(WrongShape, match="user: Input should be a valid integer"):
        called(typed, ["seven"])


def test_handler_without_parameters_gets_the_arguments_of_a_call_as_data():
    assert called(plain, [7, "rich"]) == {}
    message = JobMessage(0, "", "", "", 0, 0, 0, 0, [], None, False, 0.0, False, b"[12345678901234567890]")
    job = JobContext(message._replace(is_call=True), "", JobCalls())
    assert (job.data, job.call) == ([12345678901234567890], ([12345678901234567890], {}))
    assert JobContext(message, "", JobCalls()).call is None


# what a put gives


def test_values_by_position_have_names():
    assert of(typed).given((7, "x"), {}) == {"user": 7, "template": "x"}
    for args, kwargs, match in [
        ((1, "x", 2), {}, "3 values were given by position"),
        ((1,), {"user": 2}, "user: was given twice"),
        ((), {}, "user: is missing"),
        ((1,), {"tmplate": "x"}, "tmplate: is no parameter"),
    ]:
        with pytest.raises(WrongShape, match=match):
            of(typed).given(args, kwargs)


def test_value_that_is_not_json_is_refused_before_anything_is_written():
    with pytest.raises(WrongShape, match=r"data\['user'\] is a object|data\['user'\]"):
        of(untyped).dumped({"user": object()})
    with pytest.raises(WrongShape):
        of(typed).dumped({"user": object()})


# results


@pytest.mark.parametrize(
    ("annotation", "result", "body"),
    [
        (Receipt, Receipt(number=1, at=datetime(2026, 1, 1, tzinfo=UTC)), b'{"number":1,"at":"2026-01-01T00:00:00Z"}'),
        (list[Decimal], [Decimal("1.1")], b'["1.1"]'),
        (Account, Account(userId=7), b'{"userId":7,"settings":{},"label":"user 7"}'),
    ],
)
def test_result_is_dumped_by_its_annotation(annotation, result, body):
    def send(job) -> annotation: ...

    job = JobContext(JobMessage(0, "", "", "", 0, 0, 0, 0, [], None, False, 0.0, False, b"null"), "", JobCalls())
    assert answers.returned(job, Handler(send, None, HandlerSettings()), result) == (Verb.COMPLETED, [body])


@pytest.mark.parametrize(
    "annotation",
    [None, dict, int, Any, dict[str, int], list[dict[str, Any]], str | None, types.SimpleNamespace, "Nowhere"],
)
def test_result_of_a_plain_or_strange_annotation_is_plain_json(annotation):
    def send(job) -> annotation: ...

    assert Handler(send, None, HandlerSettings()).result_adapter is None


def test_plain_annotation_of_a_result_loads_no_pydantic(monkeypatch):
    def send(job) -> dict[str, list[int]] | None: ...

    monkeypatch.setitem(sys.modules, "supervisor.child.annotations", None)  # its import would raise
    assert Handler(send, None, HandlerSettings()).result_adapter is None
