"""Compresses files. Runs in children; owns the `.part` files beside its results.

May start twice, even at the same time: the result appears whole, in one step, and a start that came later wins.
"""

import glob
import gzip
import shutil
from pathlib import Path
from typing import Any

from supervisor import Fail, handler


@handler(timeout="10m")
def compress(job: Any) -> dict[str, Any]:
    """klass `files.compress`. Data: `{"path": "/absolute/path", "remove": false}`.

    Writes `<path>.gz` with the mode of the file, then removes the file if `remove` is true. Result: the new path and
    both sizes in bytes; the old size is null where an earlier start had removed the file already.
    """
    source, remove = _arguments(job.data)
    target = source.with_name(source.name + ".gz")
    if not source.exists() and remove and target.exists():
        return {"path": str(target), "from_bytes": None, "to_bytes": target.stat().st_size}
    part = _fresh_part(target, job.token)
    with source.open("rb") as plain, part.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        shutil.copyfileobj(plain, packed)
    shutil.copymode(source, part)
    sizes = {"from_bytes": source.stat().st_size, "to_bytes": part.stat().st_size}
    part.replace(target)
    if remove:
        source.unlink(missing_ok=True)
    return {"path": str(target), **sizes}


def _arguments(data: Any) -> tuple[Path, bool]:
    if not isinstance(data, dict) or not isinstance(data.get("path"), str) or not Path(data["path"]).is_absolute():
        raise Fail("bad-input", 'the data must be {"path": "/absolute/path"}: the working directory is the job\'s own')
    return Path(data["path"]), bool(data.get("remove", False))


def _fresh_part(target: Path, token: int) -> Path:
    """Return a name that no other start uses, since tokens only grow. Remove what earlier starts have left."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        number = left.name.split(".")[-2]
        if number.isdecimal() and int(number) < token:
            left.unlink(missing_ok=True)
    return target.with_name(f".{target.name}.{token}.part")
