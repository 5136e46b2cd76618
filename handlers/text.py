"""Counts lines and words of a text. Runs in children. Owns nothing, and so may start any number of times."""

import re
from collections import Counter
from typing import Any

from supervisor import Fail, handler

MOST_COMMON = 10


@handler(timeout="1m")
def words(job: Any) -> dict[str, Any]:
    """klass `text.words`. Data: `{"text": "…"}`, or the text itself as bytes in UTF-8.

    Result: lines, words, characters, and the ten most common words with their counts.
    """
    text = _text(job.data)
    found = re.findall(r"\w+(?:'\w+)*", text.lower())
    return {
        "lines": len(text.splitlines()),
        "words": len(found),
        "characters": len(text),
        "most_common": Counter(found).most_common(MOST_COMMON),
    }


def _text(data: Any) -> str:
    if isinstance(data, bytes):
        return data.decode(errors="replace")
    if isinstance(data, dict) and isinstance(data.get("text"), str):
        return str(data["text"])
    raise Fail("bad-input", 'the data must be {"text": "…"} or bytes')  # no retry would make it better
