"""The launch directory, by its name, which a deploy may point elsewhere. Runs in the master. Never calls chdir.

Deployments often swap a symbolic link (`/app/current` -> `releases/7`). A process stays in the directory that the link
named when the process went there. The name is what the operator meant.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchDirectory:
    name: str

    @classmethod
    def here(cls) -> "LaunchDirectory":
        """Name the working directory as the shell does (`PWD`), if that is the same one; else as the kernel does."""
        name = os.environ.get("PWD", "")
        try:
            same = os.path.isabs(name) and os.path.samefile(name, ".")
        except OSError:  # PWD is stale, or its directory cannot be reached
            same = False
        return cls(name if same else os.getcwd())

    def now(self) -> str:
        """Return where the name leads now, without links; empty if that is this process's working directory."""
        try:
            if os.path.samefile(self.name, "."):
                return ""
        except PermissionError:  # a privileged process has put us here
            return ""
        except OSError:  # the directory is gone: the zygote that is to go there says so
            return self.name
        return os.path.realpath(self.name)
