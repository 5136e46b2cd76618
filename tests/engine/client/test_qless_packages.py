"""The records of old_qless.py are those of the scripts of the published packages. TEST_FULL=1, or the full CI, asks."""

import functools
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests import servers
from tests.engine.client.old_qless import OldQless, scene
from tests.lengths import LONG

pytestmark = pytest.mark.skipif(not LONG, reason="downloads qless and reqless, which has to be asked for: TEST_FULL=1")

#: Package -> the file of its scripts, and whether it has throttles.
PACKAGES = {
    "qless-py==0.11.4": ("qless-py-0.11.4/qless/qless-core/qless.lua", False),
    "qless-with-throttles==0.11.4": ("qless/lua/qless.lua", True),
    "reqless==0.13.3": ("reqless/lua/qless.lua", True),
}
NOW = 1_700_000_000.25


class Published(OldQless):
    """A qless whose calls are made by the package's own scripts."""

    def __init__(self, redis, now, lua, throttles):
        super().__init__(redis, now, throttles)
        self._run = redis.register_script(lua)

    def _call(self, command, *words):
        return self._run([], [command, repr(self.now), *words])

    def put(self, queue, jid, klass, data, delay=0, priority=0, tags=(), retries=5, depends=(), throttles=()):
        options = {"priority": priority, "retries": retries, "tags": json.dumps(tags), "depends": json.dumps(depends)}
        if self._throttles:
            options["throttles"] = json.dumps(throttles)
        more = [part for pair in options.items() for part in pair]
        self._call("put", *(["w-0"] if self._throttles else []), queue, jid, klass, data, delay, *more)

    def pop(self, queue, worker):
        [found] = json.loads(self._call("pop", queue, worker, 1))
        return found["jid"]

    def fail(self, jid, worker, group, message):
        self._call("fail", jid, worker, group, message)

    def retry(self, jid, queue, worker):
        self._call("retry", jid, queue, worker)

    def complete(self, jid, worker, data):
        self._call("complete", jid, worker, json.loads(self._call("get", jid))["queue"], data)

    def recur(self, queue, jid, klass, data, interval, offset, priority=0, tags=(), retries=0, backlog=0):
        options = {"priority": priority, "tags": json.dumps(tags), "retries": retries, "backlog": backlog}
        more = [part for pair in options.items() for part in pair]
        self._call("recur", queue, jid, klass, data, "interval", interval, offset, *more)

    def throttle(self, name, maximum):
        self._call("throttle.set", name, maximum)

    def pause(self, queue):
        self._call("pause", queue)

    def track(self, jid):
        self._call("track", "track", jid)

    def configure(self, option, value):
        self._call("config.set", option, value)


@functools.cache
def scripts_of(package):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"{package} cannot be had: {done.stderr.strip().splitlines()[-1]}")
        [found] = Path(folder).iterdir()
        stored = io.BytesIO(found.read_bytes())
    file = PACKAGES[package][0]
    if zipfile.is_zipfile(stored):
        return zipfile.ZipFile(stored).read(file).decode()
    stored.seek(0)
    with tarfile.open(fileobj=stored) as archive:
        return archive.extractfile(file).read().decode()


@pytest.fixture(scope="module")
def redis():
    with servers.running(servers.binary()) as socket, servers.connected(socket) as connection:
        yield connection


def held(redis):
    """Return what lies in each key, without statistics. JSON is decoded, because Lua has no order of keys."""
    found = {}
    for key in redis.keys("ql:*"):
        kind = redis.type(key)
        if key.startswith(b"ql:s:"):
            continue
        if kind == b"hash":
            found[key] = {name: plain(value) for name, value in redis.hgetall(key).items()}
        elif kind == b"zset":
            found[key] = redis.zrange(key, 0, -1, withscores=True)
        elif kind == b"list":
            found[key] = [plain(value) for value in redis.lrange(key, 0, -1)]
        else:
            found[key] = redis.smembers(key)
    return found


def plain(value):
    try:
        return json.loads(value)
    except ValueError:
        return value


@pytest.mark.parametrize("package", PACKAGES)
def test_records_are_those_of_the_package(redis, package):
    throttles = PACKAGES[package][1]
    #: No server since Redis 6.2.7 lets a script add to `table`, as the oldest package does.
    lua = scripts_of(package).replace("function table.extend", "local function table_extend")
    redis.flushall()
    scene(Published(redis, NOW, lua.replace("table.extend", "table_extend"), throttles), throttles)
    theirs = held(redis)
    redis.flushall()
    scene(OldQless(redis, NOW, throttles), throttles)
    assert held(redis) == theirs
    assert len(theirs) > 40
