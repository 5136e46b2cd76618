"""Handlers that take the same data have the same shape, and others have another."""

import json
import math

import pydantic
import pydantic_core

from supervisor import handler
from supervisor.child.schemas import ANY, data_schema, described, published, result_schema
from supervisor.messages import MOST_SCHEMAS_BYTES, SCHEMA_BYTES


class Address(pydantic.BaseModel):
    city: str


class Opaque:
    """Can be checked, and has no JSON schema."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        return pydantic_core.core_schema.no_info_after_validator_function(
            cls, pydantic_core.core_schema.is_instance_schema(cls)
        )


class Raising(int):
    """Raises where it should describe itself, with an address that is another in each process."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        return pydantic_core.core_schema.int_schema()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema, handler):
        raise OSError(f"no description of {object()}")


class Parcel(pydantic.BaseModel):
    weight: int
    content: Opaque


def shape_of(handler):
    return described(handler)[0]


def test_shape_is_of_names_types_and_what_is_required():
    @handler(name="a")
    def one(job, user: int, plain: bool = True): ...

    @handler(name="b", timeout="1s")
    def same(context, user: int, plain: bool = True) -> int: ...

    @handler(name="c")
    def typed(job, user: str, plain: bool = True): ...

    @handler(name="d")
    def required(job, user: int, plain: bool): ...

    @handler(name="e")
    def more(job, user: int, plain: bool = True, **others): ...

    @handler(name="f")
    def nested(job, user: Address): ...

    @handler(name="g")
    def anything(job): ...

    assert shape_of(one) == shape_of(same)
    shapes = [shape_of(each) for each in (one, typed, required, more, nested, anything)]
    assert len(set(shapes)) == 6
    assert shapes[-1] == ANY
    assert all(len(shape) == 16 and shape.isalnum() for shape in shapes[:-1])


def test_untyped_handlers_have_the_shape_of_their_names():
    @handler(name="a")
    def one(job, user): ...

    @handler(name="b")
    def other(job, customer): ...

    assert shape_of(one) != shape_of(other)


def test_type_without_a_json_schema_leaves_the_others_theirs():
    @handler(name="a")
    def one(job, user: int, content: Opaque, size: Raising, parcel: Parcel | None = None) -> list[Opaque]: ...

    @handler(name="b")
    def same(job, user: int, content: Opaque, size: Raising, parcel: Parcel | None = None): ...

    @handler(name="c")
    def other(job, user: str, content: Opaque, size: Raising, parcel: Parcel | None = None): ...

    @handler(name="d")
    def otherwise(job, user: int, content: Raising, size: Raising, parcel: Parcel | None = None): ...

    schema = data_schema(one)
    assert schema["properties"]["user"] == {"type": "integer"}
    assert schema["properties"]["size"] == {"$comment": "OSError: no description of <object object>"}
    assert "Opaque" in schema["properties"]["content"]["$comment"]
    assert schema["$defs"]["Parcel"]["properties"]["weight"] == {"title": "Weight", "type": "integer"}
    assert result_schema(one)["type"] == "array"
    assert shape_of(one) == shape_of(same)
    assert len({shape_of(each) for each in (one, other, otherwise)}) == 3


def test_default_that_json_does_not_hold_has_no_place_in_the_schema():
    @handler(name="a")
    def one(job, most: float = math.inf, least: float = 0.5, large: int = 10**30, on: bool = True, to=None): ...

    properties = data_schema(one)["properties"]
    assert {name: about["default"] for name, about in properties.items() if "default" in about} == {
        "least": 0.5, "on": True, "to": None,
    }  # fmt: skip
    assert len(shape_of(one)) == 16


def test_handler_that_collects_is_described_by_its_list():
    @handler(name="a", unique="key", collect="1s")
    def typed(job, addresses: list[Address]): ...

    @handler(name="b", unique="key", collect="1s")
    def untyped(job, rows): ...

    schema = json.loads(described(typed)[1])
    assert (schema["type"], schema["items"]) == ("array", {"$ref": "#/$defs/Address"})
    assert schema["$defs"]["Address"]["required"] == ["city"]
    assert json.loads(described(untyped)[1])["type"] == "array"


def test_schemas_are_published_within_bounds():
    @handler(name="a")
    def typed(job, user: int): ...

    @handler(name="b")
    def same(job, user: int): ...

    @handler(name="c")
    def anything(job): ...

    shape, schema = described(typed)
    assert published(map(described, (typed, same, anything))) == {shape: schema}
    assert published([("large", "x" * (SCHEMA_BYTES + 1)), ("wide", "\u00e4" * (SCHEMA_BYTES // 2 + 1))]) == {}
    many = [(f"shape-{n}", "x" * SCHEMA_BYTES) for n in range(MOST_SCHEMAS_BYTES // SCHEMA_BYTES)]
    assert published([*many, (shape, schema)]) == dict(many), "nothing is left for more"
