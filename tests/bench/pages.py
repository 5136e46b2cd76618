"""Measures how soon `leasehold web` answers beside 1,000,000 jobs and 10,000 lanes, and what pages cost the server.

Each page is asked of a web server that has just started and then again. Fifty tabs look again as browsers do.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager

from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.outcomes import Failed
from tests.bench import server
from tests.bench.bench import FILLER, Bench, complete
from tests.bench.benchmark import Benchmark, Compared, Step, step
from tests.bench.figures import Figures
from tests.bench.server import Server
from tests.bench.web_server import WebServer

FIRST, AGAIN, SIZE, SERVER = "first ms", "again ms", "KB", "server µs"
SHARE = "% of the server's processor"
ANY, TABS = "any of them", "50 tabs of the overview"
#: Interval at which a page looks again, as in supervisor/web/static/page.js.
LOOK_AGAIN_S = 3.0
TIMES = 10


def filled(client: Client, on: Server, backlog: int, lanes: int) -> dict[str, str]:
    """Put something on each page, and return the path of each."""
    for name, count in (("jobs-history-count", 50_000), ("failed-history-count", 50_000)):
        client.config.set(name, count)
    few = lanes // 10
    on.put(5 * few)
    complete(client, 5 * few)
    default, laned, broken = client.queue("default"), client.queue("laned"), client.queue("broken")
    broken.put_many({"klass": "bench.noop", "tags": ["import"]} for _ in range(few))
    client.settle([Failed(lease, "Broken", "it does not fit") for lease in broken.lease(FILLER, few)])
    laned.put_many({"klass": "bench.noop", "lane": f"client-{n}"} for n in range(lanes))
    for n in range(100):
        client.limit(f"limit-{n}", running=n + 1)
        default.recur("bench.noop", every=3600, jid=f"recurring-{n}")
    default.put_many({"klass": "bench.noop", "limit": f"limit-{n % 100}"} for n in range(few))
    with client.batch("import") as batch:
        batch.put_many("default", ({"klass": "bench.noop"} for _ in range(few)))
    on.put(backlog - lanes - 2 * few)
    jid = default.put("bench.noop", tags=["import"])
    return {
        "overview": "/overview",
        "queues": "/queues",
        "queue": "/queue?queue=default",
        "lanes": "/lanes?queue=laned",
        "jobs that wait": "/jobs?queue=default&state=waiting",
        "jobs that have failed": "/jobs?state=failed",
        "jobs that have completed": "/jobs?state=complete",
        "jobs of a group": "/jobs?group=Broken",
        "jobs with a tag": "/jobs?tag=import",
        "jobs of a klass that no job has": "/jobs?queue=default&klass=absent",
        "job": f"/job?jid={jid}",
        "why": f"/why?jid={jid}",
        "failed": "/failed",
        "batches": "/batches",
        "batch": f"/batch?batch={batch.id}",
        "recurrences": "/recurrences",
        "limits": "/limits",
        "limit": "/limit?key=limit-7",
        "tags": "/tags",
        "supervisors": "/supervisors",
    }


def all_pages(bench: Bench, on: Server, paths: Mapping[str, str]) -> Figures:
    found: dict[str, dict[str, float]] = {}
    for name, path in paths.items():
        with closing(WebServer(on, bench.directory)) as web:
            first_s, server_s, size = web.timed(path)
            again_s = statistics.median(web.timed(path)[0] for _ in range(TIMES))
        found[name] = {FIRST: first_s * 1e3, AGAIN: again_s * 1e3, SIZE: size / 1e3, SERVER: server_s * 1e6}
    slowest = max(figures[FIRST] for figures in found.values())
    return {ANY: {FIRST: slowest}, **found}


def tabs(bench: Bench, on: Server, count: int, looks: int) -> Mapping[str, float]:
    """Look at the overview as so many tabs do, one after the other within the interval of one."""
    with closing(WebServer(on, bench.directory)) as web:
        web.get("/overview")
        took, spent_s, began = [], on.spent_s(), time.perf_counter()
        for n in range(count * looks):
            time.sleep(max(0.0, began + n * LOOK_AGAIN_S / count - time.perf_counter()))
            took.append(web.timed("/overview")[0])
        share = (on.spent_s() - spent_s) / (time.perf_counter() - began)
        return {SHARE: share * 100, AGAIN: statistics.median(took) * 1e3}


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    looks = bench.amount(10, 1)
    with ExitStack() as stack:
        on = stack.enter_context(server.started(bench.directory / "pages"))
        bench.say(f"filling a server with {bench.backlog:,} jobs")
        client = stack.enter_context(on.client())
        paths = filled(client, on, bench.backlog, bench.amount(10_000, 1_000))
        # A supervisor that serves none of the queues: pages ask it how it is.
        stack.enter_context(bench.pool("--queue", "unused", on=on)).until_idle(1)
        yield [
            Step((ANY, *paths), lambda: all_pages(bench, on, paths)),
            step(TABS, lambda: tabs(bench, on, 50, looks)),
        ]


PAGES = Benchmark(
    "pages",
    "Pages of `leasehold web` beside 1,000,000 jobs and 10,000 lanes. Each page is the first one of a new web server,"
    " from the request to the last byte, and then once more. A klass has no index: its first answer ends after 50 ms,"
    " and says how far it is.",
    (FIRST, AGAIN, SIZE, SERVER, SHARE),
    steps,
    (
        Compared("first answer of any page", ANY, FIRST, most=100),
        Compared("50 tabs of the overview", TABS, SHARE, most=1),
    ),
)
