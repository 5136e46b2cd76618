"""The image: what its recipe says, and, as far as that goes without a container engine, what it builds and runs."""

import json
import os
import re
import signal
import tempfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import supervisor
from supervisor.config import FROM_KUBERNETES, VARIABLES
from supervisor.linux.kernel import children_of
from tests.deploy import dockerfile
from tests.deploy.image import Image, skip_where_it_cannot_be

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/Dockerfile"
ARGUMENTS, STAGES = dockerfile.read(RECIPE)
FINAL = STAGES[-1]
LOCKS = [ROOT / "deploy/requirements.txt", ROOT / "deploy/requirements-build.txt"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


# the recipe


def test_stages_share_one_small_pinned_image():
    assert {stage.base for stage in STAGES} == {ARGUMENTS["PYTHON"]}
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", ARGUMENTS["PYTHON"])


def test_last_stage_holds_no_build_tools():
    (built,) = (copy for copy in FINAL.all("COPY") if "from" in copy.flags)
    assert (built.flags["from"], built.text) == (STAGES[0].name, "/opt/leasehold /opt/leasehold")
    assert not any("pip" in run.text or "apt" in run.text for run in FINAL.all("RUN"))


def test_runs_as_a_numeric_unprivileged_user():
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", FINAL.last("USER").text)
    words = [each.word for each in FINAL.instructions]
    assert "RUN" not in words[words.index("USER") :], "what is run as that user could change what it runs"


def test_supervisor_is_pid_1_and_drains_at_the_stop_signal():
    assert FINAL.last("ENTRYPOINT").command() == ["leasehold", "run"]
    assert FINAL.last("STOPSIGNAL").text == "SIGTERM"
    assert not FINAL.all("CMD")


def test_health_check_needs_no_shell():
    check = FINAL.last("HEALTHCHECK")
    assert check.command() == ["leasehold", "healthcheck"]
    assert check.flags.keys() == {"interval", "timeout", "start-period", "retries"}
    assert FINAL.last("EXPOSE").text == FINAL.last("ENV").pairs()["LEASEHOLD_HTTP"]


def locked(path):
    """The version of each package, by its name."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    found = {}
    for line in lines:
        requirement, *hashes = line.split(" --hash=")
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", each) for each in hashes), requirement
        name, _, version = requirement.partition(";")[0].strip().partition("==")
        found[name] = Version(version)
    return found


def test_lock_is_complete_and_names_no_index():
    (extras,) = (each.pairs()["EXTRAS"].split(",") for each in STAGES[0].all("ARG") if "EXTRAS" in each.pairs())
    wanted = [*PROJECT["project"]["dependencies"]]
    wanted += [each for extra in extras for each in PROJECT["project"]["optional-dependencies"][extra]]
    for path, requirements in zip(LOCKS, (wanted, PROJECT["build-system"]["requires"]), strict=True):
        versions = locked(path)
        for requirement in map(Requirement, requirements):
            assert versions[requirement.name] in requirement.specifier, requirement
        assert "://" not in path.read_text()


def test_nothing_is_installed_but_by_its_hash():
    installs = [part for run in STAGES[0].all("RUN") for part in run.text.split("&&") if " install " in part]
    assert installs and all("--require-hashes" in each or "--no-index" in each for each in installs)
    (wheel,) = (part for run in STAGES[0].all("RUN") for part in run.text.split("&&") if " wheel " in part)
    assert "--no-build-isolation" in wheel and "--no-deps" in wheel, "else pip would fetch what builds it"


def test_image_holds_no_secret():
    given = {name for stage in STAGES for env in stage.all("ENV") for name in env.pairs()}
    assert given <= {*VARIABLES, "PATH"} and "LEASEHOLD_REDIS_URL" not in given
    assert not [name for name in given if FROM_KUBERNETES.fullmatch(name)]


def test_the_build_is_given_the_sources_and_nothing_else(tmp_path):
    tops = {file.parts[0] for file in dockerfile.context(ROOT)}
    assert tops == {"pyproject.toml", "README.md", "LICENSE", "supervisor", "handlers", "deploy"}
    assert {file.name for file in dockerfile.context(ROOT) if file.parts[0] == "deploy"} == {
        path.name for path in LOCKS
    }
    (tmp_path / ".dockerignore").write_text((ROOT / ".dockerignore").read_text())
    left_out = ["handlers/.env", "handlers/.env.local", "supervisor/__pycache__/x.pyc", ".git/config", "tests/x.py"]
    for name in ["handlers/x.py", *left_out]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "supervisor").mkdir(exist_ok=True)
    assert {str(file) for file in dockerfile.context(tmp_path) if (tmp_path / file).is_file()} == {"handlers/x.py"}


# the image


@pytest.mark.full
@pytest.mark.slow
def test_image_builds_runs_a_job_and_drains(server, namespace):
    server.socket.chmod(0o777)  # its directory is closed; the user of the image comes by another way
    with tempfile.TemporaryDirectory(prefix="lh-image-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        skip_where_it_cannot_be(Path(directory))
        image = Image(Path(directory)).build(ROOT, STAGES)
        for words, code, said in [
            (["leasehold", "--version"], 0, ""),
            (FINAL.last("ENTRYPOINT").command(), 78, "LEASEHOLD_REDIS_URL"),
            (FINAL.last("HEALTHCHECK").command(), 1, FINAL.last("EXPOSE").text),
            (["touch", "/app/x"], 1, "Read-only"),
            (["touch", "/tmp/x"], 0, ""),
        ]:
            with image.container(words, server.socket, {}) as box:
                _, stderr = box.communicate(timeout=60)
            assert (box.returncode, len(stderr.splitlines()) <= 1, said in stderr) == (code, True, True), (
                words,
                stderr,
            )
        runs_a_job_and_drains(image, server, namespace)
        serves_the_page_until_it_is_stopped(image, server, namespace)


def runs_a_job_and_drains(image, server, namespace):
    environment = {"LEASEHOLD_REDIS_URL": "unix:///run/redis.sock", "LEASEHOLD_NAMESPACE": namespace}
    words = [*FINAL.last("ENTRYPOINT").command(), "--processes", "1"]
    with supervisor.Client(server.url, namespace) as client:
        jid = client.queue("default").put("text.words", {"text": "to be or not to be"})
        with image.container(words, server.socket, environment) as box:
            try:
                events = {}
                for event in map(json.loads, box.stderr):
                    events.setdefault(event["event"], event)
                    if event["event"] == "job.completed":
                        break
                assert "job.completed" in events, events
                assert events["master.started"]["pid"] == 1
                (master,) = children_of(box.pid)
                asked = image.enter(master, ["leasehold", "status", "--json"], environment)
                assert asked.returncode == 0, asked.stderr
                (told,) = json.loads(asked.stdout).values()
                assert told["state"] == "serving"
                asked = image.enter(master, FINAL.last("HEALTHCHECK").command(), environment)
                assert (asked.returncode, asked.stderr) == (0, "")
                os.kill(master, signal.SIGTERM)
                *_, last = map(json.loads, box.stderr)
                assert (last["event"], box.wait(30)) == ("master.stopped", 0)
            finally:
                box.kill()
        assert client.job(jid).state == "complete"


def serves_the_page_until_it_is_stopped(image, server, namespace):
    environment = {"LEASEHOLD_REDIS_URL": "unix:///run/redis.sock", "LEASEHOLD_NAMESPACE": namespace}
    with image.container(["leasehold", "web", "--http", "127.0.0.1:9465"], server.socket, environment) as box:
        try:
            assert box.stderr.readline() == "leasehold: listening at http://127.0.0.1:9465\n"
            (master,) = children_of(box.pid)
            asked = image.enter(master, ["leasehold", "healthcheck", "--http", "127.0.0.1:9465"], environment)
            assert (asked.returncode, asked.stdout, asked.stderr) == (0, "ok\n", "")
            os.kill(master, signal.SIGTERM)
            assert box.wait(30) == 0
        finally:
            box.kill()
