"""Finds metrics and labels in an expression of Prometheus that supervisors do not have."""

import re

from supervisor.master.model.counts import OUTCOMES
from supervisor.master.model.states import ChildState
from supervisor.master.report.metrics_snapshot import QUEUE_STATES
from supervisor.master.report.state import STATES
from supervisor.ops.metrics import METRICS

#: Labels that Prometheus adds to every sample.
SCRAPED = {"job", "instance", "le"}
#: The values of labels that have few.
VALUES = {
    ("leasehold_queue_jobs", "state"): set(QUEUE_STATES),
    ("leasehold_jobs_ended_total", "outcome"): set(OUTCOMES),
    ("leasehold_children", "state"): {state.value for state in ChildState},
    ("leasehold_state", "state"): set(STATES),
    ("leasehold_reloads_total", "outcome"): {"completed", "failed"},
}
_SELECTOR = re.compile(r"\b(leasehold_\w+)\b(?:\{([^}]*)\})?")


def unknown(expression: str) -> list[str]:
    """Return the metrics, labels, values of labels and labels to group by that no supervisor shows."""
    found = []
    known: set[str] = set(SCRAPED)
    for name, matchers in _SELECTOR.findall(expression):
        metric = METRICS.get(name) or METRICS.get(re.sub(r"_(bucket|sum|count)$", "", name))
        if metric is None or (name not in METRICS and metric.kind != "histogram"):
            found.append(name)
            continue
        known |= set(metric.labels)
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        found += [f"{name}{{{label}}}" for label in labels - set(metric.labels) - SCRAPED]
        for label, values in re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', matchers):
            known_values = VALUES.get((name, label), set(values.split("|")))
            found += [f'{name}{{{label}="{value}"}}' for value in values.split("|") if value not in known_values]
    for names in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression):
        found += [
            f"by {each}" for each in re.findall(r"\w+", names) if each not in known and "leasehold:" not in expression
        ]
    return found
