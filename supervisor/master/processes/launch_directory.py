"""The directory that a supervisor was started in, by its name: what lies there may be another one tomorrow. Runs in
master. Must not go anywhere.

Deployments often swap a link (`/app/current` -> `releases/7`). A process stays in the directory that the link named
when it went there; its name is what the one who starts it meant.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchDirectory:
    name: str

    @classmethod
    def here(cls) -> "LaunchDirectory":
        """The working directory as a shell calls it (`PWD`), where that is the same; else as the kernel does."""
        name = os.environ.get("PWD", "")
        try:
            same = os.path.isabs(name) and os.path.samefile(name, ".")
        except OSError:  # it says something else, or what cannot be reached
            same = False
        return cls(name if same else os.getcwd())

    def now(self) -> str:
        """Where that name leads at this moment, without links; empty: to where this process is."""
        try:
            if os.path.samefile(self.name, "."):
                return ""
        except PermissionError:  # we were put here, and could not go back
            return ""
        except OSError:  # it is gone: who is to go there will say so
            return self.name
        return os.path.realpath(self.name)
