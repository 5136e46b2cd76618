"""The producer's cost of a typed put beside a plain one: `python -m tests.bench.typed_puts [URL]`.

A figure is this process's time for one put. The rows take turns over nine rounds. The round trip is equal for all.
"""

import statistics
import sys
from collections.abc import Callable
from time import process_time

import pydantic

from supervisor import Client, handler

ROUNDS = 9
PUTS = 3000


class Receipt(pydantic.BaseModel):
    number: int
    lines: list[str]


@handler(name="names")
def names(job, user, template="plain"): ...


@handler(name="types")
def types(job, user: int, template: str = "plain"): ...


@handler(name="model")
def model(job, receipt: Receipt, user: int): ...


def cost_us(put: Callable[[], object]) -> float:
    begin = process_time()
    for _ in range(PUTS):
        put()
    return (process_time() - begin) / PUTS * 1e6


def main(url: str) -> None:
    receipt = Receipt(number=7, lines=["one", "two", "three"])
    with Client(url, "typed-puts") as client:
        queue = client.queue("default")
        by_names, by_types, by_model = (one.with_options(client=client) for one in (names, types, model))
        data = {"receipt": receipt.model_dump(), "user": 7}
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "names": (lambda: queue.put("names", {"user": 7}), lambda: by_names.put(user=7)),
            "types": (lambda: queue.put("types", {"user": 7}), lambda: by_types.put(user=7)),
            "model": (lambda: queue.put("model", data), lambda: by_model.put(receipt=receipt, user=7)),
        }
        for name, (plain, typed) in ways.items():
            cost_us(plain), cost_us(typed)
            more = [cost_us(typed) - cost_us(plain) for _ in range(ROUNDS)]
            print(f"{name}: {statistics.median(more):.1f} us more ({min(more):.1f} - {max(more):.1f})")  # noqa: T201
        queue.delete()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "embedded:")
