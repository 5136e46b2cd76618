"""Handlers that take the same data have the same shape, and others have another."""

import pydantic

from supervisor import handler
from supervisor.child.schemas import ANY, shape_of


class Address(pydantic.BaseModel):
    city: str


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
