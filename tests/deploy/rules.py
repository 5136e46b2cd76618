"""The rules that Prometheus is given, as values."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
GROUPS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
_SPAN = re.compile(r"(\d+)([mhd])")
_MINUTES = {"m": 1, "h": 60, "d": 1440}


def pending_minutes(alert: str) -> int:
    """Return for how long its condition must hold before the alert fires."""
    return _longest(ALERTS[alert].get("for", "0m"))


def seen_minutes(alert: str) -> int:
    """Return after how long at the latest the alert fires in a situation that goes on: its condition looks back."""
    return pending_minutes(alert) + _longest(ALERTS[alert]["expr"])


def _longest(text: str) -> int:
    return max((int(count) * _MINUTES[unit] for count, unit in _SPAN.findall(text)), default=0)
