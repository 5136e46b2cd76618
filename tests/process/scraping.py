"""The metrics of a supervisor under test, as Prometheus reads them."""

import http.client

import psutil
from prometheus_client.parser import text_string_to_metric_families as parse


class Scraper:
    """Scrapes one supervisor, and checks that no counter falls."""

    def __init__(self, pool):
        process = psutil.Process(pool.pid)
        listening = [each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        (self._port,) = listening
        self._before: dict[tuple[str, ...], float] = {}
        self.text = ""

    def scrape(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert answer.status == 200
            self.text = answer.read().decode()
        finally:
            connection.close()
        families = list(parse(self.text))
        counted = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in families
            if family.type in ("counter", "histogram")
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        gone_back = {key: (was, counted.get(key)) for key, was in self._before.items() if counted.get(key, -1) < was}
        assert gone_back == {}
        self._before = counted
        return {family.name: family for family in families}

    def value(self, name, **labels):
        """Return the sum of all samples with these labels."""
        family = self.scrape()[name.removesuffix("_total")]
        return total(family, name, **labels)


def total(family, name, **labels):
    return sum(s.value for s in family.samples if s.name == name and labels.items() <= s.labels.items())
