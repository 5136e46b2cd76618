"""The table of metrics matches the manual, and Prometheus' own parser reads the text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from supervisor.ops.metrics import METRICS, Distribution, render

ROOT = Path(__file__).parents[2]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SPREAD = Distribution((0.5, 1.0), (3, 0, 2), 12.5)


def sample_of(name):
    metric = METRICS[name]
    labels = tuple(f"a {label}" for label in metric.labels)
    return labels, SPREAD if metric.kind == "histogram" else 7


@pytest.fixture
def everything():
    return {name: [sample_of(name)] for name in METRICS}


@pytest.mark.parametrize("name", METRICS)
def test_names_end_with_their_unit(name):
    kind = METRICS[name].kind
    assert re.fullmatch(r"leasehold_[a-z_]+", name)
    assert name.endswith("_total") == (kind == "counter")
    if kind == "histogram":
        assert name.endswith("_seconds")
    assert set(METRICS[name].labels) <= {
        "queue",
        "klass",
        "group",
        "limit",
        "reason",
        "outcome",
        "state",
        "worker",
        "namespace",
        "version",
        "server",
    }


def test_the_manual_lists_every_metric_of_the_table():
    page = (ROOT / "deploy/docs/metrics.md").read_text()
    listed = re.findall(r"^\| `(leasehold_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    assert listed == [
        (name, each.kind, " ".join(f"`{label}`" for label in each.labels), each.help) for name, each in METRICS.items()
    ]


def test_prometheus_reads_every_metric_with_its_type(everything):
    content_type, text = render(everything)
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in parse(text.decode())}
    for name, metric in METRICS.items():
        family = families[name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        values = {sample.name: sample.value for sample in family.samples}
        assert values[name if metric.kind != "histogram" else f"{name}_count"] == (
            7 if metric.kind != "histogram" else 5
        )
        assert all(set(metric.labels) <= sample.labels.keys() for sample in family.samples)


def test_a_histogram_counts_upwards_and_ends_with_all():
    _, text = render({"leasehold_fork_seconds": [((), SPREAD)]})
    lines = [line for line in text.decode().splitlines() if line.startswith("leasehold_fork_seconds")]
    assert lines == [
        'leasehold_fork_seconds_bucket{le="0.5"} 3.0',
        'leasehold_fork_seconds_bucket{le="1.0"} 3.0',
        'leasehold_fork_seconds_bucket{le="+Inf"} 5.0',
        "leasehold_fork_seconds_count 5.0",
        "leasehold_fork_seconds_sum 12.5",
    ]


def test_openmetrics_is_served_on_request(everything):
    content_type, text = render(everything, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    assert len(list(parse_openmetrics(text.decode()))) == len(METRICS)


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "späße", "", "{x}", "a,b=c"])
def test_a_label_may_be_any_name(name):
    _, text = render({"leasehold_queue_oldest_seconds": [((name,), 1.5)]})
    (sample,) = next(
        family.samples for family in parse(text.decode()) if family.name == "leasehold_queue_oldest_seconds"
    )
    assert (sample.labels, sample.value) == ({"queue": name}, 1.5)


def test_an_unknown_value_has_no_samples():
    _, text = render({})
    assert {sample.name for family in parse(text.decode()) for sample in family.samples} == set()


def test_a_master_that_serves_no_metrics_has_not_loaded_prometheus():
    code = "import supervisor.master.master, sys; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
