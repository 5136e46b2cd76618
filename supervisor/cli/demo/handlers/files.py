"""Counts lines and tokens of Python files. Runs in the demo's children. Must not fail on a bad file."""

import io
import tokenize
from pathlib import Path
from typing import Any

from supervisor import handler

#: Tokens that are no code: layout, comments, and the file's end.
LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)


@handler(timeout="60s")
def tokens(job: Any) -> dict[str, int]:
    """Return lines, lines with code, and tokens of the file at `path` in the job's data."""
    return count(Path(job.data["path"]))


def count(path: Path) -> dict[str, int]:
    """Return the counts of a file. Invalid Python has its lines, and the tokens up to the error."""
    content = path.read_bytes()
    found = 0
    code_lines: set[int] = set()
    try:
        for token in tokenize.tokenize(io.BytesIO(content).readline):
            found += 1
            if token.type not in LAYOUT:
                code_lines.update(range(token.start[0], token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):  # other tools' test data has errors on purpose
        pass
    return {"lines": len(content.splitlines()), "code": len(code_lines), "tokens": found}
