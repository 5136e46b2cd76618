"""The metrics of a supervisor under test, as Prometheus reads them."""

import http.client
from typing import NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families as parse


class Series(NamedTuple):
    """One line of a scrape, without its value."""

    name: str
    labels: tuple[tuple[str, str], ...]
    counts: bool


class Scraper:
    """Scrapes one supervisor, and checks that no counter falls."""

    def __init__(self, pool):
        process = psutil.Process(pool.pid)
        listening = [each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        (self._port,) = listening
        self.text = ""
        self.values: dict[Series, float] = {}

    def get(self, path):
        """Return the code and the text of a page."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def scrape(self):
        code, self.text = self.get("/metrics")
        assert code == 200
        families = list(parse(self.text))
        values = {
            Series(sample.name, tuple(sorted(sample.labels.items())), _counts(family, sample)): sample.value
            for family in families
            for sample in family.samples
        }
        counted = {each: was for each, was in self.values.items() if each.counts}
        gone_back = {each: (was, values.get(each)) for each, was in counted.items() if values.get(each, -1) < was}
        assert gone_back == {}
        self.values = values
        return {family.name: family for family in families}

    def value(self, name, **labels):
        """Return the sum of all samples with these labels."""
        family = self.scrape()[name.removesuffix("_total")]
        return total(family, name, **labels)


def total(family, name, **labels):
    return sum(s.value for s in family.samples if s.name == name and labels.items() <= s.labels.items())


def _counts(family, sample):
    return family.type in ("counter", "histogram") and not sample.name.endswith("_created")
