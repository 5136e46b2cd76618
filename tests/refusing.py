"""A proxy that lets no command wait at the server, and remembers all commands."""

import math
import re
import threading

import hiredis

from tests.between import Between

#: Commands that block their connection at the server, or keep it for pushes.
WAITS = re.compile(rb"B(LPOP|RPOP|LMOVE|LMPOP|RPOPLPUSH|ZPOPMIN|ZPOPMAX|ZMPOP)|WAIT(AOF)?|[PS]?SUBSCRIBE|MONITOR")


class Refusing(Between):
    """The proxy passes a refused command on under a name that no server knows, so that answers keep their order."""

    def __init__(self, path, upstream, others=(), most_words=math.inf):
        """`others`: names of further commands to refuse. `most_words`: longer ones are refused, too."""
        self._most_words = most_words
        self._others = {name.encode() for name in others}
        self.url = f"unix://{path}"
        self.seen = []
        self.refused = []
        self._requests_of = {}  # by connection
        self.news = threading.Condition()
        super().__init__(path, upstream)

    def request(self, far, data):
        reader = self._requests_of.setdefault(far, hiredis.Reader())
        reader.feed(data)
        while (words := reader.gets()) is not False:
            super().request(far, hiredis.pack_command(self._let_through(tuple(words))))
        return True

    def _let_through(self, words):
        name = words[0].upper()
        waits = WAITS.fullmatch(name) or (name.startswith(b"XREAD") and b"BLOCK" in map(bytes.upper, words))
        is_refused = waits or name in self._others or len(words) > self._most_words
        with self.news:
            (self.refused if is_refused else self.seen).append(_shown(name, words))
            self.news.notify_all()
        return (b"REFUSED-" + name, *words[1:]) if is_refused else words

    @property
    def connections(self):
        """Return how many connections there were."""
        return len(self._requests_of)


def _shown(name, words):
    return (b" ".join((name, words[1].upper())) if name in {b"SCRIPT", b"CLIENT"} else name).decode()
