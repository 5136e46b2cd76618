"""Answers of sentinels and nodes of a Cluster, also such as real ones never give."""

#: The slot of the namespace `jobs`.
SLOT = 9631


def encoded(value: object) -> bytes:
    """A reply as Redis sends it."""
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(str(value)), str(value).encode())


def primary(host: str, port: object, flags: str = "master") -> bytes:
    return encoded(["name", "m", "ip", host, "port", port, "flags", flags])


def slots(*nodes: list[object]) -> bytes:
    return encoded([[0, SLOT - 1, ["other", 1, "id", []]], [SLOT, 16383, *nodes]])
