"""Prometheus reads our rules, each alert fires when it should, and each metric in them exists."""

import re

import pytest
import yaml

from supervisor.cli.lib import parser
from supervisor.ops.metrics import METRICS, render
from tests.deploy import figures
from tests.deploy.rules import ALERTS, FOLDER, ROOT, RULES
from tests.docs.pages import OPERATIONS, anchors, rows

PLAYED = [ROOT / "tests/deploy" / name for name in ("alerts_test.yml", "alerts_over_days_test.yml")]


def test_prometheus_reads_its_configuration_and_the_rules(promtool):
    done = promtool("check", "config", FOLDER / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


@pytest.mark.sampled(3)
def test_each_alert_fires_in_its_situation_and_no_other(promtool):
    done = promtool("test", "rules", *PLAYED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_played():
    assert set(re.findall(r'alertname="(\w+)"', "".join(path.read_text() for path in PLAYED))) == set(ALERTS)


def test_metrics_follow_the_customs_of_prometheus(promtool):
    _, shown = render({name: [] for name in METRICS})
    done = promtool("check", "metrics", input=shown.decode())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_figures_that_supervisors_show(rule):
    assert figures.unknown(rule["expr"]) == []


def test_the_played_figures_are_ones_that_supervisors_show():
    for test in yaml.safe_load("".join(path.read_text() for path in PLAYED))["tests"]:
        for each in test["input_series"]:
            assert figures.unknown(each["series"]) == []


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_explains_itself_and_links_a_page(name):
    alert = ALERTS[name]
    assert alert["labels"].keys() == {"severity"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = alert["annotations"]["runbook_url"].removeprefix("https://leasehold.example/").partition("#")
    assert not anchor or anchor in anchors(ROOT / page)
    assert (ROOT / page).is_file()
    _, _, commands = alert["annotations"]["description"].partition(" Type: leasehold ")
    for command in commands.split("; leasehold "):
        assert re.match(r"[a-z]+", command)[0] in parser.COMMANDS, command


def test_the_manual_lists_the_alerts():
    listed = {name.strip("`"): severity for name, severity, _ in rows(OPERATIONS, "Alerts")}
    assert listed == {name: alert["labels"]["severity"] for name, alert in ALERTS.items()}
