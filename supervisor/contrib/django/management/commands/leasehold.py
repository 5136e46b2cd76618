"""`manage.py leasehold …`: the command `leasehold` with the project's settings. Runs in the command's process.

Executes it in place of this process, because a supervisor must not have imported the application.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """`leasehold`, which finds Redis and the handlers by the project's settings."""

    help = "Run background tasks, and look at them: `manage.py leasehold --help`."

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Become `leasehold`. Its flags are not Django's."""
        self._become(argv[2:])

    def handle(self, *words: str, **_: Any) -> None:
        """Become `leasehold`, called by `call_command`."""
        self._become(words)

    def _become(self, words: Sequence[str]) -> None:
        environment = {**settings_as_variables(), **os.environ}
        os.execve(sys.executable, [sys.executable, "-m", "supervisor", *words], environment)


def settings_as_variables() -> dict[str, str]:
    """Return what the first backend of ours says in TASKS, as variables of `leasehold`."""
    found = {"LEASEHOLD_HANDLERS": "supervisor.contrib.django.handlers"}
    for backend in getattr(settings, "TASKS", {}).values():
        if backend.get("BACKEND") == "supervisor.contrib.django.backend.LeaseholdBackend":
            options = backend.get("OPTIONS", {})
            names = {"redis_url": "LEASEHOLD_REDIS_URL", "namespace": "LEASEHOLD_NAMESPACE"}
            return {**found, **{names[name]: options[name] for name in names if options.get(name)}}
    return found
