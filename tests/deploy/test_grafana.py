"""The dashboard: Prometheus reads its expressions, and each panel shows figures that there are, with their unit."""

import json
import re
from pathlib import Path

import pytest
import yaml

from supervisor.ops.metrics import METRICS
from tests.deploy import figures

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "deploy/grafana/leasehold.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
NOTES = [each["expr"] for each in BOARD["annotations"]["list"]]
VARIABLES = {each["name"]: each for each in BOARD["templating"]["list"]}
#: Values that Grafana puts in the place of its own variables.
FILLED_IN = {"$__rate_interval": "1m", "$__range": "1h"}


def test_prometheus_reads_every_expression(promtool, tmp_path):
    rules = []
    for number, expression in enumerate([*EXPRESSIONS, *NOTES]):
        for variable, value in FILLED_IN.items():
            expression = expression.replace(variable, value)
        rules.append({"record": f"panel_{number}", "expr": expression})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_figure_exists_and_few_are_missing():
    for expression in [*EXPRESSIONS, *NOTES]:
        assert figures.unknown(expression) == [], expression
    shown = set(re.findall(r"\bleasehold_\w+", " ".join([*EXPRESSIONS, *NOTES])))
    shown |= {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    # A panel computes the busy ratio over all supervisors. Each other metric belongs to one that a panel shows.
    without = {"leasehold_busy_ratio", "leasehold_processes_most", "leasehold_children_reaped_total"}
    without |= {"leasehold_printed_lines_total", "leasehold_job_running_longest_seconds", "leasehold_reload_refused"}
    # Metrics that appear only if something is wrong have an alert.
    without |= set(re.findall(r"\bleasehold_\w+", (ROOT / "deploy/prometheus/alerts.yml").read_text())) - shown
    without &= METRICS.keys()
    assert METRICS.keys() - shown == without


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_names_subject_unit_and_source(panel):
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_a_time_is_in_seconds_and_memory_in_bytes():
    for panel in PANELS:
        text = " ".join(target["expr"] for target in panel["targets"])
        unit = panel["fieldConfig"]["defaults"]["unit"]
        if "histogram_quantile" in text or "oldest_seconds" in text or "left_seconds" in text:
            assert unit == "s", panel["title"]
        assert ("_bytes" in text) == (unit == "bytes"), panel["title"]


def test_panels_have_their_own_number_and_do_not_overlap():
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken) and max(x for x, _ in taken) < 24


def test_rows_are_in_order_and_variables_are_used():
    rows = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Queues", "Handlers", "Deaths", "Supervisors", "Redis"]
    assert list(VARIABLES) == ["datasource", "job", "instance", "queue"]
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(BOARD["panels"])))
    assert used == VARIABLES.keys()


def test_grafana_finds_the_source_that_the_dashboard_begins_with():
    path = ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml"
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    assert VARIABLES["datasource"]["current"]["value"] == source["uid"]
