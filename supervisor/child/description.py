"""Describes the handlers of a package as JSON. Runs in a process of its own, which `cli/lib/described.py` starts.

Imports foreign code, so it must not run in a process that holds anything. Whatever that code prints goes to stderr.
"""

import os
import sys
import traceback
from dataclasses import asdict
from inspect import getdoc
from typing import Any, Final

import orjson

from supervisor.child.handler import Handler, HandlersError
from supervisor.child.loading import foreign_frames, load
from supervisor.child.schemas import data_schema, result_schema
from supervisor.messages import HandlerSettings

_UNSET: Final = asdict(HandlerSettings().within("basic"))


def main(root: str) -> None:
    """Write the descriptions by klass to stdout, or a sentence that says why there are none."""
    answer = os.dup(1)
    os.dup2(2, 1)
    handlers = loaded(root)
    with open(answer, "wb") as pipe:
        if isinstance(handlers, str):
            pipe.write(orjson.dumps(handlers))
        else:
            pipe.write(orjson.dumps({klass: describe(handler) for klass, handler in sorted(handlers.items())}))


def loaded(root: str) -> dict[str, Handler[..., Any]] | str:
    """Import the handlers of a package, and return them by klass, or a sentence that says why they cannot be had."""
    try:
        return load(root)
    except HandlersError as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001  foreign code: whatever it raises is told
        return f"the handlers cannot be imported: {type(error).__name__}: {error}{_place(error)}"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(foreign_frames(error.__traceback__))
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def describe(handler: Handler[..., Any]) -> dict[str, Any]:
    """Return what can be said of a handler without its code.

    `data`, `result`: JSON schemas; None where any JSON fits. `parameters`: their names in order. `settings`: those that
    were declared. `options`: what each of its typed puts has. `rhythm`: of its recurring job.
    """
    parameters = handler.parameters
    settings = {name: value for name, value in asdict(handler.settings).items() if value != _UNSET[name]}
    return {
        "function": f"{handler.function.__module__}.{getattr(handler.function, '__qualname__', '')}",
        "doc": (getdoc(handler.function) or "").partition("\n")[0],
        "parameters": None if parameters is None else list(parameters.names),
        "data": data_schema(handler),
        "result": result_schema(handler),
        "settings": settings,
        "options": handler.plain_options,
        "rhythm": dict(handler.rhythm),
    }


if __name__ == "__main__":
    main(sys.argv[1])
