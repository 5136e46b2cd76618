"""The manual's table of what happens: each row is brought about, and its metrics rise."""

import os
import re
import signal

from apps import flag, start_app, wait_for_arrival
from scraping import Scraper, total

from tests.docs.pages import OPERATIONS, tables

SOURCE = """
@handler(retries=1, backoff=0.01)
def raises(job): raise ValueError("as it is meant to")

@handler(max_deaths=1)
def exits(job): os._exit(3)

@handler
def prints(job): os.write(1, b"again" + bytes([10]) * 100_000)

if is_set("broken"): raise LookupError("no such thing")
"""
ROWS = [row for part in tables(OPERATIONS, "What happens when …") for row in part]


class World:
    def __init__(self, stage, server):
        self.stage, self.server = stage, server
        stage.config(grace=0.5)
        self.pool = start_app(stage, SOURCE, http="127.0.0.1:0", processes=2, term_grace="1s").wait_ready()
        self.scraper = Scraper(self.pool)

    def put(self, klass, data=None, **options):
        return self.stage.queue.put(klass, data, **options)

    def hold(self, gate):
        jid = self.put("hold", self.stage.gate(gate))
        wait_for_arrival(self.stage, gate)
        return jid

    def counted(self):
        return {name: self._sum(family) for name, family in self.scraper.scrape().items()}

    def _sum(self, family):
        return total(family, family.name + "_total") if family.type == "counter" else total(family, family.name)

    # what happens

    def raises(self):
        self.pool.wait_for("job.failed", jid=self.put("raises"))

    def exits(self):
        self.pool.wait_for("job.died", jid=self.put("exits"))

    def prints(self):
        self.pool.wait_for("job.completed", jid=self.put("prints"))

    def is_cancelled(self):
        jid = self.hold("cancelled")
        self.stage.client.cancel(jid)
        self.pool.wait_for("job.stale", jid=jid)

    def has_an_unknown_klass(self):
        jid = self.put("no.such")
        self.pool.wait_for("job.unknown", jid=jid)
        self.stage.client.cancel(jid)

    def has_no_json(self):
        self.stage.queue.pause()
        jid = self.put("noop", "n" * 1000)  # too long for the record, so it has a key of its own
        self.server.redis.set(f"{self.stage.prefix}data:{jid}", b'{"n": \xff')
        self.stage.queue.unpause()
        self.pool.wait_for("job.failed", jid=jid, group="broken")

    def is_reloaded(self):
        self.pool.send(signal.SIGHUP)
        self.pool.wait_for("reload.completed")

    def loses_its_zygote(self):
        jid = self.hold("orphaned")
        os.kill(self.pool.zygote_pid, signal.SIGKILL)
        self.pool.wait_for("job.released", jid=jid)
        self.stage.open_gate("orphaned")
        self.pool.wait_for("job.completed", jid=jid)

    def is_cut_off(self):
        self.server.kill()
        self.pool.wait_for("redis.lost")
        self.server.start()
        self.pool.wait_for("redis.connected")

    def is_refused(self):
        self.stage.wait_until_idle(1)
        self.server.refuse_scripts()
        self.server.redis.rpush(f"{self.stage.prefix}bell:default", "1")
        self.pool.wait_for("redis.failed")
        self.server.accept_scripts()
        self.pool.wait_for("job.completed", jid=self.put("noop"))

    def does_not_boot(self):
        flag(self.stage, "broken")
        self.pool.send(signal.SIGHUP)
        self.pool.wait_for("reload.failed")
        flag(self.stage, "broken", on=False)


#: The beginning of a row, and the function that brings it about.
HAPPENS = {
    "raises": World.raises,
    "exits": World.exits,
    "prints without end": World.prints,
    "is cancelled": World.is_cancelled,
    "has a klass without a handler": World.has_an_unknown_klass,
    "has data that is no JSON": World.has_no_json,
    "other code is loaded": World.is_reloaded,
    "its zygote dies": World.loses_its_zygote,
    "refuses something": World.is_refused,
    "restarts, or is cut off": World.is_cut_off,
    "it does not boot at a reload": World.does_not_boot,
}


def test_manual_table_of_events_and_counts_is_true(own_stage, own_server):
    world = World(own_stage, own_server)
    before = world.counted()
    for begins, happens in HAPPENS.items():
        (row,) = (row for row in ROWS if row[0].startswith(begins))
        happens(world)
        now = world.counted()
        metrics = {name.removesuffix("_total") for name in re.findall(r"`(leasehold_\w+)`", row[2])}
        assert metrics, row
        assert {name for name in metrics if now[name] <= before[name]} == set(), row
        first = re.search(r"`(\w+\.\w+)`", row[1])[1]
        assert world.pool.find(first), row
        before = now
    assert world.pool.drain() == 0
    own_stage.assert_nothing_left()
