"""Connections of a master: URLs, logins, and errors."""

import errno
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import hiredis
import pytest
from redis.connection import parse_url

from supervisor.engine.transport.dial import BlockingConnection, Unreachable, dial
from supervisor.engine.transport.dialer import Dialer
from supervisor.engine.transport.link import Connector, Link, LinkLost
from tests.parts import refused

TIMEOUT_S = 5.0
NOPERM = b"-NOPERM User app has no permissions to run the ping command\r\n"


@pytest.fixture
def account(server) -> Iterator[str]:
    server.redis.acl_setuser("one@home", enabled=True, passwords=["+p@ss/word"], categories=["+@all"], keys=["*"])
    yield "one%40home:p%40ss%2Fword"
    server.redis.acl_deluser("one@home")


def hang_up_after(answer: bytes) -> Callable[[socket.socket], None]:
    def hang_up(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    return hang_up


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_server_is_reached_by_tcp(tcp, passing_on, host):
    with closing(dial(f"redis://{tcp(passing_on, host)}", TIMEOUT_S)) as line:
        assert line.call("ECHO", b"\xff") == b"\xff"
        assert line.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


#: Dials the server named by the arguments without what macOS lacks, and prints the keepalive's idle time.
_AS_ON_MACOS = """
import socket, sys, time
socket.TCP_KEEPALIVE = socket.TCP_KEEPIDLE  # under its other name
del socket.TCP_KEEPIDLE, time.CLOCK_BOOTTIME
from supervisor import AsyncClient, Client
from supervisor.engine.transport.dial import dial
line = dial(sys.argv[1], 5.0)
assert line.call("PING") == b"PONG"
print(line.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPALIVE))
"""


def test_client_works_without_the_names_that_macos_lacks(tcp, passing_on):
    command = [sys.executable, "-c", _AS_ON_MACOS, f"redis://{tcp(passing_on)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("30\n", "")


@pytest.mark.parametrize("database", ["/3", "?db=3", "/7?db=3"])
def test_the_address_names_user_password_and_database(server, tcp, passing_on, account, database):
    with closing(dial(f"redis://{account}@{tcp(passing_on)}{database}", TIMEOUT_S)) as line:
        (own,) = [c for c in server.redis.client_list() if c["id"] == str(line.call("CLIENT", "ID"))]
        assert (own["user"], own["db"]) == ("one@home", "3")


def test_unix_url_has_its_database_in_the_query(server, account):
    with closing(dial(f"unix://{account}@{server.socket}?db=2", TIMEOUT_S)) as line:
        (own,) = [c for c in server.redis.client_list() if c["id"] == str(line.call("CLIENT", "ID"))]
        assert (own["user"], own["db"]) == ("one@home", "2")


def test_options_name_the_connection_and_its_account(server, account):
    user, password = account.split(":")
    url = f"unix://{server.socket}?client_name=more&db=2&username={user}&password={password}"
    with closing(dial(url, TIMEOUT_S)) as line:
        (own,) = [c for c in server.redis.client_list() if c["id"] == str(line.call("CLIENT", "ID"))]
        assert (own["name"], own["user"], own["db"]) == ("more", "one@home", "2")


def test_options_bound_the_waits_and_turn_keepalive_off(tcp, passing_on):
    with closing(dial(f"redis://{tcp(passing_on)}?socket_timeout=2.5&socket_keepalive=no", TIMEOUT_S)) as line:
        assert line.socket.gettimeout() == 2.5
        assert not line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.fixture
def tls(by_tls, certificate) -> Callable[[str], BlockingConnection]:
    """Dial a server behind TLS: `tls(options)`, where CERT and KEY stand for files, and `host` for its name."""

    def dial_it(options: str, host: str = "127.0.0.1") -> BlockingConnection:
        port = by_tls.rpartition(":")[2]
        files = options.replace("CERT", str(certificate.path)).replace("KEY", str(certificate.key))
        return dial(f"rediss://{host}:{port}/0?{files}", TIMEOUT_S)

    return dial_it


@pytest.mark.parametrize(
    ("options", "host"),
    [
        ("ssl_ca_certs=CERT", "127.0.0.1"),
        ("ssl_ca_certs=CERT&ssl_min_version=772", "127.0.0.1"),
        ("ssl_ca_certs=CERT&ssl_include_verify_flags=[VERIFY_X509_PARTIAL_CHAIN]", "127.0.0.1"),
        ("ssl_ca_certs=CERT&ssl_check_hostname=false", "localhost"),
        ("ssl_cert_reqs=none", "localhost"),
    ],
)
def test_server_is_reached_by_tls(tls, options, host):
    with closing(tls(options, host)) as line:
        assert line.call("ECHO", b"\xff") == b"\xff"


@pytest.mark.parametrize(
    ("options", "host", "why"),
    [
        ("", "127.0.0.1", "certificate verify failed"),
        ("ssl_check_hostname=false", "127.0.0.1", "certificate verify failed"),
        ("ssl_cert_reqs=optional", "127.0.0.1", "certificate verify failed"),
        ("ssl_ca_certs=CERT", "localhost", "Hostname mismatch"),
        ("ssl_ca_certs=CERT&ssl_ciphers=NONSENSE", "127.0.0.1", "No cipher can be selected"),
        ("ssl_ca_certs=CERT&ssl_min_version=1", "127.0.0.1", "1 is not a valid TLSVersion"),
        ("ssl_ca_certs=/nowhere", "127.0.0.1", "No such file or directory"),
        ("ssl_ca_certs=CERT&ssl_exclude_verify_flags=[NONSENSE]", "127.0.0.1", "NONSENSE"),
    ],
)
def test_untrusted_server_is_refused(tls, options, host, why):
    with pytest.raises(Unreachable, match=why):
        tls(options, host)


def test_client_certificate_is_presented(tls, certificate):
    certificate.context.verify_mode = ssl.CERT_REQUIRED
    certificate.context.load_verify_locations(certificate.path)
    with closing(tls("ssl_ca_certs=CERT&ssl_certfile=CERT&ssl_keyfile=KEY")) as line:
        assert line.call("PING") == b"PONG"
    with pytest.raises(Unreachable):
        tls("ssl_ca_certs=CERT")


def test_an_error_that_the_server_answers_is_a_value(server):
    with closing(dial(server.url_of_one, TIMEOUT_S)) as line:
        assert isinstance(line.call("NONSENSE"), hiredis.ReplyError)
        assert line.call("PING") == b"PONG"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "Redis has closed the connection"),
        (b"-ERR max number of clients reached\r\n", "Redis refuses: ERR max number of clients reached"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "Redis refuses: LOADING"),
        (b"-NOAUTH Authentication required.\r\n", "Redis refuses: NOAUTH"),
        (b"HTTP/1.1 400 Bad Request\r\n", "what answers there is not Redis"),
    ],
)
def test_refused_login_says_why(tcp, said, why):
    with pytest.raises(Unreachable, match=why):
        dial(f"redis://{tcp(hang_up_after(said))}", TIMEOUT_S)


def test_account_without_ping_is_let_in(tcp):
    dial(f"redis://{tcp(hang_up_after(NOPERM))}", TIMEOUT_S).close()


def test_a_server_that_does_not_answer_is_given_up(tcp):
    gate = threading.Event()
    with pytest.raises(Unreachable, match="Redis has not answered: timed out"):
        dial(f"redis://{tcp(lambda _connection: gate.wait(60))}", 0.05)
    gate.set()


def test_a_server_that_answers_bit_by_bit_is_given_up(tcp):
    gate = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the other end hangs up
            while not gate.wait(0.02):
                connection.sendall(b"+")

    with pytest.raises(Unreachable, match="Redis has not answered: timed out"):
        dial(f"redis://{tcp(drip)}", 0.2)
    gate.set()


def test_password_that_the_server_repeats_is_not_shown(tcp):
    said = b"-ERR unknown command 'AUTH', with args beginning with: 'geheim' \r\n"
    with pytest.raises(Unreachable, match=r"Redis refuses: ERR unknown command 'AUTH'$"):
        dial(f"redis://:geheim@{tcp(hang_up_after(said))}", TIMEOUT_S)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("unix:///nowhere/at/all", "connecting failed: No such file or directory"),
        ("unix:///nowhere/at/all?client_name=x", "No such file or directory"),
        ("redis://127.0.0.1:1", "connecting failed: Connection refused"),
        (f"redis://{'x' * 70}.example", "connecting failed: "),
    ],
)
def test_missing_server_is_reported(url, why):
    with pytest.raises(Unreachable, match=why):
        dial(url, TIMEOUT_S)


def test_a_wrong_password_is_not_repeated(server):
    with pytest.raises(Unreachable, match="Redis refuses: WRONGPASS") as caught:
        dial(f"unix://someone:guess@{server.socket}", TIMEOUT_S)
    assert "guess" not in str(caught.value)


def test_master_without_tls_loads_neither_redis_py_nor_ssl(server):
    code = f"""
import contextlib, sys, supervisor.master.master
from supervisor.engine.transport.dial import Unreachable, dial
from supervisor.engine.transport.dialer import Dialer
dial("unix://{server.socket}?client_name=x", 5.0).close()
for kind in ("sentinel://127.0.0.1:1/m", "cluster://127.0.0.1:1"):
    with contextlib.suppress(Unreachable):
        Dialer(f"redis+{{kind}}", "{{{{k}}}}:").dial(1, 5.0)
sys.exit(bool({{"redis", "asyncio", "ssl"}} & sys.modules.keys()))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("option", ["rediss://127.0.0.1:1/0?ssl_cert_reqs=bogus", "redis://127.0.0.1:1/0?db=x"])
def test_wrong_option_is_reported_as_unreachable(option):
    with pytest.raises(Unreachable):
        dial(option, TIMEOUT_S)
    connector = Connector(Dialer(option, "{k}:"), 2, (), TIMEOUT_S)
    select.select([connector], [], [], TIMEOUT_S)
    with pytest.raises(LinkLost):
        connector.finish()


def test_connector_without_a_thread_has_failed(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    connector = Connector(Dialer("redis://127.0.0.1:1/0", "{k}:"), 2, (), TIMEOUT_S)
    assert select.select([connector], [], [], TIMEOUT_S)[0]
    with pytest.raises(LinkLost, match="can't start new thread"):
        connector.finish()


def test_connector_without_a_free_descriptor_has_failed(monkeypatch):
    monkeypatch.setattr(os, "eventfd", refused(1, errno.EMFILE, os.eventfd))
    with pytest.raises(LinkLost, match=r"^connecting failed: Too many open files$"):
        Connector(Dialer("redis://127.0.0.1:1/0", "{k}:"), 2, (), TIMEOUT_S)


@pytest.mark.parametrize(("path", "database"), [("/1", 1), ("/+1", 1), ("/%201", 1), ("", 0)])
def test_the_database_is_the_one_that_clients_take(tcp, path, database):
    asked: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        while said := connection.recv(4096):
            asked.append(said)
            connection.sendall(b"+OK\r\n")

    with closing(dial(f"redis://{tcp(answer)}{path}", TIMEOUT_S)):
        selected = [said for said in asked if b"SELECT" in said]
    assert selected == ([b"*2\r\n$6\r\nSELECT\r\n$1\r\n%d\r\n" % database] if database else [])
    assert parse_url(f"redis://h{path}").get("db", 0) == database


def test_large_reply_may_be_cut_anywhere():
    """A reply inside a list, as a job's data is, that ends at the end of a chunk."""
    ours, theirs = socket.socketpair()
    link = Link(ours)
    data = b"x" * (2 * 1024 * 1024)
    with closing(theirs), closing(link):
        parts = b"*2\r\n$%d\r\n%s\r\n" % (len(data), data), b":7\r\n:8\r\n"
        replies = []
        for part in parts:
            view = memoryview(part)
            theirs.setblocking(False)
            while view:
                with suppress(BlockingIOError):
                    view = view[theirs.send(view) :]
                replies += link.receive()
    assert replies == [[data, 7], 8]
