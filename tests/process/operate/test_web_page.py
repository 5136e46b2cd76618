"""An operator steers a real pool under load from the page, with a browser."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from apps import put, start_app

from tests.lengths import SOON_S
from tests.web.browser import MARKS, browsing

pytestmark = MARKS

TOKEN = "k" * 20
APP = """
@handler(retries=0)
def fragile(job):
    if job.data["wrong"]:
        raise ValueError("it is wrong")
"""


@contextmanager
def serving(stage):
    """Serve the page of the stage's namespace. Yields its address."""
    (stage.directory / "tokens").write_text(f"operator:kim:{TOKEN}")
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": stage.server.url, "LEASEHOLD_NAMESPACE": stage.namespace}
    command = [sys.executable, "-m", "supervisor", "web", "--http", "127.0.0.1:0", "--allow-actions"]
    command += ["--token-file", str(stage.directory / "tokens")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"http://\S+", process.stderr.readline())[0]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0


class Operator:
    """A person at the page, who goes to a page, fills in a form, and presses its button."""

    def __init__(self, browser, address):
        self.browser = browser
        self.address = address

    def act(self, path, act, button="null", **fields):
        self.browser.open(self.address + path)
        form = f"form[action$='/act/{act}']"
        for name, value in fields.items():
            self.browser.fill(f"{form} [name={name}]", value)
        self.browser.submit(form, button)


def test_an_operator_steers_a_pool_under_load(stage):
    pool = start_app(stage, APP, processes=2, jobs_per_child=0).wait_ready()
    client, load = stage.client, put(stage, "noop", 300)
    with serving(stage) as address, browsing() as browser:
        browser.log_in(address, TOKEN)
        kim = Operator(browser, address)
        queue, supervisor = "/queue?queue=default", f"/supervisor?worker={pool.worker}"

        kim.act(queue, "pause_queue")
        load += put(stage, "noop", 100)
        browser.wait_for("Paused: login:kim")
        stage.wait_until_counted(lambda: client.queue("default").counts().running == 0)
        assert client.queue("default").counts().waiting >= 100
        kim.act(queue, "unpause_queue")
        stage.wait_until_ended(load)

        load += put(stage, "noop", 300)
        kim.act(queue, "put", klass="fragile", data='{"wrong": true}', priority="-1")
        (jid,) = parse_qs(urlsplit(browser.value("location.href")).query)["jid"]
        stage.wait_until_counted(lambda: client.job(jid).state == "failed")
        kim.act(f"/job?jid={jid}", "retry")
        stage.wait_until_counted(lambda: client.job(jid).state == "failed")
        browser.open(f"{address}/job?jid={jid}")
        browser.fill("form:has(textarea) textarea", json.dumps({"wrong": False}))
        browser.submit("form:has(textarea)")
        stage.wait_until_counted(lambda: client.job(jid).state == "complete")

        held = stage.queue.put("hold", stage.gate("gate"), priority=-1)
        stage.wait_until_counted(lambda: client.job(held).state == "running")
        stage.wait_until_counted((stage.directory / "gates/gate.reached").exists)
        kim.act(supervisor, "stacks_supervisor")
        browser.wait_for("wait_at")
        kim.act(f"/job?jid={held}", "cancel")
        stage.wait_until_counted(lambda: client.job(held) is None)

        kim.act(supervisor, "scale_supervisor", processes="3")
        kim.act(supervisor, "serve", queues="default\nextra")
        stage.wait_until_ended([client.queue("extra").put("noop")])

        wrong = put(stage, "fragile", 3, data={"wrong": True}, priority=-1)
        stage.wait_until_counted(lambda: client.failed().get("ValueError") == 3)
        browser.open(f"{address}/jobs?group=ValueError")
        browser.value("document.querySelectorAll('[name=jids]').forEach(each => { each.checked = true })")
        browser.submit(".marked", "document.querySelector('.marked [value=cancel]')")
        browser.wait_for("cancelled 3 jobs")
        assert client.jobs(*wrong) == [None] * 3

        kim.act("/limits", "limit", key="smtp", running="1")
        load += put(stage, "noop", 50, limit="smtp")
        kim.act("/recurrences", "recur", queue="default", klass="noop", every="1s", jid="tick")
        stage.wait_until_counted(lambda: client.recurring("tick").count >= 1)
        kim.act("/job?jid=tick", "unrecur")
        stage.wait_until_ended(load)
        kim.act("/limit?key=smtp", "unlimit")
        assert set(stage.states(load)) == {"complete"}

        kim.act(supervisor, "drain_supervisor")
        assert pool.wait() == 0
        assert [fault for fault in browser.faults if "404" not in fault] == []  # what was cancelled is gone
    for key in stage.server.redis.scan_iter(f"{stage.prefix}answer:*"):
        stage.server.redis.delete(key)  # the page has ended before a supervisor answered: this one would expire
    assert {act.actor for act in client.audit(count=100)} == {"login:kim"}
    assert {act.act for act in client.audit(count=100)} == {
        *("pause", "unpause", "retry", "stacks", "cancel", "scale", "serve", "limit", "unlimit", "recur", "unrecur"),
        "drain",
    }
    stage.assert_nothing_left()
