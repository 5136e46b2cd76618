"""The web page starts with the command and the variables of compose.yaml and of the manifest, as a container has it:
on a read-only root, without capabilities, in a network of its own, with a Redis that is found by its name.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import servers
from tests.deploy import image
from tests.deploy.test_compose import PASSWORD, STAGES
from tests.deploy.test_compose import WEB as COMPOSED
from tests.deploy.test_kubernetes import WEB as DEPLOYED
from tests.lengths import PATIENCE

ROOT = Path(__file__).parents[2]
PORT = 9465
TOKEN = "0123456789abcdef0123456789abcdef"
#: A busy machine takes seconds to start each of the commands.
LONGEST_S = 60.0 * PATIENCE
#: Both take the address of Redis from what an operator sets.
URL = f"redis://:{PASSWORD}@redis:6379/0"

#: $1 = an empty directory, $2 = the file of tokens, $3 = its text. What a container gets lies in layers of its own.
BOX = """
set -e
mount --make-rprivate /
ip link set lo up
mount -t tmpfs layers "$1"
for at in etc run; do
    mkdir "$1/$at" "$1/$at-work"
    mount -t overlay "$at" -o "lowerdir=/$at,upperdir=$1/$at,workdir=$1/$at-work" "/$at"
done
echo "127.0.0.1 redis" >> /etc/hosts
mkdir -p "$(dirname "$2")"
echo "$3" > "$2"
for at in /etc /run "$1" /tmp /; do mount -o remount,ro,bind "$at" 2>/dev/null || mount --bind -o ro "$at" "$at"; done
echo ready
exec sleep infinity
"""
#: $1 = a path, $2 = a name of the host, $3 = a token, of which one may be empty.
ASK = """
import sys, urllib.error, urllib.request
path, host, token = sys.argv[1:]
request = urllib.request.Request("http://127.0.0.1:9465" + path, headers={"Host": host})
if token:
    request.add_header("Authorization", "Bearer " + token)
try:
    answer = urllib.request.urlopen(request, timeout=50)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode(), end="")
"""


class Recipe(NamedTuple):
    """The start of the page in one of the two: its words, its variables, and the name by which visitors ask."""

    words: list[str]
    variables: dict[str, str]
    host: str


def variables_of(pod_container: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a manifest. Its secrets are what kustomization.yaml has an operator make."""
    return {each["name"]: each.get("value", URL) for each in pod_container["env"]}


RECIPES = {
    "compose": Recipe(COMPOSED["entrypoint"] + COMPOSED["command"], COMPOSED["environment"], "localhost"),
    "kubernetes": Recipe(DEPLOYED["command"] + DEPLOYED["args"], variables_of(DEPLOYED), "jobs.example.com"),
}


def flag(words: list[str], name: str) -> str:
    joined = next((word for word in words if word.startswith(f"{name}=")), None)
    return joined.partition("=")[2] if joined else words[words.index(name) + 1]


class Box:
    """A network and a file system like those of a container."""

    def __init__(self, holder: "subprocess.Popen[str]", variables: dict[str, str]) -> None:
        self._into = ["nsenter", "--mount", "--net", "--target", str(holder.pid)]
        of_image = {name: value for name, value in STAGES[-1].last("ENV").pairs().items() if "LEASEHOLD" in name}
        own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **of_image, **variables}
        self._env = ["env", "-i", "-C", str(ROOT), *(f"{name}={value}" for name, value in own.items())]
        self._bare = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]

    def command(self, *words: str) -> list[str]:
        """Return the command that runs this inside, as a process of the container."""
        return [*self._into, *self._bare, *self._env, *words]

    def leasehold(self, *words: str) -> list[str]:
        return self.command(sys.executable, "-m", "supervisor", *words)

    def ask(self, path: str, host: str = "localhost", token: str = "") -> tuple[int, str]:
        done = subprocess.run(
            self.command(sys.executable, "-c", ASK, path, host, token),
            capture_output=True, text=True, timeout=LONGEST_S, check=True,
        )  # fmt: skip
        status, _, text = done.stdout.partition(" ")
        return int(status), text


@contextmanager
def process(command: list[str], **options: Any) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(command, text=True, **options) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait(LONGEST_S)


@pytest.fixture(params=RECIPES)
def recipe(request) -> Recipe:
    return RECIPES[request.param]


@pytest.fixture
def box(recipe, tmp_path) -> Iterator[Box]:
    """A box with the file of tokens that the recipe names, and with a Redis that has the name and the password."""
    image.skip_where_it_cannot_be(tmp_path)
    tokens, layers = flag(recipe.words, "--token-file"), tmp_path / "layers"
    layers.mkdir()
    made = ["unshare", "--mount", "--net", "sh", "-c", BOX, "sh", str(layers), tokens, f"operator:kim:{TOKEN}"]
    with ExitStack() as stack:
        holder = stack.enter_context(process(made, stdout=subprocess.PIPE))
        assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
        inside = Box(holder, recipe.variables)
        redis = ["--port", "6379", "--requirepass", PASSWORD, "--save", "", "--appendonly", "no", "--dir", "/"]
        stack.enter_context(process(inside.command(str(servers.binary()), *redis), stdout=subprocess.DEVNULL))
        deadline_at = time.monotonic() + LONGEST_S
        while subprocess.run(
            inside.leasehold("queues"), capture_output=True, check=False, timeout=LONGEST_S
        ).returncode:
            assert time.monotonic() < deadline_at, "the Redis of the box does not answer"
        yield inside


def test_page_runs_by_the_recipe_and_answers(recipe, box):
    program, *words = recipe.words
    assert program == "leasehold"
    with process(box.leasehold(*words), stderr=subprocess.PIPE) as page:
        assert page.stderr is not None
        assert page.stderr.readline() == f"leasehold: listening at http://0.0.0.0:{PORT}\n"
        probed = subprocess.run(
            box.leasehold("healthcheck", "--http", str(PORT)),
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        assert (probed.returncode, probed.stdout) == (0, "ok\n"), probed.stderr
        assert box.ask("/livez", "10.1.2.3") == (200, "ok\n")
        assert box.ask("/api/v1/overview", recipe.host) == (401, '{"error":"a token is needed"}')
        assert box.ask("/api/v1/overview", "evil.example", TOKEN)[0] == 421

        put = box.leasehold("put", "email.send", '{"to": "ada", "password": "hunter2"}', "--jid", "first")
        assert subprocess.run(put, capture_output=True, timeout=LONGEST_S, check=False).returncode == 0
        status, text = box.ask("/api/v1/jobs/first", recipe.host, TOKEN)
        assert (status, json.loads(text)["job"]["data"]) == (200, {"to": "ada", "password": "(hidden)"})
        status, text = box.ask("/overview", recipe.host, TOKEN)
        assert status == 200 and "What is wrong now" in text
        assert "/act/put" in box.ask("/queue?queue=default", recipe.host, TOKEN)[1], "operators may act"
        page.send_signal(signal.SIGTERM)
        assert page.wait(LONGEST_S) == 0


def test_root_of_the_box_is_read_only(box):
    for path in ("/", "/etc", "/run", "/tmp"):
        done = subprocess.run(box.command("touch", f"{path}/written"), capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "Read-only file system" in done.stderr, path
