"""What programs need to read to work at all: the default list of `--sandbox strict`. Runs in the zygote, which has
imported the handlers, and so knows where their modules come from.

Only names; that it is readable, and nothing else, is the kernel's to hold (`landlock`). Must not read what lies there.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

#: Programs and their libraries, and what the kernel tells of itself.
SYSTEM: Final = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/proc",
    "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
#: Settings that ordinary programs look for. No secrets: /etc as a whole has some.
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
#: What may be written as well.
WRITABLE: Final = ("/dev/null",)
#: A directory in which so much lies that being on the import path is no reason to have all of it read.
_TOO_WIDE: Final = frozenset({"/", "/root", "/home", "/tmp", "/var", "/var/tmp", "/etc", "/opt", "/srv", "/run"})


def default_list() -> list[str]:
    """Real paths of all that is there of it, none below another."""
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
    if too_wide:  # only what has been imported from there
        for module in tuple(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and os.path.isabs(file):
                yield from _topmost_below(too_wide, os.path.realpath(file))


def _topmost_below(directories: Iterable[str], file: str) -> Iterator[str]:
    """The package or module that `file` belongs to, if it lies below one of these directories: the deepest of them."""
    above = [directory for directory in directories if is_below(file, directory)]
    if above:
        directory = max(above, key=len)
        yield os.path.join(directory, os.path.relpath(file, directory).split(os.sep)[0])


def is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def outermost(paths: Iterable[str]) -> list[str]:
    """Without those that lie below another."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split(os.sep)):
        if not kept or not is_below(path, kept[-1]):
            kept.append(path)
    return kept


def carved(paths: Iterable[str], hidden: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """The same without what is hidden, wherever it lies. True: of this directory only its list of names is to be read,
    and those of all below it, as the entries that may be read follow.
    """
    secret = {os.path.realpath(path) for path in hidden}
    for path in paths:
        yield from _carve(path, secret)


def _carve(path: str, hidden: set[str]) -> Iterator[tuple[str, bool]]:
    if any(is_below(path, secret) for secret in hidden):
        return
    if not any(is_below(secret, path) for secret in hidden):
        yield path, False
        return
    yield path, True
    for entry in sorted(os.listdir(path)):
        below = os.path.join(path, entry)
        if os.path.realpath(below) == below:  # a link leads elsewhere, where other rules hold
            yield from _carve(below, hidden)
