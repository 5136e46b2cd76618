"""Tells own names in a Host header from foreign ones. Pure. Runs in the master, in the HTTP thread.

A hostile page can make its own domain resolve to this address (DNS rebinding). The browser then lets the page read
this supervisor's answers. The Host header reveals it: it has the public name of that page.
"""

import ipaddress
import re
from collections.abc import Collection
from typing import Final

#: Domains without public names: they are reserved for local machines and Kubernetes' services.
_PRIVATE: Final = (".localhost", ".local", ".internal", ".home.arpa", ".svc")
_HOST: Final = re.compile(r"(?:\[(?P<six>[^\]]*)\]|(?P<name>[^:]*))(?::\d*)?")


def is_own_name(header: str, names: Collection[str]) -> bool:
    """Return True for an address, a name without a dot or in a private domain, one of `names`, and an empty header."""
    match = _HOST.fullmatch(header.strip())
    if match is None:
        return False
    name = (match["six"] or match["name"] or "").lower().removesuffix(".")
    return "." not in name or name.endswith(_PRIVATE) or name in names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
