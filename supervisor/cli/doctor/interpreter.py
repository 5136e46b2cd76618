"""Says how the running Python was built. Used in the command's process, and by the benchmarks.

Imports nothing of ours, so that a benchmark can run this file with the interpreter of a peer.
"""

import platform
import shlex
import sys
import sysconfig
from typing import NamedTuple


class Build(NamedTuple):
    """An interpreter. Profile-guided and link-time optimisation make the same code run up to a quarter faster."""

    version: str
    is_profile_guided: bool
    is_link_time_optimised: bool

    @property
    def is_optimised(self) -> bool:
        return self.is_profile_guided and self.is_link_time_optimised

    def __str__(self) -> str:
        named = {"PGO": self.is_profile_guided, "LTO": self.is_link_time_optimised}
        having = " and ".join(name for name, has in named.items() if has)
        lacking = " and ".join(name for name, has in named.items() if not has)
        words = [f"with {having}" if having else "", f"without {lacking}" if lacking else ""]
        return f"{self.version}, built {', '.join(filter(None, words))}"


def build() -> Build:
    """Return the build of the interpreter that runs this."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if "deb_system" in sysconfig.get_scheme_names():
        # Debian and Ubuntu use both, but take the options out of the configuration that sysconfig reads.
        return Build(version, True, True)
    options = shlex.split(str(sysconfig.get_config_var("CONFIG_ARGS") or ""))
    names = [option.partition("=")[0] for option in options if not option.endswith("=no")]
    return Build(version, "--enable-optimizations" in names, "--with-lto" in names)


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
