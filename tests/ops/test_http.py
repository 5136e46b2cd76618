"""The HTTP listener answers in time, whatever its clients and the master's loop do."""

import contextlib
import json
import os
import re
import resource
import socket
import time
from pathlib import Path

import pytest

from supervisor.ops import http, pages
from supervisor.setting_values import ListenAddress
from tests.ops.listening import Site, answer_of


@pytest.fixture
def site():
    with contextlib.ExitStack() as stack:

        def start(*args, **kwargs) -> Site:
            site = Site(*args, **kwargs)
            stack.callback(site.close)
            return site

        yield start


# what is served


def test_root_and_unknown_paths_list_the_pages(site):
    ours = site()
    code, index = ours.get("/")
    assert code == 200
    assert re.findall(r"^/\w+", index, re.MULTILINE) == ["/livez", "/readyz", "/status", "/metrics"]
    assert ours.get("/live") == (404, "there is no '/live'; there are /livez, /readyz, /status and /metrics\n")
    assert ours.loop.taken == []


def test_each_page_is_what_the_loop_answers(site):
    ours = site(metrics=lambda answer, accept: ("text/x-metrics", f"{answer} {accept}".encode()))
    assert ours.get("/livez?verbose") == (200, "ok\n")
    assert ours.get("/readyz") == (200, "serving\n")
    assert ours.get("/status") == (200, '{"state":"serving"}\n')
    assert ours.get("/metrics", headers="Accept: application/openmetrics-text\r\n") == (
        200,
        "7 application/openmetrics-text",
    )
    ours.loop.answers["/readyz"] = (False, "paused")
    assert ours.get("/readyz") == (503, "paused\n")


def test_head_answers_the_length_without_the_page(site):
    client = site().send(b"HEAD /status HTTP/1.1\r\n\r\n")
    code, head, body = answer_of(client)
    assert (code, body) == (200, "")
    assert "Content-Length: 20" in head and "Content-Type: application/json" in head


@pytest.mark.parametrize(
    ("request_", "code", "sentence"),
    [
        (b"POST /livez HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405, "'POST' is none of GET and HEAD"),
        (b"nonsense\r\n\r\n", 400, "Bad request syntax ('nonsense')"),
        (b"\r\n\r\n", 400, "this is no HTTP request"),
        (b"GET /livez HTTP/9.0\r\n\r\n", 505, "Invalid HTTP version (9.0)"),
        (b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431, "Too many headers"),
        (b"GET /" + b"x" * 20000, 431, "line and headers are larger than 16384 bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400, "Bad request syntax"),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 404, "there is no"),
    ],
    ids=["method", "words", "empty", "version", "headers", "large", "TLS", "bytes"],
)
def test_a_bad_request_is_refused_in_one_sentence(site, request_, code, sentence):
    said, head, body = answer_of(site().send(request_))
    assert said == code
    assert body.startswith(sentence) and body.count("\n") == 1
    assert "Content-Type: text/plain" in head


def test_errors_of_status_are_json(site):
    ours = site()
    code, _head, body = answer_of(ours.send(b"PUT /status HTTP/1.1\r\n\r\n"))
    assert (code, json.loads(body)) == (405, {"error": "'PUT' is none of GET and HEAD"})


def test_metrics_without_the_extra_say_what_is_missing(site):
    assert site(metrics="install it").get("/metrics") == (501, "install it\n")


def test_a_failing_page_is_logged_once(site):
    def fail(answer, accept):
        raise RuntimeError("no page today")

    ours = site(metrics=fail)
    said = "/metrics cannot be shown: RuntimeError: no page today"
    assert ours.get("/metrics") == (500, f"{said}\n")
    assert ours.get("/metrics") == (500, f"{said}\n")
    assert ours.get("/livez") == (200, "ok\n")
    assert ours.loop.complaints == [said]


def test_a_request_may_come_byte_by_byte_with_an_unread_body(site):
    client = site().connect()
    for byte in b"GET /readyz HTTP/1.1\r\nContent-Length: 8192\r\n\r\n":
        client.sendall(bytes([byte]))
    client.sendall(b"x" * 8192)
    assert answer_of(client)[0] == 200


def test_status_shows_values_that_are_no_proper_text(site):
    ours = site()
    ours.loop.answers["/status"] = {"klass": "\udcff", "count": 2**70}
    code, body = ours.get("/status")
    assert (code, json.loads(body)) == (200, {"klass": "\udcff", "count": 2**70})


# names


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9464", "10.0.0.7", "[::1]:9464", "[fd00::7]", "localhost:9464", "supervisor:9464", "web-1", "",
        "leasehold.jobs.svc:9464", "10-0-0-7.jobs.pod.cluster.local", "web-1.internal", "JOBS.example.com.:9464",
    ],
)  # fmt: skip
def test_own_host_names_are_answered(site, host):
    assert status_as(site(names=("jobs.example.com",)), host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9464", "a.jobs.example.com", "local.example", "127.0.0.1.nip.io", "a b.c:x:y"],
)
def test_a_foreign_host_gets_probes_and_no_reports(site, host):
    ours = site(names=("jobs.example.com",))
    assert status_as(ours, host) == 421
    assert status_as(ours, host, "/metrics") == 421
    assert status_as(ours, host, "/livez") == status_as(ours, host, "/readyz") == 200


def status_as(site, host, path="/status"):
    code, _head, _body = answer_of(site.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()))
    return code


# clients


def test_a_hundred_slow_clients_do_not_delay_a_probe(site, measured):
    ours = site()
    for _ in range(100):
        ours.send(b"GET /livez HTTP/1.1\r\nHost:")
    took_s = []
    for _ in range(20):
        began_at = time.monotonic()
        assert ours.get("/livez") == (200, "ok\n")
        took_s.append(time.monotonic() - began_at)
    measured(f"/livez beside 100 half requests: {1000 * max(took_s):.1f} ms at most")
    assert max(took_s) < http.CONNECTION_S - 1
    assert len(ours.listener._connections) <= http.MOST_CONNECTIONS


def test_clients_that_do_not_read_do_not_delay_a_probe(site):
    page = b"x" * 8_000_000  # more than the kernel keeps for them
    ours = site(metrics=lambda answer, accept: ("text/plain", page))
    for _ in range(20):
        ours.send(b"GET /metrics HTTP/1.1\r\n\r\n")
    for _ in range(10):
        began_at = time.monotonic()
        assert ours.get("/livez") == (200, "ok\n")
        assert time.monotonic() - began_at < http.CONNECTION_S - 1


def test_a_silent_client_is_dropped(site, monkeypatch):
    monkeypatch.setattr(http, "CONNECTION_S", 1.0)
    ours = site()
    assert answer_of(ours.send(b"GET /livez HTTP/1.1\r\n"))[::2] == (408, "no request has come within 1 s\n")
    quiet = ours.send(b"GET / HTTP/1.1\r\n\r\n")
    assert answer_of(quiet)[0] == 200  # and it never closes its end
    ours.loop.wait_for(lambda: not ours.listener._connections)


def test_clients_that_leave_early_disturb_no_other(site):
    ours = site()
    for request in (b"", b"GET", b"GET /readyz HTTP/1.1\r\n\r\n", b"GET /status HTTP/1.1\r\n\r\n"):
        for _ in range(20):
            client = ours.send(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
            client.close()
    assert ours.get("/livez") == (200, "ok\n")
    assert ours.loop.complaints == []


def test_clients_wait_while_descriptors_are_used_up(site):
    ours = site()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        client.settimeout(10)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            client.connect(("127.0.0.1", ours.port))
            client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            ours.loop.wait_for(lambda: ours.loop.complaints)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert answer_of(client)[0] == 200
    (said,) = ours.loop.complaints
    assert "cannot accept connections" in said and "Too many open files" in said


# a loop that does not answer


def test_a_late_loop_is_busy_and_a_standing_one_not_alive(site, monkeypatch):
    ours = site()
    assert ours.get("/livez") == (200, "ok\n")
    monkeypatch.setattr(http, "PROBE_S", 0.1)
    monkeypatch.setattr(pages, "LIVE_S", 0.5)
    ours.loop.turns.clear()
    began_at = time.monotonic()
    code, said = ours.get("/livez")
    while said == "ok\n":  # of the turn that it was in
        code, said = ours.get("/livez")
    while code == 200:
        assert re.fullmatch(r"busy for \d\.\d s\n", said)
        code, said = ours.get("/livez")
    assert code == 503
    assert said.startswith("the master's loop stands still: no answer for ")
    assert 0.5 <= time.monotonic() - began_at < 8
    code, said = ours.get("/readyz")
    assert code == 503
    assert said.startswith("the master's loop has not answered for ")
    ours.loop.turns.set()
    ours.loop.wait_for(lambda: ours.get("/livez") == (200, "ok\n"))
    ours.loop.wait_for(lambda: ours.get("/readyz") == (200, "serving\n"))


def test_a_probe_of_a_standing_loop_is_answered_within_a_second(site):
    ours = site()
    ours.loop.turns.clear()
    for number in range(60):
        ours.send(b"GET /status HTTP/1.1\r\n\r\n" if number % 2 else b"GET /metrics HTTP/1.1\r\n\r\n")
    began_at = time.monotonic()
    assert ours.get("/livez")[0] == 200
    assert http.PROBE_S / 2 <= time.monotonic() - began_at < http.REPORT_S - 0.5  # from the turn on in which it came
    ours.loop.turns.set()
    ours.loop.wait_for(lambda: ours.get("/status")[0] == 200)
    assert len(ours.loop.taken) < 20  # one of each kind, however many have asked


def test_too_many_waiting_reports_are_refused(site):
    ours = site()
    ours.loop.kept_back.add("/status")
    waiting = [ours.send(b"GET /status HTTP/1.1\r\n\r\n") for _ in range(http.MOST_REPORTS)]
    ours.get("/livez")  # they came first
    code, body = ours.get("/status")
    assert (code, json.loads(body)) == (503, {"error": f"{http.MOST_REPORTS} others wait for an answer already"})
    assert waiting


def test_a_late_answer_does_not_mean_a_standing_loop(site, monkeypatch):
    monkeypatch.setattr(pages, "LIVE_S", 0.0)
    monkeypatch.setattr(http, "REPORT_S", 0.2)
    ours = site()
    ours.loop.kept_back.add("/status")
    code, body = ours.get("/status")
    assert (code, json.loads(body)) == (503, {"error": "the master's loop has not answered for 0.0 s"})
    assert ours.get("/livez") == (200, "ok\n")


# its address


def test_a_port_alone_is_open_on_all_interfaces(site):
    ours = site(ListenAddress("", 0))
    assert ours.get("/livez") == (200, "ok\n")
    if socket.has_dualstack_ipv6():
        assert ours.get("/livez", host="::1") == (200, "ok\n")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_served(site):
    ours = site(ListenAddress("::1", 0))
    assert ours.get("/livez", host="::1") == (200, "ok\n")
    assert str(ours.listener.address) == f"[::1]:{ours.port}"


def test_a_taken_port_is_refused_with_the_remedy(site):
    taken = ListenAddress("127.0.0.1", site().port)
    with pytest.raises(http.Unavailable, match=f"^--http {taken} cannot be had: another process listens there; end it"):
        http.listen(taken)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "this machine has no such address; give one of its own, or only a port"),
        ("no.such.host.invalid", "this machine does not know the name"),
    ],
)
def test_a_foreign_address_is_refused_with_the_remedy(host, why):
    with pytest.raises(http.Unavailable, match=why):
        http.listen(ListenAddress(host, 9464))


# what it costs


def test_the_listener_sleeps_without_clients(site):
    ours = site()
    ours.get("/livez")
    thread = Path(f"/proc/self/task/{ours.listener._thread.native_id}/status")
    ours.loop.wait_for(lambda: not ours.listener._connections)

    def switches():
        return re.findall(r"\w*voluntary_ctxt_switches:\t(\d+)", thread.read_text())

    before = []
    while before != (before := switches()):  # until it is back in its wait
        time.sleep(0.2)
    time.sleep(0.5)
    assert switches() == before


def test_close_does_not_wait_for_clients(site):
    ours = site()
    ours.loop.turns.clear()
    client = ours.send(b"GET /status HTTP/1.1\r\n\r\n")
    began_at = time.monotonic()
    ours.listener.close(5)
    assert time.monotonic() - began_at < http.REPORT_S - 1
    assert not ours.listener._thread.is_alive()
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
