"""The handlers that come with the repository."""

import gzip
from pathlib import Path
from types import SimpleNamespace

import pytest

from handlers import files, text
from supervisor.child.orders import Fail


def test_words_are_counted():
    found = text.words(SimpleNamespace(data={"text": "To be,\nor not to be. Isn't it?"}))
    assert (found["lines"], found["words"], found["characters"]) == (2, 8, 30)
    assert found["most_common"][:2] == [("to", 2), ("be", 2)]
    assert text.words(SimpleNamespace(data=b"two words \xff"))["words"] == 2
    with pytest.raises(Fail):
        text.words(SimpleNamespace(data=[1]))


def compress(path: Path, token: int = 1, **data: object) -> dict:
    return files.compress(SimpleNamespace(data={"path": str(path), **data}, token=token))


def test_file_is_compressed_in_one_step_over_several_starts(tmp_path):
    plain = tmp_path / "a[1].txt"
    plain.write_bytes(b"hello\n" * 1000)
    plain.chmod(0o640)
    left_by_an_earlier_start = tmp_path / ".a[1].txt.gz.3.part"
    of_a_later_start = tmp_path / ".a[1].txt.gz.9.part"
    for part in (left_by_an_earlier_start, of_a_later_start):
        part.touch()
    first = compress(plain, token=5)
    packed = tmp_path / "a[1].txt.gz"
    content = packed.read_bytes()
    assert gzip.decompress(content) == plain.read_bytes()
    assert packed.stat().st_mode == plain.stat().st_mode
    assert first == {"path": str(packed), "from_bytes": 6000, "to_bytes": len(content)}
    assert not left_by_an_earlier_start.exists() and of_a_later_start.exists()
    assert compress(plain, token=6) == first and packed.read_bytes() == content


def test_a_file_that_an_earlier_start_has_compressed_and_removed_is_done(tmp_path):
    plain = tmp_path / "a.txt"
    plain.write_text("hello")
    first = compress(plain, remove=True)
    assert not plain.exists()
    assert compress(plain, token=2, remove=True) == {**first, "from_bytes": None}
    with pytest.raises(FileNotFoundError):
        compress(plain, token=3)


def test_a_relative_path_is_refused_for_good():
    with pytest.raises(Fail, match="absolute"):
        files.compress(SimpleNamespace(data={"path": "a.txt"}, token=1))
