"""Measures the memory of a pool with small and large applications and with few and many children.

The master's own memory is measured beside a long queue, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.bench import accounts
from tests.bench.bench import Bench
from tests.bench.benchmark import Benchmark, Compared, Step, step
from tests.bench.pool import BESIDE_HANDLERS, MANY, Pool

ALL, CHILD = "PSS MB of all", "PSS MB of a child"
MASTER, MASTER_RSS = "PSS MB of the master", "RSS MB of the master"
EACH = "PSS KB a job, of all"
SLEEPING = "10,000 jobs that sleep in 2 children"
EMPTY, LONG = "master, after 20,000 jobs", "master, after 20,000 jobs of 1,000,000 waiting"
SIZES = (30, 150)
CHILDREN = (1, 24)


def idle(megabytes: int, children: int) -> str:
    return f"{megabytes} MB application, idle children: {children}"


def used(megabytes: int, children: int) -> str:
    return f"{megabytes} MB application, reused children, after 20 jobs each: {children}"


def look(pool: Pool) -> dict[str, float]:
    """Return the memory of a pool at rest, in MB."""
    children = [accounts.memory_mb(pid)["PSS"] for pid in pool.children()]
    master = accounts.memory_mb(pool.pid)
    return {
        ALL: master["PSS"] + accounts.memory_mb(pool.zygote)["PSS"] + sum(children),
        CHILD: sum(children) / len(children),
        MASTER: master["PSS"],
        MASTER_RSS: master["RSS"],
    }


def at_rest(bench: Bench, megabytes: int, children: int, jobs: int) -> dict[str, float]:
    """Measure a pool whose children live on after `jobs` jobs each. 0: they have run none yet."""
    bench.server.clear()
    bench.server.put(jobs * children)
    flags = ("--processes", str(children), "--jobs-per-child", "0")
    with bench.pool(*flags, megabytes=megabytes) as pool:
        pool.until_idle(children)
        pool.until_left(0)
        pool.until_at_rest()
        return look(pool)


def beside_a_queue(bench: Bench, jobs: int, long: bool) -> dict[str, float]:
    """Measure a pool after `jobs` jobs of a queue that keeps its length."""
    server = bench.large if long else bench.server
    if not long:
        server.clear()
    left = server.waiting()
    server.put(jobs)
    with bench.pool("--processes", "2", "--jobs-per-child", "0", on=server) as pool:
        pool.until_left(left)
        return look(pool)


def sleeping(bench: Bench, jobs: int) -> dict[str, float]:
    """Measure how much memory all processes take more while so many jobs sleep beside each other."""
    bench.server.clear()
    flags = ("--processes", "2", "--drain-timeout", "0s")
    with bench.pool(*flags, handlers=BESIDE_HANDLERS) as pool, bench.server.client() as client:
        pool.until_idle(2)
        before, queue = look(pool)[ALL], client.queue("default")
        queue.put_many({"klass": "bench.sleep", "data": 600} for _ in range(jobs))
        pool.until(lambda: queue.counts().running == jobs, "all jobs run")
        return {EACH: (look(pool)[ALL] - before) * 1000 / jobs}


@contextmanager
def steps(bench: Bench) -> Iterator[Sequence[Step]]:
    jobs = bench.amount(20_000, 1_000)
    yield [
        *(
            step(idle(megabytes, children), lambda m=megabytes, c=children: at_rest(bench, m, c, 0))
            for megabytes in SIZES
            for children in CHILDREN
        ),
        *(step(used(150, children), lambda c=children: at_rest(bench, 150, c, 20)) for children in CHILDREN),
        step(SLEEPING, lambda: sleeping(bench, bench.amount(2 * MANY, 1_000))),
        step(EMPTY, lambda: beside_a_queue(bench, jobs, long=False)),
        step(LONG, lambda: beside_a_queue(bench, jobs, long=True)),
    ]


MEMORY = Benchmark(
    "memory",
    "Memory of master, zygote and children together. PSS: of pages that several have in common each counts its share."
    " An application of so many MB is the size of the process that has imported it.",
    (ALL, CHILD, MASTER, MASTER_RSS, EACH),
    steps,
    (
        Compared("24 idle children / one, 150 MB application", idle(150, 24), ALL, (idle(150, 1),), most=1.5),
        Compared("24 children after 20 jobs each / one, 150 MB application", used(150, 24), ALL, (used(150, 1),)),
        Compared("24 idle children / one, 30 MB application", idle(30, 24), ALL, (idle(30, 1),)),
        Compared("a job of 10,000 that sleep", SLEEPING, EACH, most=15),
        Compared("master beside 1,000,000 waiting jobs", LONG, MASTER, most=40),
        Compared("master beside 1,000,000 waiting jobs / none", LONG, MASTER, (EMPTY,)),
    ),
)
