"""Tells names of this supervisor in a Host header from foreign ones. Pure. Runs in master, in the HTTP thread.

A stranger's page can have the stranger's own name lead to this address (DNS rebinding). The browser then takes this
supervisor for that site, and lets the page read what it shows. The name in Host tells: it is a public one.
"""

import ipaddress
import re
from collections.abc import Collection
from typing import Final

#: Names below these cannot be registered: machines of this network, and Kubernetes' services, have them.
_PRIVATE: Final = (".localhost", ".local", ".internal", ".home.arpa", ".svc")
_HOST: Final = re.compile(r"(?:\[(?P<six>[^\]]*)\]|(?P<name>[^:]*))(?::\d*)?")


def is_ours(header: str, names: Collection[str]) -> bool:
    """True for an address, a name without a dot or of a private domain, one of `names`, and where none is given."""
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
