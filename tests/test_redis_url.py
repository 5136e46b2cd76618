"""Redis URLs: invalid ones are refused with the reason, and no secret is ever shown."""

import inspect
import re

import pytest
import redis
import redis.asyncio

from supervisor import redis_options
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.redis_url import checked, nodes, redacted, secrets


@pytest.fixture
def pem(tmp_path):
    path = tmp_path / "ca.pem"
    path.touch()
    return path


GOOD = [
    "embedded:", "redis://h", "redis://h/", "redis://h:1/0", "rediss://u:p@h:1/0", "redis://[::1]:6379/3",
    "unix:///run/x?db=1", "unix://:p@/run/x", "redis://:p%40%2F%23%3F@h/0", "redis://h/7?db=3",
    "redis://h/0?socket_timeout=1.5&client_name=web-1&health_check_interval=30&max_connections=50&protocol=2",
    "rediss://h/0?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_password=x",
    "redis+sentinel://h1:26379,h2:26379/mymaster/0", "redis+sentinel://u:p@h1,[::1]:1,h3/my.master-1",
    "rediss+sentinel://h/m?ssl_cert_reqs=none&sentinel_username=u&sentinel_password=p&db=3",
    "redis+cluster://h1:7000,h2:7001", "redis+cluster://u:p@h1/0?client_name=x", "rediss+cluster://h1/?ssl_cert_reqs=none",
]  # fmt: skip


@pytest.mark.parametrize("url", GOOD)
def test_good_urls_are_taken_unchanged(url):
    assert checked(url) == url


def test_existing_certificate_files_are_accepted(pem):
    url = f"rediss://h/0?ssl_ca_certs={pem}&ssl_certfile={pem}&ssl_keyfile={pem}&ssl_ca_path={pem.parent}"
    assert checked(url) == url


WRONG = [
    ("", "must be redis://"),
    ("localhost:6379", "must be redis://"),
    ("http://h/0", "must be redis://"),
    ("redis://", "must be redis://"),
    ("redis:///0", "must be redis://"),
    ("redis://h:port/0", "must be redis://"),
    ("redis://h:70000/0", "must be redis://"),
    ("unix://run/x", "must be redis://"),
    ("unix://", "must be redis://"),
    ("redis://h/0\n", "control character"),
    ("redis://h/abc", "database that is no number"),
    ("redis://h/1/2", "database that is no number"),
    ("redis://h/-1", "database that is no number"),
    ("redis://h/0#x", "has a #"),
    ("redis://h/?db=abc", "the option db with a wrong value"),
    ("unix:///run/x?db=-1", "the option db with a wrong value"),
    ("redis://h/0?socket_timeout=abc", "the option socket_timeout with a wrong value: it must be a number of seconds"),
    ("redis://h/0?socket_timeout=0", "socket_timeout"),
    ("redis://h/0?socket_timeout=nan", "socket_timeout"),
    ("redis://h/0?socket_timeout=", "the option socket_timeout without a value"),
    ("redis://h/0?socket_timeout", "the option socket_timeout without a value"),
    ("redis://h/0?socket_timeout=1&socket_timeout=2", "the option socket_timeout twice"),
    ("redis://h/0?socket_tiemout=1", "an unknown option 'socket_tiemout': did you mean socket_timeout?"),
    ("redis://h/0?nonsense=1", "there are client_name, db,"),
    ("redis://h/0?geheim", "has an unknown option without a value: there are"),
    ("redis://h/0?decode_responses=true", "an unknown option 'decode_responses'"),
    ("redis://h/0?protocol=3", "the option protocol"),
    ("redis://h/0?max_connections=0", "the option max_connections"),
    ("redis://h/0?ssl_ca_certs=/etc/passwd", "which only a URL with TLS (rediss…) has"),
    ("rediss://h/0?ssl_check_hostname=off", "the option ssl_check_hostname with a wrong value"),
    ("rediss://h/0?ssl_cert_reqs=bogus", "it must be none, optional or required"),
    ("rediss://h/0?ssl_ca_certs=/nowhere/ca.pem", "it must be a file that is there"),
    ("rediss://h/0?ssl_certfile=/nowhere/ca.pem", "it must be a file that is there"),
    ("rediss://h/0?ssl_keyfile=/tmp", "it must be a file that is there"),
    ("rediss://h/0?ssl_ca_path=/nowhere", "it must be a directory that is there"),
    ("redis+sentinel://h1,h2", "must name the service that its sentinels watch"),
    ("redis+sentinel://h1,h2/", "must name the service that its sentinels watch"),
    ("redis+sentinel://h1,h2/m/x", "must name the service that its sentinels watch"),
    ("redis+sentinel:///mymaster/0", "must be redis://"),
    ("redis+sentinel://h1,,h2/mymaster", "must be redis://"),
    ("redis+sentinel://h1:0/mymaster", "must be redis://"),
    ("redis+sentinel://h1:70000/mymaster", "must be redis://"),
    ("redis+sentinel://h1:port/mymaster", "must be redis://"),
    ("redis+sentinel://h1/m?ssl_cert_reqs=none", "which only a URL with TLS"),
    ("redis+sentinels://h1/m", "must be redis://"),
    ("redis://h/0?sentinel_password=x", "which only a URL of sentinels"),
    ("redis+cluster://h1,h2/1", "names a database of a Cluster"),
    ("redis+cluster://h1,h2?db=1", "names a database of a Cluster"),
    ("redis://h1,h2/0", "only redis+sentinel and redis+cluster have several"),
    ("redis://a..b/0", "names a host that there cannot be"),
    (f"rediss://{'x' * 64}/0", "names a host that there cannot be"),
    ("redis+sentinel://h,a..b/m", "names a host that there cannot be"),
    ("redis+cluster://h%2Cb", "names a host that there cannot be"),
    ("rediss://h/0?ssl_include_verify_flags=[X]", "it must be a list like [VERIFY_X509_STRICT]"),
    ("rediss://h/0?ssl_min_version=7", "it must be 769, 770, 771 or 772"),
    ("redis://h/0?password_file=/nowhere", "it must be a file that is there"),
    ("redis://:geheim@h/0?password_file=/etc/passwd", "a password and the option password_file; keep one"),
    ("redis://h/0?password=geheim&password_file=/etc/passwd", "a password and the option password_file; keep one"),
    ("redis://u@h/0?username_file=/etc/passwd", "a username and the option username_file; keep one"),
]


@pytest.mark.parametrize(("url", "why"), WRONG)
def test_wrong_urls_are_refused_with_the_reason(url, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        checked(url)


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(("url", "why"), WRONG[1:])
def test_clients_refuse_wrong_urls(client, url, why):
    with pytest.raises(ValueError, match=re.escape(why)) as raised:
        client(url)
    assert str(raised.value).startswith("url '")


def test_clients_name_the_variable_of_a_wrong_url(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", "redis://:geheim@h/abc")
    with pytest.raises(ValueError, match=r"^LEASEHOLD_REDIS_URL 'redis://:\*\*\*@h/abc' names a database"):
        Client()


def test_every_option_is_one_of_both_clients_of_redis_py():
    for module in (redis, redis.asyncio):
        known = {"max_connections"}
        for kind in (module.Connection, module.SSLConnection):
            for each in kind.__mro__:
                known |= inspect.signature(each.__init__).parameters.keys()
        assert known >= (redis_options.SHOWN | redis_options.SECRET) - redis_options.OURS


SHOWN = [
    ("redis://:geheim@host:1/2", "redis://:***@host:1/2"),
    ("redis://geheim@host/0", "redis://***@host/0"),
    ("rediss://user:geh@eim@host/0?password=geheim", "rediss://user:***@host/0?password=***"),
    ("rediss://h/0?ssl_password=geheim&ssl_ca_certs=/x", "rediss://h/0?ssl_password=***&ssl_ca_certs=/x"),
    ("rediss://h/0?pass%77ord=geheim", "rediss://h/0?pass%77ord=***"),
    ("redis://h/0?pasword=geheim&db=1", "redis://h/0?pasword=***&db=1"),
    ("redis://h/0?db=0;password=geheim", "redis://h/0?db=***"),
    ("redis://h/0?db=0%26password=geheim", "redis://h/0?db=***"),
    ("redis://h/0?db=0%26password%3Dgeheim", "redis://h/0?db=***"),
    ("redis://h/0?db=0%2526password%253Dgeheim", "redis://h/0?db=***"),
    ("redis://h/0?client_name=a%3Bpassword:geheim", "redis://h/0?client_name=***"),
    ("unix://:geheim@/tmp/socket?db=1", "unix://:***@/tmp/socket?db=1"),
    ("unix:///tmp/a@b/socket?db=1", "unix:///tmp/a@b/socket?db=1"),
    ("redis://user:12/geheim@h/0", "redis://user:***@h/0"),
    ("redis://user:12?geheim@h/0", "redis://user:***@h/0"),
    ("redis://user:12?a=geheim@h/0", "redis://user:***@h/0"),
    ("redis://user:12#geheim@h/0", "redis://user:***@h/0"),
    ("redis:/user:geheim@h/0", "***@h/0"),
    ("redis//user:geheim@h/0", "***@h/0"),
    ("redis://a://b:geheim@h/0", "***@h/0"),
    ("unix:?password=geheim", "unix:?password=***"),
    ("redis://h:1/0?socket_timeout=5", "redis://h:1/0?socket_timeout=5"),
    ("redis://[::1]:1/2", "redis://[::1]:1/2"),
    ("redis://h/0?password=a&geheim", "redis://h/0?password=***&***"),
    ("redis://user:geheim%40h", "redis://user***"),
    ("redis://user:geheim", "redis://user***"),
    ("redis://h#password=geheim", "redis://h***"),
    ("unix:///s#geheim", "unix:///s#***"),
    ("unix:///:geheim@/tmp/s", "unix:///:***@/tmp/s"),
    ("redis+sentinel://h1:26379,h2/mymaster/0", "redis+sentinel://h1:26379,h2/mymaster/0"),
    ("rediss+cluster://h1:1,[::1]:2,h3", "rediss+cluster://h1:1,[::1]:2,h3"),
    (
        "redis+sentinel://u:geheim@h1,h2/m?sentinel_password=geheim",
        "redis+sentinel://u:***@h1,h2/m?sentinel_password=***",
    ),
    ("redis+sentinel://u:geheim,h2/m", "redis+sentinel://***"),
    ("redis+sentinel://h1,u:gehe/im@h2/m", "redis+sentinel://h1,u:***@h2/m"),
    ("redis://h/0?password_file=/run/secrets/redis", "redis://h/0?password_file=/run/secrets/redis"),
]


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_no_secret_of_a_url_is_shown(url, shown):
    assert redacted(url) == shown
    try:
        checked(url)
    except ValueError as error:
        assert "geh" not in str(error) and "eim" not in str(error)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://h/0", ()),
        ("redis://user@h/0", ()),
        ("redis://u:p%40w@h/0", ("p@w",)),
        ("unix:///run/x?password=a", ("a",)),
        ("rediss://u:a@h/0?password=b&ssl_password=c%20d", ("a", "b", "c d")),
        ("embedded:", ()),
    ],
)
def test_secrets_are_all_passwords_of_a_url(url, found):
    assert secrets(url) == found


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis+sentinel://h1,h2/m/3?client_name=a%20b", "redis://10.0.0.1:7/3?client_name=a%20b"),
        ("rediss+sentinel://u:p%40@h1,h2/m?sentinel_password=x&db=2", "rediss://u:p%40@10.0.0.1:7/?db=2"),
        ("redis+cluster://:p@h1,h2", "redis://:p@10.0.0.1:7/"),
    ],
)
def test_url_of_nodes_becomes_that_of_the_server(url, server):
    assert checked(nodes(url).server("10.0.0.1", 7)) == server


def test_nodes_are_asked_with_all_options_of_tls_and_without_an_account():
    tls = "ssl_ciphers=A%3AB&ssl_min_version=772"
    found = nodes(f"rediss+sentinel://u:p@h1/m/3?sentinel_password=s&socket_timeout=9&client_name=c&{tls}")
    assert checked(found.node("::1", 7)) == f"rediss://[::1]:7?{tls}"
    assert found.account_of_sentinels() == ("", "s")


def test_url_of_nodes_has_their_addresses():
    assert nodes("redis+sentinel://h1:1,[::1]/m").places == (("h1", 1), ("::1", 26379))
    assert nodes("redis+cluster://h1,h2:2").places == (("h1", 6379), ("h2", 2))
    assert nodes("redis+cluster://h1").server("::1", 7) == "redis://[::1]:7/"
    assert nodes("redis://h1") is None
