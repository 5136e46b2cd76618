"""Checks Redis URLs, takes them apart, and masks their secrets. Runs in every process that gets a Redis URL.

Must not connect, or import redis. Users and options mean what they mean to redis-py.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from supervisor import redis_options

EMBEDDED: Final = "embedded:"
#: Why the embedded server takes no account.
OWN_PASSWORD: Final = "is the embedded server, which makes its own password; name another server, or give no account"

_FORMS: Final = (
    "redis://host:port/db, rediss://…, unix:///path/to/socket, redis+sentinel://host:port,host:port/service/db,"
    f" redis+cluster://host:port,host:port or {EMBEDDED}"
)
_ONE: Final = ("redis", "rediss")
#: By scheme: the port of each node that has none.
_SEVERAL: Final = {
    f"{scheme}+{kind}": port for scheme in _ONE for kind, port in (("sentinel", 26379), ("cluster", 6379))
}
_OF_A_CLUSTER: Final = "names a database of a Cluster, which has only database 0; leave it out"
_DATABASE: Final = re.compile(r"/?\d{0,9}/?", re.ASCII)
_SERVICE: Final = re.compile(r"/[\w.-]+(?:/\d{1,9})?/?", re.ASCII)
_NODE: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:,]+)(?::(?P<port>\d{1,5}))?", re.ASCII)


class Nodes(NamedTuple):
    """The parts of a URL that names sentinels, or nodes of a Cluster: any of those tells which server is meant."""

    is_cluster: bool
    is_tls: bool
    places: tuple[tuple[str, int], ...]
    service: str  # that the sentinels watch
    options: Mapping[str, str]
    url: str

    @property
    def scheme(self) -> str:
        """Return the scheme of a URL of one of the servers."""
        return "rediss" if self.is_tls else "redis"

    def node(self, host: str, port: int) -> str:
        """Return the URL for asking a sentinel or a node at this place, without an account or a database."""
        options = urlencode(
            {name: value for name, value in self.options.items() if name.startswith("ssl_")}, quote_via=quote
        )
        return urlunsplit((self.scheme, place_of(host, port), "", options, ""))

    def server(self, host: str, port: int) -> str:
        """Return the URL of the server that is meant now, at this place."""
        parts = split(self.url)
        account, at, _ = parts.netloc.rpartition("@")
        database = "" if self.is_cluster else parts.path.rstrip("/").partition("/")[2].partition("/")[2]
        options = [(name, value) for name, value in parse_qsl(parts.query) if not name.startswith("sentinel_")]
        netloc = f"{account}{at}{place_of(host, port)}"
        return urlunsplit((self.scheme, netloc, f"/{database}", urlencode(options, quote_via=quote), ""))


def split(url: str) -> SplitResult:
    """Take a URL apart, as urlsplit does. Raises ValueError.

    Pythons of 2025 and later refuse an address in brackets behind another node.
    """
    scheme, slashes, rest = url.partition("://")
    if scheme.lower() not in _SEVERAL:
        return urlsplit(url)
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}{slashes}{rest.removeprefix(netloc)}")._replace(netloc=netloc)


def place_of(host: str, port: int) -> str:
    """Return host and port as URLs write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def nodes(url: str) -> Nodes | None:
    """Return the parts of a valid URL that names several servers, of which one is to be found. None: it names one."""
    parts = split(url)
    if parts.scheme not in _SEVERAL:
        return None
    is_cluster = parts.scheme.endswith("cluster")
    places = tuple(_places(parts))
    service = "" if is_cluster else parts.path.strip("/").partition("/")[0]
    options = dict(parse_qsl(parts.query))
    return Nodes(is_cluster, parts.scheme.startswith("rediss"), places, service, options, url)


def for_redis_py(url: str, *, keeps_account: bool = True) -> str:
    """Return a valid URL of one server without what redis-py does not know: an account from files among it."""
    place, _, query = url.partition("?")
    left_out = redis_options.OURS
    if has_files(url) or not keeps_account:
        scheme, _, rest = place.partition("://")
        netloc, slash, path = rest.partition("/")
        place, left_out = f"{scheme}://{netloc.rpartition('@')[2]}{slash}{path}", left_out | {"username", "password"}
    options = "&".join(option for option in query.split("&") if unquote(option.partition("=")[0]) not in left_out)
    return f"{place}?{options}" if options else place


def with_password_file(url: str, path: str) -> str:
    """Return a valid URL that names this file. Raises ValueError with a clause if it can have none."""
    if url == EMBEDDED:
        raise ValueError(OWN_PASSWORD)
    return checked(f"{url}{'&' if '?' in url else '?'}password_file={quote(path)}")


def server_name(url: str) -> str | None:
    """Return the name in the server's certificate, if a valid URL says that it is not that of the address."""
    return dict(parse_qsl(split(url).query)).get("ssl_server_name")


def has_files(url: str) -> bool:
    """Return whether a valid URL names files with the account."""
    return bool({"username_file", "password_file"} & parse_qs(split(url).query).keys())


def _places(parts: SplitResult) -> list[tuple[str, int]]:
    """Return host and port of each node. Raises ValueError."""
    found = []
    for place in parts.netloc.rpartition("@")[2].split(","):
        match = _NODE.fullmatch(place)
        port = int(match["port"] or _SEVERAL[parts.scheme]) if match else 0
        if not match or not 0 < port < 65536:
            raise ValueError(f"must be {_FORMS}")
        found.append((unquote(match["host"].strip("[]")), port))
    return found


def can_be_host(name: str) -> bool:
    """Return whether a name can be looked up, and be part of a URL. Of others redis-py and Python raise anything."""
    try:
        name.encode("idna")
    except UnicodeError:  # a part of it is empty, too long, or no text for a name
        return False
    return not re.search(r"[\s,/@?#\[\]]", name)


def checked(url: str) -> str:
    """Return the url if a client can use it. Raises ValueError with a clause that follows its name and `redacted(url)`.

    Files that an option names must exist.
    """
    if url == EMBEDDED:
        return url
    parts = _split_if_good(url)
    if re.search(r"[\x00-\x20\x7f]", url):
        raise ValueError("has a space or a control character; write it as %20 or the like")
    if parts.scheme != "unix" and "@" in f"{parts.path}{parts.fragment}":
        raise ValueError("has a / or # in its user or password; write it as %2F or %23")
    if parts.fragment:
        raise ValueError("has a #; write it as %23")
    _check_path(parts)
    is_sentinel = parts.scheme.endswith("+sentinel")
    redis_options.check(parts.query, is_tls=parts.scheme.startswith("rediss"), is_sentinel=is_sentinel)
    options = parse_qs(parts.query)
    accounts = {"username": parts.username, "password": parts.password}
    for name, given in (accounts | {"sentinel_username": None, "sentinel_password": None}).items():
        if f"{name}_file" in options and (given or name in options):
            raise ValueError(f"has a {name} and the option {name}_file; keep one of them")
    if parts.scheme.endswith("+cluster") and options.get("db", ["0"]) != ["0"]:
        raise ValueError(_OF_A_CLUSTER)
    return url


def _check_path(parts: SplitResult) -> None:
    if parts.scheme.endswith("+sentinel"):
        if not _SERVICE.fullmatch(parts.path):
            raise ValueError(
                "must name the service that its sentinels watch, like redis+sentinel://host:26379/mymaster/0"
            )
    elif parts.scheme.endswith("+cluster"):
        if parts.path not in ("", "/", "/0"):
            raise ValueError(_OF_A_CLUSTER)
    elif parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise ValueError("names a database that is no number; write it like redis://host:6379/0")


def _split_if_good(url: str) -> SplitResult:
    parts = SplitResult("", "", "", "", "")
    try:
        parts = split(url)
        if parts.scheme in _SEVERAL:
            is_good = bool(_places(parts))
        elif parts.scheme in _ONE:
            is_good = parts.port != 0 and bool(parts.hostname)
        else:
            is_good = parts.scheme == "unix" and not parts.hostname and len(parts.path) > 1
    except ValueError:  # about the port or brackets
        is_good = False
    if not is_good:
        raise ValueError(f"must be {_FORMS}")
    if parts.scheme in _ONE and "," in parts.netloc.rpartition("@")[2]:
        raise ValueError("names several servers; only redis+sentinel and redis+cluster have several")
    hosts = [host for host, _ in _places(parts)] if parts.scheme in _SEVERAL else [unquote(parts.hostname or "")]
    if not all(map(can_be_host, hosts)):
        raise ValueError("names a host that there cannot be: a part of its name is empty, too long or no name")
    return parts


#: The part of an address that is certainly host, numeric port and database.
_PLACE: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]*\]|[^/:#\[\]]*)(?::\d*(?=/|$))?(?:/[\w-]*/?$)?")
#: The part of an address of several servers that is certainly hosts, numeric ports, service and database.
_PLACES: Final = re.compile(
    r"(?:(?:\[[0-9A-Fa-f:.]*\]|[^/:#,\[\]]*)(?::\d*(?=[/,]|$))?(?:,|(?=/)|$))*(?:/[\w.-]*(?:/\d*)?/?$)?"
)
_MISPLACED: Final = re.compile(r":[^/@]*@")


# secrets


def secrets(url: str) -> tuple[str, ...]:
    """Return the passwords in a url: the account's, and that of the client certificate's key."""
    parts = split(url)
    options = parse_qs(parts.query)
    found = [
        unquote(parts.password or ""),
        *(value for name in sorted(redis_options.SECRET) for value in options.get(name, ())),
    ]
    return tuple(dict.fromkeys(filter(None, found)))


def secret_files(url: str) -> tuple[str, ...]:
    """Return the files with a password or a key that a valid url names."""
    return tuple(value for name, value in parse_qsl(split(url).query) if name in redis_options.SECRET_FILES)


def redacted(url: str) -> str:
    """Return the url, valid or not, with *** for all that may be secret. Nothing else may show a url.

    An invalid url is hidden generously: all before the last @, all from a port that is no number on, and the values of
    unknown options.
    """
    if url.startswith("unix:///"):  # no account: an @ is part of the path
        path, options_at, options = url.partition("?")
        path, hash_at, _ = path.partition("#")
        place = _MISPLACED.sub(":***@", path) + (f"{hash_at}***" if hash_at else "")
    else:
        account, at, rest = url.rpartition("@")
        whole = account if at else url
        scheme, slashes, account = whole.rpartition("://") if whole.count("://") == 1 else ("", "", whole)
        user, colon, _ = account.partition(":")
        place, options_at, options = (rest if at else account).partition("?")
        plain = (_PLACES if scheme in _SEVERAL else _PLACE).match(place)
        if plain and plain.end() < len(place) and scheme != "unix":
            place = f"{plain[0]}***"
        hidden = f"{user + colon if colon and slashes else ''}***@" if at else ""
        place = f"{scheme}{slashes}{hidden}{place}"
    shown = "&".join(map(_redacted_option, options.split("&")))
    return f"{place}{options_at}{shown}"


def _redacted_option(option: str) -> str:
    name, equals, value = option.partition("=")
    if not equals:
        return option if not option or option in redis_options.SHOWN else "***"
    # A value with one of these may hold a second option, written with a wrong or an encoded separator.
    harmless = unquote(name) in redis_options.SHOWN and not set(unquote(value)) & set("&;#?=%")
    return f"{name}={value if harmless else '***'}"
