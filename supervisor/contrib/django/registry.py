"""Finds the tasks that the code declares, by their paths. Used in applications, and runs in zygote and children.

Must not import what a job names: a payload names a declared task, never a module.
"""

import sys
from collections.abc import Iterator
from typing import Any

from django.utils.module_loading import autodiscover_modules

from supervisor.contrib.django.interface import base


def declared() -> Iterator[Any]:
    """Yield each task once, of the modules `tasks` of the installed apps and of all others that are imported."""
    autodiscover_modules("tasks")
    seen: set[str] = set()
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            # isinstance would wake lazy objects, such as Django's admin site
            if issubclass(type(value), base.Task) and value.module_path not in seen:
                seen.add(value.module_path)
                yield value


def task_of(path: str) -> Any:
    """Return the task of a path, or None."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if not issubclass(type(found), base.Task):
        found = next((task for task in declared() if task.module_path == path), None)
    return found
