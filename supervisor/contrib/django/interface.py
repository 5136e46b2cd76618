"""The modules of django.tasks, of Django 6 or of the package django-tasks. Used in applications and children."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

_PACKAGE: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"
try:
    tasks: Any = import_module(_PACKAGE)
    base: Any = import_module(f"{_PACKAGE}.base")
    backends: Any = import_module(f"{_PACKAGE}.backends.base")
    exceptions: Any = import_module(f"{_PACKAGE}.exceptions")
    signals: Any = import_module(f"{_PACKAGE}.signals")
except ModuleNotFoundError as missing:
    raise ImportError("tasks need Django 6, or the package django-tasks: pip install 'leasehold[django]'") from missing
