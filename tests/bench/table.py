"""The benchmarks there are, in the order of the report."""

from tests.bench.benchmark import Benchmark
from tests.bench.throughput import THROUGHPUT

BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in (THROUGHPUT,)}
