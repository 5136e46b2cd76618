"""Plays to promtool what a supervisor has really shown, and says which alerts have to come of it.

The figures from before last for an hour. Then each later scrape is one of the following minutes. The last one holds for
as long as the alerts ask. A metric that `goes_on` grows in each of these minutes as between the last two scrapes. For
alerts that ask for days, four minutes stand in place of each: Prometheus still takes the last figure for the present.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import yaml

from tests.deploy.rules import ALERTS, FOLDER, pending_minutes, seen_minutes

#: The labels that Prometheus adds.
JOB, INSTANCE = {"job": "leasehold"}, {"job": "leasehold", "instance": "one"}
_BEFORE = 60
_DAY = 1440
#: Prometheus's clock begins at 0 here, and with it the supervisor.
_WALL_TIME = "leasehold_start_time_seconds"


class Series(Protocol):
    """One line of a scrape, without its value."""

    name: str
    labels: Sequence[tuple[str, str]]


#: The series of one scrape. None: there was no answer.
Shown = Mapping[Series, float] | None


def rules_test(scrapes: Sequence[Shown], fires: Mapping[str, Mapping[str, str]], goes_on: Sequence[str] = ()) -> str:
    """Return the test for promtool. `fires`: each alert that has to fire, with its labels. No other one may.

    `goes_on`: how the names of the metrics begin.
    """
    seen = max(map(seen_minutes, fires))
    step = 1 if seen < _DAY else 4
    held = -(-seen // step) + 1
    end = _BEFORE + len(scrapes) - 1 + held
    expected = [_firing(alert, labels) for alert, labels in fires.items()]
    test = {
        "interval": f"{step}m",
        "input_series": list(_played(scrapes, held, tuple(goes_on))),
        "promql_expr_test": [
            _expect(_ever(_BEFORE * step), _BEFORE * step, []),
            _expect(_ever(end * step), end * step, expected),
            *(_expect(_now(alert), _BEFORE * step + pending_minutes(alert), []) for alert in fires),
        ],
    }
    file = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": f"{step}m", "tests": [test]}
    return yaml.safe_dump(file, width=1000)


def _expect(expression: str, minute: int, labels: Iterable[str]) -> dict[str, Any]:
    samples = [{"labels": each, "value": 1} for each in labels]
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}


def _ever(minutes: int) -> str:
    return f'max_over_time(ALERTS{{alertstate="firing"}}[{minutes}m])'


def _now(alert: str) -> str:
    return f'ALERTS{{alertname="{alert}", alertstate="firing"}}'


def _firing(alert: str, own: Mapping[str, str]) -> str:
    return _text({"alertname": alert, "alertstate": "firing", **ALERTS[alert]["labels"], **own}.items())


def _text(labels: Iterable[tuple[str, str]]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "{" + ", ".join(f'{name}="{value.translate(escapes)}"' for name, value in labels) + "}"


def _played(scrapes: Sequence[Shown], held: int, goes_on: tuple[str, ...]) -> Iterable[dict[str, str]]:
    for series in dict.fromkeys(each for scrape in scrapes for each in scrape or ()):
        seen = [None if scrape is None else scrape.get(series) for scrape in scrapes]
        if series.name == _WALL_TIME:
            seen = [None if value is None else value - seen[0] for value in seen]
        grows = seen[-1] is not None and series.name.startswith(goes_on)
        yield {
            "series": f"{series.name}{_text((*series.labels, *INSTANCE.items()))}",
            "values": _values(seen, held, seen[-1] - (seen[-2] or 0) if grows else 0),
        }


def _values(seen: Sequence[float | None], held: int, grown: float) -> str:
    """Return promtool's short form of a series: 7x60 stands for sixty-one samples, _x60 for sixty that are missing."""
    before, *later = seen
    words = [f"_x{_BEFORE + 1}" if before is None else f"{before:.17g}x{_BEFORE}"]
    for former, value in zip(seen, later, strict=False):
        words.append(f"{value:.17g}" if value is not None else "_" if former is None else "stale")
    words.append(f"_x{held}" if seen[-1] is None else f"{seen[-1] + grown:.17g}+{grown:.17g}x{held - 1}")
    return " ".join(words)
