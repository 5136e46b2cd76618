"""The benchmarks there are, in the order of the report."""

from tests.bench.benchmark import Benchmark
from tests.bench.drain import DRAIN
from tests.bench.engine import ENGINE
from tests.bench.growth import GROWTH
from tests.bench.idle import IDLE
from tests.bench.lanes import LANES
from tests.bench.latency import LATENCY
from tests.bench.memory import MEMORY
from tests.bench.pages import PAGES
from tests.bench.puts import PUTS
from tests.bench.records import RECORDS
from tests.bench.restart import RESTART
from tests.bench.rival_puts import PEERS_PUT
from tests.bench.rivals import PEERS, PEERS_LATENCY
from tests.bench.stalls import STALLS
from tests.bench.throughput import THROUGHPUT

_ALL = (
    *(THROUGHPUT, PUTS, LATENCY, RESTART, DRAIN, MEMORY, RECORDS, IDLE, GROWTH, ENGINE, STALLS, LANES, PAGES),
    *(PEERS, PEERS_LATENCY, PEERS_PUT),
)
BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in _ALL}
