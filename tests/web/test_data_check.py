"""Data are checked against schemas of handlers: each wrong field by its path, within bounds, and no value is shown."""

from typing import Annotated, Literal

import orjson
import pydantic
import pytest

from supervisor import handler
from supervisor.child.parameters import WrongShape
from supervisor.child.schemas import described
from supervisor.clock import monotonic
from supervisor.web.data_check import MOST_NAMED, wrong_fields
from tests.lengths import SOON_S


class Address(pydantic.BaseModel):
    city: str
    zip: Annotated[int, pydantic.Field(ge=1000)] | None = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, pydantic.Field(max_length=3)]


class Node(pydantic.BaseModel):
    n: int
    kids: list["Node"] = []


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@handler
def ship(
    job,
    user: int,
    to: Address,
    tags: list[str] = [],  # noqa: B006
    pet: Pet | None = None,
    tree: Node | None = None,
    size: Literal["s", "m"] = "m",
    codes: set[Annotated[str, pydantic.Field(pattern="^[a-z]+$")]] = set(),  # noqa: B006
    rates: dict[Annotated[str, pydantic.Field(pattern="^r")], float] = {},  # noqa: B006
): ...


RIGHT = {"user": 1, "to": {"city": "Ulm"}}


def wrong(data, handle=ship):
    return dict(wrong_fields(data, [described(handle)[1].encode()]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"user": "7"}, {"user": "must be integer, not string"}),
        ({"user": None, "to": []}, {"user": "must be integer, not null", "to": "must be object, not array"}),
        ({"to": {}}, {"to.city": "is missing"}),
        ({"usr": 7}, {"usr": "is no parameter"}),
        ({"tags": ["a", 1, {}]}, {"tags[1]": "must be string, not integer", "tags[2]": "must be string, not object"}),
        ({"to": {"city": "Ulm", "zip": 9}}, {"to.zip": "must fit minimum 1000"}),
        ({"to": {"city": "Ulm", "zip": "x"}}, {"to.zip": "must be integer or null, not string"}),
        ({"pet": {"kind": "dog", "name": "Hasso"}}, {"pet.name": "must fit maxLength 3"}),
        ({"pet": {"kind": "cow"}}, {"pet": "fits none of 2 alternatives"}),
        ({"pet": {"name": "Rex", "kind": "cat"}}, {"pet.lives": "is missing"}),
        ({"pet": 7}, {"pet": "must be object or null, not integer"}),
        ({"tree": {"n": 1, "kids": [{"n": 2}, {"n": ""}]}}, {"tree.kids[1].n": "must be integer, not string"}),
        ({"size": "xl"}, {"size": 'must fit enum ["s","m"]'}),
    ],
)  # fmt: skip
def test_each_wrong_field_is_named_by_its_path(change, named):
    data = RIGHT | change
    assert wrong(data) == named
    if change != {"user": "7"}:  # pydantic is lax
        with pytest.raises(WrongShape):
            ship.parameters.taken(orjson.dumps(data), data)


@pytest.mark.parametrize("data", [None, [], 7, {"usr": 1}])
def test_data_of_another_kind_are_wrong(data):
    expected = {"the data"} if data in ([], 7) else {"user", "to"} | set(data or {})
    assert set(wrong(data)) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"tags": [], "pet": None, "tree": {"n": 1, "kids": []}, "size": "s"},
        {"pet": {"kind": "cat", "lives": 9}},
        {"codes": ["a", "a"]},
        {"rates": {"r1": 0.5}},
    ],
)
def test_data_that_the_handler_takes_have_no_wrong_field(change):
    data = RIGHT | change
    ship.parameters.taken(orjson.dumps(data), data)
    assert wrong(data) == {}


def test_names_without_types_are_checked_too():
    @handler
    def plain(job, user, template=None): ...

    assert wrong({"usr": 1}, plain) == {"user": "is missing", "usr": "is no parameter"}
    assert wrong({"user": "x"}, plain) == {}


def test_data_need_to_fit_one_of_the_schemas():
    schemas = [orjson.dumps({"required": names}) for names in (["a", "b"], ["c"])]
    assert wrong_fields({"c": 1}, schemas) == []
    assert wrong_fields({}, schemas) == [("c", "is missing")], "by the schema that they fit best"
    assert wrong_fields({}, [*schemas, b"{}"]) == []
    assert wrong_fields({}, []) == []


def test_at_most_twenty_fields_are_named_and_long_ones_cut():
    data = {"x" * 500 + str(n): n for n in range(100)}
    found = wrong_fields(data, [b'{"additionalProperties": {"enum": ["' + b"y" * 5000 + b'"]}}'])
    assert len(found) == MOST_NAMED
    assert max(len(text) for field in found for text in field) <= 200


def test_no_sentence_has_a_value_of_the_data():
    data = {"user": "s3cret", "to": {"city": ["s3cret"], "zip": "s3cret"}, "pet": "s3cret", "size": "s3cret"}
    assert len(wrong(data)) == 5 and "s3cret" not in str(wrong(data))


NESTED = {"$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}, "$ref": "#/$defs/list"}
DOUBLING = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {"type": "null"}}


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "schema"),
    [
        ("a" * 40 + "!", {"pattern": "^(a+)+$"}),
        ({"a" * 40 + "!": 1}, {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}),
        ("a" * 40 + "!", {"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}]}),
        ([[1], "x"] * 30_000, {"uniqueItems": True}),
        (1, {"$ref": "#"}),
        (1, {"$defs": DOUBLING, "$ref": "#/$defs/d0"}),
        (deep(900), NESTED),
        (1, {"$ref": "http://127.0.0.1:1/schema.json"}),
        (1, {"$ref": "file:///etc/passwd"}),
        ({}, {"type": "objekt"}),
        ({"a": 1}, {"properties": [1]}),
        ({}, {"$ref": "#/required", "required": ["a"]}),
        ("x" * 300_000, {"type": "integer"}),
    ],
    ids=str,
)
def test_schema_that_does_harm_or_is_none_refuses_nothing_and_takes_little_time(data, schema):
    began_at = monotonic()
    assert wrong_fields(data, [orjson.dumps(schema)]) == []
    assert monotonic() - began_at < SOON_S


@pytest.mark.parametrize("schema", [b"", b"{", b"\xff", b"7", b"[]", b"null"])
def test_text_that_is_no_schema_refuses_nothing(schema):
    assert wrong_fields({"a": 1}, [schema]) == []


def test_union_names_the_wrong_fields_of_what_the_data_mean():
    @handler
    def count(job, rows: list[int] | dict[str, int] | None, to: Address | str = ""): ...

    assert wrong({"rows": [1, "x", []]}, count) == {
        "rows[1]": "must be integer, not string", "rows[2]": "must be integer, not array",
    }  # fmt: skip
    assert wrong({"rows": {"a": "x"}}, count) == {"rows.a": "must be integer, not string"}
    assert wrong({"rows": True}, count) == {"rows": "must be array or object or null, not boolean"}
    assert wrong({"rows": None, "to": {"zip": 9}}, count) == {
        "to.city": "is missing",
        "to.zip": "must fit minimum 1000",
    }


def test_union_of_long_lists_names_twenty_wrong_items():
    schema = {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}
    found = wrong_fields(["x"] * 60_000, [orjson.dumps(schema)])
    assert found == [(f"[{n}]", "must be integer, not string") for n in range(MOST_NAMED)]
