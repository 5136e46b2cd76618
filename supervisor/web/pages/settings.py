"""Reads the options in Redis, and the doors to lists of other programs. Runs in the web server's process."""

from dataclasses import asdict
from typing import Any

from supervisor.engine.model.doors import FORMATS
from supervisor.engine.model.options import checked_option
from supervisor.web.pages.page import Parameters, Site, WebPage


async def read_config(site: Site, _asked: Parameters) -> dict[str, Any]:
    """Return every option with its value, then those that are set for single queues."""
    values = await site.client.config.all()
    return {"options": [_option(name, value) for name, value in values.items()]}


def _option(name: str, value: object) -> dict[str, Any]:
    option, queue = checked_option(name)
    is_default = queue is None and value == option.default
    return {"option": name, "value": value, "is_default": is_default, "queue": queue, "meaning": option.meaning}


async def read_doors(site: Site, _asked: Parameters) -> dict[str, Any]:
    """Return all doors, and how many entries wait behind each."""
    doors = await site.client.doors.list()
    return {"doors": [{**asdict(door), "list": door.list} for door in doors], "formats": list(FORMATS)}


CONFIG = WebPage("config", "Config", "/config", read_config, rows="options")
DOORS = WebPage("doors", "Doors", "/doors", read_doors, rows="doors")
