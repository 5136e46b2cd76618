"""The default list of readable paths under `--sandbox strict`. Runs in the zygote, which knows the imported modules.

Owns the list. `landlock` enforces it. Must not read what lies at the paths.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

#: Programs and their libraries, and what the kernel reports of itself.
SYSTEM: Final = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/proc",
    "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
#: Settings that ordinary programs look for. Not /etc as a whole, which holds secrets.
SETTINGS: Final = tuple(
    f"/etc/{name}"
    for name in (
        "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts",
        "gai.conf", "group", "host.conf", "hostname", "hosts", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
        "ld.so.preload", "locale.alias", "locale.conf", "localtime", "machine-id", "magic", "mailcap", "mime.types",
        "networks", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "protocols",
        "python3", "resolv.conf", "rpc", "services", "shells", "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf",
        "terminfo", "timezone",
    )
)  # fmt: skip
DEVICES: Final = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
#: Devices that may be written as well.
WRITABLE: Final = ("/dev/null",)
#: Directories too large to be readable just because they are on the import path.
_TOO_WIDE: Final = frozenset({"/", "/root", "/home", "/tmp", "/var", "/var/tmp", "/etc", "/opt", "/srv", "/run"})


def default_list() -> list[str]:
    """Return the real paths of the list that exist, none below another."""
    wanted = [*SYSTEM, *SETTINGS, *DEVICES, *_of_the_interpreter(), *_of_the_import_path()]
    return outermost({os.path.realpath(path) for path in wanted if os.path.exists(path)})


def _of_the_interpreter() -> Iterator[str]:
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    yield os.path.dirname(os.path.realpath(sys.executable))
    yield os.path.dirname(os.__file__)


def _of_the_import_path() -> Iterator[str]:
    too_wide = set()
    for entry in sys.path:
        path = os.path.realpath(entry or os.curdir)
        if path in _TOO_WIDE:
            too_wide.add(path)
        else:
            yield path
    if too_wide:  # from there only the imported modules
        for module in tuple(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and os.path.isabs(file):
                yield from _topmost_below(too_wide, os.path.realpath(file))


def _topmost_below(directories: Iterable[str], file: str) -> Iterator[str]:
    """Yield the package or module of `file`, as an entry of the deepest of the `directories` that hold it."""
    above = [directory for directory in directories if is_below(file, directory)]
    if above:
        directory = max(above, key=len)
        yield os.path.join(directory, os.path.relpath(file, directory).split(os.sep)[0])


def is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths without those that lie below another."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split(os.sep)):
        if not kept or not is_below(path, kept[-1]):
            kept.append(path)
    return kept


def without_hidden(paths: Iterable[str], hidden: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield the paths without the hidden ones, wherever those lie.

    True: only the names in this directory and below are readable. Readable entries follow on their own.
    """
    secret = {os.path.realpath(path) for path in hidden}
    for path in paths:
        yield from _split_around(path, secret)


def _split_around(path: str, hidden: set[str]) -> Iterator[tuple[str, bool]]:
    if any(is_below(path, secret) for secret in hidden):
        return
    if not any(is_below(secret, path) for secret in hidden):
        yield path, False
        return
    yield path, True
    for entry in sorted(os.listdir(path)):
        below = os.path.join(path, entry)
        if os.path.realpath(below) == below:  # the target of a link has rules of its own
            yield from _split_around(below, hidden)
