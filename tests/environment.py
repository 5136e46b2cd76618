"""The environment of programs that tests start."""

import os


def without_settings() -> dict[str, str]:
    """Return this process's environment without the settings of Leasehold."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
