"""All commands alike: valid examples, one sentence for wrong use, 69 without a server."""

import shlex

import pytest

from supervisor.cli.commands.jobs import STATES
from supervisor.cli.lib.parser import COMMANDS, Parser, build
from supervisor.engine.commands import job_queries

#: The shortest correct use of each command that talks to Redis and ends by itself.
SHORTEST = {
    "put": ["a.b"],
    "recur": [],
    "queues": [],
    "lane": ["q"],
    "limit": [],
    "serve": ["w", "q"],
    "jobs": ["complete"],
    "peek": ["q"],
    "job": ["j"],
    "why": ["j"],
    "audit": [],
    "failed": [],
    "unfail": ["g"],
    "retry": ["j"],
    "cancel": ["j"],
    "fail": ["j"],
    "release": ["j"],
    "move": ["j", "q"],
    "priority": ["j", "1"],
    "depend": ["j", "--on", "k"],
    "signal": ["j", "approval"],
    "batch": [],
    "door": [],
    "tag": [],
    "track": [],
    "log": ["j", "m"],
    "workers": [],
    "stacks": [],
    "status": [],
    "drain": ["w"],
    "reload": [],
    "scale": ["w", "4"],
    "stats": ["q"],
    "upgrade": [],
    "reshard": ["4", "--dry-run"],
    "top": [],
    "web": [],
    "config": [],
    "pause": ["q"],
    "unpause": ["q"],
    "events": [],
    "check": [],
    "sweep": [],
}
READING = (
    "recur",
    "door",
    "queues",
    "lane",
    "limit",
    "jobs",
    "peek",
    "job",
    "why",
    "failed",
    "tag",
    "track",
    "workers",
    "stacks",
    "status",
    "stats",
    "config",
    "events",
)


def parser_of(command: str) -> Parser:
    built, _ = build(command)
    return built.commands[command]


def examples_of(command: str) -> list[list[str]]:
    lines = [line.partition(" | ")[0] for line in parser_of(command).format_help().splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("  leasehold ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_of_the_help_is_one_that_is_taken(command):
    examples = examples_of(command)
    assert any(words[0] == command for words in examples)
    for words in examples:
        build(words[0])[0].parse_args(words)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_help_that_fits_120_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    parser = parser_of(command)
    assert [action.dest for action in parser.declared if action.option_strings and not action.help] == []
    assert max(len(line) for line in parser.format_help().splitlines()) <= 120


@pytest.mark.parametrize("command", (*READING, "check"))
def test_reading_commands_take_json(command):
    assert "--json" in parser_of(command).format_help()


def test_all_commands_are_looked_at_here():
    assert set(SHORTEST) == set(COMMANDS) - {
        *("run", "demo", "doctor", "healthcheck", "completion", "bench", "handlers", "stubs", "outbox"),
        "adopt",  # its URL is the server's
    }
    assert set(STATES) == {*job_queries.STATES, "recurring"}


@pytest.mark.parametrize("command", SHORTEST)
def test_no_server_is_69_without_the_password(shell, monkeypatch, command):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", "redis://:geheim@127.0.0.1:1/0")
    said = shell.refused(69, command, *SHORTEST[command])
    assert "127.0.0.1:1" in said and "geheim" not in said


@pytest.mark.parametrize("program", ["celery", "qless"])
def test_adopt_of_no_server_is_69_without_the_password(shell, program):
    said = shell.refused(69, "adopt", f"{program}://:geheim@127.0.0.1:1/0")
    assert "127.0.0.1:1" in said and "geheim" not in said


BAD_NAME = "x" * 65
WRONG = [
    (["web", "--http", "none"], "--http 'none' must be an address of the loopback"),
    (["web", "--http", "9465"], "--http '9465' must be an address of the loopback"),
    (["web", "--http", "0.0.0.0:9465"], "without a login"),
    (
        ["web", "--auth-header", "X-User", "--auth-proxy", "10.0.0.2", "--operators", "ada"],
        "--operators needs --allow-actions",
    ),
    (["web", "--auth-header", "X-User"], "--auth-header and --auth-proxy need each other"),
    (["web", "--auth-proxy", "10.0.0.2"], "--auth-header and --auth-proxy need each other"),
    (["web", "--token-file", "f", "--auth-header", "X", "--auth-proxy", "::1"], "keep one of them"),
    (["web", "--http", "here"], "--http 'here'"),
    (["web", "--hide", "password,,"], "--hide 'password,,' must be words"),
    (["outbox"], "DATABASE"),
    (["outbox", "app.db"], "sqlite:///PATH"),
    (["outbox", "sqlite:///app.db", "--poll", "soon"], "--poll 'soon'"),
    (["outbox", "sqlite:///app.db", "--poll", "0"], "--poll '0'"),
    (["outbox", "sqlite:///app.db", "--batch", "many"], "--batch 'many'"),
    (["drain"], "WORKER, or --all"),
    (["drain", "w", "--all"], "WORKER, or --all"),
    (["drain", "--all", "--timeout", "soon"], "--timeout 'soon'"),
    (["scale", "4"], "WORKER, or --all"),
    (["scale", "w", "0"], "PROCESSES '0' must be auto, N or MIN:MAX"),
    (["scale", "w", "8:2"], "PROCESSES '8:2' must be auto, N or MIN:MAX"),
    (["scale", "--all", "99999"], "from 1 to 4096"),
    (["pause"], "QUEUE, --worker or --all-workers"),
    (["pause", "q", "--worker", "w"], "QUEUE, --worker or --all-workers"),
    (["unpause", "--worker", "w", "--all-workers"], "QUEUE, --worker or --all-workers"),
    (["top", "--every", "soon"], "--every 'soon'"),
    (["top", "--every", "1ms"], "--every '1ms' must be from 0.2s to 60s"),
    (["qeues"], "did you mean queues?"),
    (["requeue", "j"], "did you mean retry?"),
    (["ps"], "did you mean status?"),
    (["put", "a.b", "--priorty", "1"], "did you mean --priority?"),
    (["put", "a.b", "--on-parent-failure", "waite"], "did you mean wait?"),
    (["put", "a.b", "--tag", ""], "tags"),
    (["put", "a.b", "--debounce", "5s"], "debounce needs unique"),
    (["put", "a.b", "--unique=k", "--throttle", "soon"], "--throttle 'soon'"),
    (["put", "a.b", "--unique", "--collect", "5s"], "collect needs a key"),
    (["put", "a.b", "--unique=k", "--most", "5"], "most goes with collect"),
    (["put", "a.b", "--unique=k", "--collect", "5s", "--most", "0"], "most must be from 1 to 10000"),
    (["put", "a.b", "--depends", BAD_NAME], "depends"),
    (["recur", "a.b"], "--every or --cron"),
    (["recur", "a.b", "--every", "5m", "--cron", "* * * * *"], "--every or --cron"),
    (["recur", "--every", "5m"], "KLASS"),
    (["recur", "a.b", "--every", "soon"], "--every 'soon'"),
    (["recur", "a.b", "--every", "0"], "every"),
    (["recur", "a.b", "--every", "5", "--missed", "onse"], "did you mean once?"),
    (["recur", "a.b", "--every", "5", "--backlog", "-1"], "backlog"),
    (["recur", "a.b", "--every", "5", "--missed", "once", "--backlog", "1"], "backlog"),
    (["recur", "a.b", "--every", "5", "--tz", "UTC"], "tz"),
    (["recur", "a.b", "--cron", "* * * * *", "--offset", "5"], "offset"),
    (["recur", "a.b", "{", "--every", "5"], "DATA is not JSON"),
    (["recur", "a.b", "--every", "5", "--json"], "--json"),
    (["recur", "--update", "j"], "--update needs"),
    (["recur", "--update", "j", "--jid", "k"], "--jid"),
    (["recur", "--update", "j", "--cancel", "j"], "not both"),
    (["recur", "--cancel", "j", "--every", "5"], "stands alone"),
    (["recur", "--cancel", BAD_NAME], "jid"),
    (["put", "a.b", "--lane", BAD_NAME], "lane"),
    (["put", "a.b", "--limit", BAD_NAME], "limit"),
    (["put", "a.b", f"--unique={BAD_NAME}"], "unique"),
    (["put", "a.b", "--expires", "soon"], "--expires 'soon'"),
    (["put", "a.b", "--persistent", "--at-most-once"], "persistent"),
    (["put", "--unique", "--persistent"], "KLASS"),
    (["recur", "a.b", "--every", "5", "--persistent"], "--persistent"),
    (["recur", "a.b", "--every", "5", "--lane", BAD_NAME], "lane"),
    (["recur", "a.b", "--every", "5", "--expires", "soon"], "--expires 'soon'"),
    (["queues", "--forget", ""], "queue"),
    (["queues", "q", "--forget", "q"], "stands alone"),
    (["queues", "--delete"], "--delete needs QUEUE"),
    (["queues", "q", "--delete", "--json"], "--delete needs QUEUE"),
    (["queues", "q", "--stop"], "--stop goes with --delete"),
    (["queues", "q", "--yes"], "--yes goes with --delete"),
    (["queues", BAD_NAME], "queue"),
    (["queues", "!q"], "queues only excludes"),
    (["lane"], "QUEUE"),
    (["lane", BAD_NAME], "queue"),
    (["lane", "q", BAD_NAME], "lane"),
    (["lane", "q", "--pause"], "--pause needs LANE"),
    (["lane", "q", "l", "--pause", "--json"], "--pause needs LANE, and no --json"),
    (["lane", "q", "l", "--pause", "--unpause"], "give one of --pause --unpause"),
    (["lane", "q", "l", "--weight", "0"], "--weight '0'"),
    (["lane", "q", "l", "--weight", "1001"], "--weight '1001'"),
    (["lane", "q", "l", "--weight", "heavy"], "--weight 'heavy'"),
    (["lane", "q", "l", "--stop"], "--stop goes with --delete"),
    (["lane", "q", "l", "--delete"], "pass --yes"),
    (["limit", "--running", "5"], "KEY"),
    (["door", "open"], "open"),
    (["door", "list", "d"], "NAME"),
    (["door", "list", "--format", "rwq"], "--format is for `door add`"),
    (["door", "remove", "d", "--klass-map", "gone"], "--klass-map is for `door add`"),
    (["door", "add"], "NAME"),
    (["door", "remove", "d", "--json"], "--json"),
    (["door", "add", "d", "--format", "rwq", "--queue", "q"], "--source"),
    (["door", "add", "d", "--format", "tube", "--source", "s", "--queue", "q"], "format must be one of"),
    (["door", "add", "d", "--format", "celery", "--source", "s", "--queue", "q", "--klass-map", "gone"], "--klass-map"),
    (["adopt"], "URL"),
    (["adopt", "redis://localhost"], "URL must begin with one of celery://"),
    (["adopt", "celery"], "URL must begin with one of celery://"),
    (["adopt", "celery://localhost", "--redis-url", "redis://localhost"], "give one of them"),
    (["limit", "--remove"], "KEY"),
    (["limit", BAD_NAME], "key"),
    (["limit", "k", "--running", "-1"], "--running '-1'"),
    (["limit", "k", "--rate", "fast"], "rate must be starts per time"),
    (["limit", "k", "--rate", "10/week"], "'10/week'"),
    (["limit", "k", "--rate", "0/s"], "rate"),
    (["limit", "k", "--remove", "--running", "1"], "stands alone"),
    (["serve", "w"], "QUEUE"),
    (["serve", BAD_NAME, "q"], "name"),
    (["jobs"], "STATE"),
    (["jobs", "wating", "--queue", "q"], "did you mean waiting?"),
    (["jobs", "waiting", "--offset", "1"], "--offset needs --queue"),
    (["jobs", "waiting", "--queue", BAD_NAME], "queue"),
    (["jobs", "complete", "--count", "0"], "--count '0'"),
    (["jobs", "complete", "--count", "1001"], "--count '1001'"),
    (["jobs", "complete", "--offset", "-1"], "--offset '-1'"),
    (["jobs", "complete", "--offset", "²"], "--offset '²'"),
    (["peek"], "QUEUE"),
    (["peek", "q", "0"], "N '0'"),
    (["peek", "q", "many"], "N 'many'"),
    (["failed", "--offset", "1"], "--offset needs GROUP"),
    (["failed", "g", "--offset", "x"], "--offset 'x'"),
    (["unfail"], "GROUP"),
    (["unfail", ""], "group"),
    (["unfail", "g", "--count", "0"], "--count '0'"),
    (["unfail", "g", "--queue", BAD_NAME], "queue"),
    (["unfail", "g", "--klass", BAD_NAME], "klass"),
    (["unfail", "g", "--data", "{"], "--data is not JSON"),
    (["unfail", "g", "--data", "1", "--file", "x"], "--data or --file"),
    (["cancel"], "JID"),
    (["cancel", BAD_NAME], "jid"),
    (["cancel", "j", "--queue", "q", "--data", "1"], "one of the two"),
    (["cancel", "--data", "1"], "go with --queue"),
    (["cancel", "--queue", "q", "--tag", "t", "--data", "1"], "no other way to choose"),
    (["cancel", "j", "--queue", "q"], "one of the two"),
    (["cancel", "j", "--yes"], "--yes goes with"),
    (["cancel", "--queue", "q", "--state", "wating"], "did you mean waiting?"),
    (["cancel", "--queue", "q", "--state", "complete"], "--state 'complete'"),
    (["cancel", "--group", "g", "--state", "failed"], "no --state goes with it"),
    (["cancel", "--tag", BAD_NAME], "tag"),
    (["retry"], "one of the two"),
    (["retry", "j", "--group", "g"], "one of the two"),
    (["retry", "j", "--dry-run"], "--dry-run goes with"),
    (["retry", "--queue", "q", "--state", "failed"], "--state"),
    (["retry", BAD_NAME], "jid"),
    (["retry", "--queue", BAD_NAME], "queue"),
    (["fail"], "one of the two"),
    (["fail", "--group", "g"], "one of the two"),
    (["fail", "j", "--tag", "t"], "one of the two"),
    (["move", "slow"], "one of the two"),
    (["move", "j", "slow", "--queue", "q"], "one of the two"),
    (["move", "--queue", "q", "slow", "--delay", "1h"], "--delay goes with JID"),
    (["move", "--queue", "q", "q"], "are there already"),
    (["priority", "4"], "one of the two"),
    (["priority", "--tag", "t", "high"], "N 'high'"),
    (["cancel", "--queue", "q", "--data", "{"], "--data is not JSON"),
    (["cancel", "--queue", BAD_NAME, "--data", "1"], "queue"),
    (["job", "j", "--wait", "soon"], "--wait 'soon'"),
    (["why"], "--worker or --batch, one of them"),
    (["why", "j", "--queue", "q"], "--worker or --batch, one of them"),
    (["why", BAD_NAME], "jid"),
    (["why", "--queue", BAD_NAME], "queue"),
    (["fail", BAD_NAME], "jid"),
    (["release", BAD_NAME], "jid"),
    (["move"], "QUEUE"),
    (["move", "j", "q", "--delay", "soon"], "--delay 'soon'"),
    (["priority"], "N"),
    (["priority", "j", "high"], "N 'high'"),
    (["signal", "j"], "NAME"),
    (["batch", "--cancel"], "ID"),
    (["batch", BAD_NAME], "id"),
    (["batch", "b", "--cancel", "--retry"], "exclude"),
    (["batch", "b", "--retry", "--json"], "--json"),
    (["signal", "j", BAD_NAME], "name"),
    (["signal", "j", "approval", "yes"], "JSON"),
    (["depend", "j"], "--on or --off"),
    (["depend", "j", "--on", "k", "--off", "l"], "--on or --off"),
    (["depend", "j", "--off", "all", "k"], "stands alone"),
    (["depend", "j", "--on"], "--on"),
    (["tag", "--remove"], "--remove needs"),
    (["tag", "j", "--remove"], "--remove needs"),
    (["tag", "j", "--get", "t"], "not both"),
    (["tag", "--get", BAD_NAME], "tag"),
    (["tag", "--count", "x"], "--count 'x'"),
    (["track", "--off"], "--off needs"),
    (["track", "j", "--json"], "--json"),
    (["track", BAD_NAME], "jid"),
    (["log", "j"], "MESSAGE"),
    (["log", "j", "m", "--data", "{"], "--data is not JSON"),
    (["log", BAD_NAME, "m"], "jid"),
    (["workers", "w", "--deregister", "w"], "stands alone"),
    (["workers", "--deregister", ""], "name"),
    (["workers", BAD_NAME], "name"),
    (["stats"], "QUEUE"),
    (["stats", "q", "--date", "yesterday"], "date"),
    (["stats", "q", "--date", "2031-02-30"], "date"),
    (["stats", BAD_NAME], "queue"),
    (["config", "hartbeat"], "did you mean heartbeat?"),
    (["config", "hartbeat-emails", "5"], "did you mean heartbeat-emails?"),
    (["config", "jobs-history-emails", "5"], "all queues"),
    (["config", "heartbeat", "-1"], "heartbeat"),
    (["config", "heartbeat", "0"], "heartbeat"),
    (["config", "heartbeat", "nan"], "heartbeat"),
    (["config", "grace", "soon"], "'soon'"),
    (["config", "grace", "5 m"], "'5 m'"),
    (["config", "max-deaths", "5m"], "max-deaths"),
    (["config", "heartbeat", "0s"], "heartbeat"),
    (["config", "max-deaths", "1.5"], "max-deaths"),
    (["config", "--unset"], "--unset needs"),
    (["config", "heartbeat", "5", "--unset"], "--unset needs"),
    (["config", "heartbeat", "5", "--json"], "--json"),
    (["pause"], "QUEUE"),
    (["pause", "q", BAD_NAME], "queue"),
    (["unpause", ""], "queue"),
    (["events", "--queue", ""], "queue"),
    (["events", "--jid", BAD_NAME], "jid"),
    (["check", "everything"], "'everything'"),
    (["check", "--repare"], "did you mean --repair?"),
    (["sweep", "--json"], "--json"),
]


@pytest.mark.parametrize(("words", "about"), WRONG, ids=lambda value: repr(value)[:60])
def test_wrong_use_is_2_and_one_sentence_and_changes_nothing(shell, server, namespace, words, about):
    assert about in shell.refused(2, *words)
    assert server.dump(namespace) == {}


REFUSED = [
    ["job", "nobody"],
    ["fail", "nobody"],
    ["release", "nobody"],
    ["move", "nobody", "q"],
    ["priority", "nobody", "1"],
    ["depend", "nobody", "--on", "k"],
    ["signal", "nobody", "approval"],
    ["batch", "nobody"],
    ["batch", "nobody", "--cancel"],
    ["batch", "nobody", "--retry"],
    ["tag", "nobody"],
    ["tag", "nobody", "t"],
    ["tag", "nobody", "t", "--remove"],
    ["track", "nobody"],
    ["track", "nobody", "--off"],
    ["log", "nobody", "m"],
    ["cancel", "nobody"],
    ["retry", "nobody"],
    ["recur", "--update", "nobody", "--every", "5"],
    ["recur", "--cancel", "nobody"],
    ["queues", "--forget", "nobody"],
    ["queues", "nobody", "--delete", "--yes"],
    ["queues", "nobody*"],
    ["pause", "nobody*"],
    ["unpause", "nobody*"],
    ["limit", "nobody", "--remove"],
    ["serve", "nobody", "q"],
    ["stacks", "nobody"],
    ["job", "nobody", "--wait", "5s"],
    ["workers", "nobody"],
    ["workers", "--deregister", "nobody"],
    ["put", "a.b", "--jid", "nobody", "--depends", "nobody"],
]


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_refusal_of_the_engine_exits_1_and_changes_nothing(shell, server, namespace, words):
    assert "nobody" in shell.refused(1, *words)
    assert server.dump(namespace) == {}
