"""The picture beside the README: what it shows, and that any reader can read it."""

from xml.etree import ElementTree

from tests.bench.benchmark import Result
from tests.bench.disturbance import Disturbance
from tests.bench.picture import LONGEST, NAMES, draw
from tests.bench.rivals import FORKED, PEERS, REUSED
from tests.bench.table import BENCHMARKS

HEADER = {
    "date": "2026-11-23 13:52 UTC", "code": "2f5f99a, pure", "interpreter": "CPython 3.11.2, built with PGO and LTO",
    "server": "Redis 7.0.15", "processors": "2, AMD EPYC", "kernel": "Linux 6.18", "rounds": "7",
}  # fmt: skip
FIGURES = {REUSED: (60.0, 26000.0), FORKED: (3300.0, 550.0), "sidekiq": (120.0, 16000.0), "rq": (19000.0, 96.0)}


def drawn(disturbances=()):
    rounds = [{row: {"sum µs": spent, "jobs/s": rate} for row, (spent, rate) in FIGURES.items()}]
    text = draw(HEADER, Result(PEERS, rounds, disturbances=[dict(disturbances)]))
    return text, ElementTree.fromstring(text)


def texts(picture):
    return [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_each_row_has_its_figures_the_least_processor_time_first():
    _, picture = drawn()
    found = texts(picture)
    assert [word for word in found if word in NAMES.values()] == ["Leasehold", "Sidekiq", "Leasehold", "RQ"]
    after_sidekiq = found[found.index("Sidekiq") :]
    assert after_sidekiq[:3] == ["Sidekiq", "120", "16,000"]


def test_bars_are_as_long_as_their_figures():
    _, picture = drawn()
    widths = [int(bar.get("width")) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[:4] == [LONGEST // 2, LONGEST, LONGEST, round(LONGEST * 16 / 26)]


def test_picture_names_the_measurement_and_its_command():
    _, picture = drawn()
    caption = " ".join(texts(picture)[-4:])
    assert (
        "rounds: 7. To repeat it: leasehold bench peers --peers DIR --python DIR/ours/bin/python --out report"
        in caption
    )
    for fact in ("2026-11-23", "code 2f5f99a", HEADER["interpreter"], HEADER["server"], HEADER["kernel"]):
        assert fact in caption
    assert "2 processors, AMD EPYC" in caption


def test_picture_names_the_peers_interpreter_only_if_all_share_one():
    assert any("PGO and LTO (Python peers too)" in text for text in texts(drawn()[1]))
    text = draw(HEADER | {"note": "Ratios are not fair."}, Result(PEERS, []))
    assert HEADER["interpreter"] in text and "peers too" not in text


def test_a_disturbed_row_is_marked():
    _, picture = drawn([("sidekiq", Disturbance(0.2, 0.0, ""))])
    assert "Sidekiq *" in texts(picture) and "* Measured while other programs used the machine." in texts(picture)
    assert not any("*" in text for text in texts(drawn()[1]))


def test_picture_is_small_and_loads_nothing():
    text, _ = drawn()
    assert len(text.encode()) < 10_000 and "prefers-color-scheme: dark" in text
    assert text.count("http") == 1 and "url(" not in text and "@import" not in text


def test_every_peer_has_a_name_in_the_picture():
    assert set(NAMES) == {REUSED, FORKED, *(row for each in BENCHMARKS["peers"].bars for row in each.over)}
