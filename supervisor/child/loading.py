"""Imports handlers, and returns them by klass. Runs in zygote and children, and in applications."""

import importlib
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from supervisor.child import handlers
from supervisor.child.handler import Handler, HandlersError, module_of

_PACKAGE = Path(__file__).parents[1]
_NOT_FOREIGN = (
    *(f"{_PACKAGE / folder}{os.sep}" for folder in ("zygote", "child", "sandbox", "linux")),
    str(Path(importlib.__file__).parent),
    "<frozen importlib",
)


def load(root: str, level: str = "basic") -> dict[str, Handler[..., Any]]:
    """Import module or package `root` (dotted, or a path below the working directory) and all modules below it.

    Returns the handlers by klass: the module's path inside `root`, and the function's name. `level`: the run's sandbox,
    for handlers without a level of their own. Runs foreign code, which may raise anything. Raises HandlersError if
    there is no such module, no handler, or a klass twice.
    """
    root = module_of(root)
    import_all(root)
    found: dict[str, Handler[..., Any]] = {}
    for one in handlers.registered():
        klass = one.klass_below(root)
        if klass in found and found[klass].function is not one.function:
            raise HandlersError(f"two handlers are named {klass!r}: give one of them another name=")
        # The module's own handler is the one that is prepared: jobs of `job.put(welcome.job(…))` use its types, too.
        one.settings = one.settings.within(level)
        one.name = klass  # so that `job` knows it in this process, whatever its root is
        found[klass] = one
    if not found:
        raise HandlersError(f"no @handler in {root!r}: decorate at least one function below it")
    for klass, one in found.items():
        one.prepare(klass)
    return found


def import_all(root: str) -> None:
    """Import a module or package and all below it, from the working directory or the import path.

    Raises HandlersError if there is none of this name, and whatever foreign code raises.
    """
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        package = importlib.import_module(root)
    except ModuleNotFoundError as error:
        if error.name is None or not (root == error.name or root.startswith(error.name + ".")):
            raise
        raise HandlersError(
            f"there is no module {root!r} below {Path.cwd()} or on the import path: name it with --handlers"
        ) from error
    for name in _modules_below(package):
        importlib.import_module(name)


def foreign_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of foreign code on: without ours and those of the import system."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_NOT_FOREIGN):
        frames = frames.tb_next
    return frames


def _modules_below(package: ModuleType) -> list[str]:
    if not hasattr(package, "__path__"):
        return []
    found: list[str] = []
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        found.append(module.name)
        if module.ispkg:
            found += _modules_below(importlib.import_module(module.name))
    return [name for name in found if not name.endswith(".__main__")]
