"""Hides fields whose names match a pattern. Runs in the web server's process.

All answers pass through here, pages and API alike, so that no page can forget it. Fields are hidden in what authors of
jobs and handlers have written. The fields of an answer itself have names of ours, and pages need them whatever the
pattern is. Must not change what it is given.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

HIDDEN: Final = "(hidden)"
#: The fields of answers that hold values of other people.
_FOREIGN: Final = frozenset({"data", "result", "saved", "failure", "history"})
#: Names of things, by which pages link to them. They are data of no job.
_NAMES: Final = frozenset({"jid", "klass", "queue", "lane", "worker", "supervisor", "group", "key", "name", "state"})
#: Bytes in which no field can be found.
_OPAQUE: Final = "data_hex"
_DEEPEST: Final = 100
#: The value of a header may begin with a word, as in `Authorization: Bearer abc`. What comes after it is the secret.
_SCHEME: Final = r"""b?["']?(?:basic|bearer|digest|negotiate|ntlm|token|apikey)\s[^\n]*"""


class Hiding:
    """Hides the values of fields, and what stands behind such names in texts, like `password=…` in an output."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """`patterns`: parts of names of fields, in any case. Raises ValueError for an empty one."""
        if not all(patterns):
            raise ValueError("a pattern of fields to hide is empty")
        words = "|".join(re.escape(pattern) for pattern in patterns)
        self._field = re.compile(words, re.IGNORECASE) if patterns else None
        self._in_text = re.compile(
            rf"""((?:{words})[\w.-]{{0,64}}\\{{0,8}}["']?\s{{0,8}}[:=]\s{{0,8}})({_SCHEME}|b?\\*"(?:[^"\\\n]|\\.)*"?|b?'[^'\n]*'?|[^\s,;&)}}\]]+)""",
            re.IGNORECASE,
        )

    def hide(self, value: Any, *, is_foreign: bool = False) -> Any:
        """Return an answer without hidden fields: plain JSON values of any shape. `is_foreign`: all of it may be."""
        return value if self._field is None else self._hide(value, "", 0, is_foreign=is_foreign)

    def _hide(self, value: Any, name: str, depth: int, *, is_foreign: bool) -> Any:
        assert self._field is not None
        if (name == _OPAQUE and value is not None) or depth > _DEEPEST:
            return HIDDEN
        match value:
            case str():
                if (name in _NAMES and not is_foreign) or not self._field.search(value):
                    return value
                return self._in_text.sub(rf"\1{HIDDEN}", value)
            case Mapping():
                return {key: self._shown(each, str(key), depth, is_foreign=is_foreign) for key, each in value.items()}
            case list() | tuple():
                return [self._hide(each, "", depth + 1, is_foreign=is_foreign) for each in value]
        return value

    def _shown(self, value: Any, name: str, depth: int, *, is_foreign: bool) -> Any:
        assert self._field is not None
        if is_foreign and value is not None and self._field.search(name):
            return HIDDEN
        return self._hide(value, name, depth + 1, is_foreign=is_foreign or name in _FOREIGN)
