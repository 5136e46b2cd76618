"""Generates the sync client from the async one: `python -m tests.engine.client.sync_from_async`. Needs ruff.

The async modules are written by hand. A line that ends in `# async only` is dropped, and one that begins with
`# sync only:` is uncommented.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_NAMES: Final = ("steps", "shards", "calls", "handles", "batches", "config", "doors", "queues", "client")
CLIENT: Final = Path(__file__).parents[3] / "supervisor/engine/client"
#: The hand-written modules, and the modules that are generated from them.
MODULES: Final = {f"async_{name}.py": f"sync_{name}.py" for name in _NAMES}
#: Sentences that differ between the two clients.
PROSE: Final = (
    (r"for asyncio programs\. Use it as an async context", "for programs that block. Use it as a context"),
    (r"Calls that are under way [^\n]*\n[^\n]* may block\.", "Threads may share a client."),
    (r"is fetched at once, job by job\.", "is fetched when it is first asked for."),
    (r"raises LeaseholdError; `await client.job\(jid\)` has it\.", "is fetched as it is when it is first asked for."),
)
#: Replacements in code, and of names in docstrings.
CODE: Final = (
    (r".*  # async only\n", ""),
    (r"# sync only: ?", ""),
    (r"\basync (?=def |with |for )|\bawait ", ""),
    (r"\b__a(?=enter__|exit__)", "__"),
    (r"\b([Aa])n Async(?=[A-Z])", r"\1 "),
    (r"\bAsync(?=[A-Z])", ""),
    (rf"\basync_(?={'|'.join(_NAMES)}|store)", "sync_"),
    (r"\bredis\.asyncio\b", "redis"),
)


def generated(source: str) -> str:
    """Return the text of a generated module. Raises CalledProcessError if ruff does not understand it."""
    text = (CLIENT / source).read_text()
    for pattern, replacement in (*PROSE, *CODE):
        text = re.sub(pattern, replacement, text)
    head = f"# Generated from {source} by `python -m tests.engine.client.sync_from_async`; do not edit.\n"
    return _by_ruff("format", _by_ruff("check", head + text, "--select=I", "--fix-only", "--exit-zero"))


def _by_ruff(verb: str, text: str, *options: str) -> str:
    command = [sys.executable, "-m", "ruff", verb, "--quiet", *options, f"--stdin-filename={CLIENT}/generated.py", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=CLIENT).stdout


def main() -> None:
    for source, target in MODULES.items():
        (CLIENT / target).write_text(generated(source))


if __name__ == "__main__":
    main()
