"""The guide to the queue: its examples answer what they say, and other languages put jobs as it shows."""

import ast
import re
import shlex

import pytest

import supervisor
from tests.docs.pages import FENCE, GUIDE, ROOT, blocks, rows, section
from tests.engine.invariants import misplaced, read_namespace

ENTRIES = ROOT / "supervisor/engine/lua/include/entries.lua"


def carry_out(block: str, names: dict[str, object]) -> None:
    """Runs a block. Each statement that ends with `# -> value` must answer that value, or assign it."""
    lines, checked = block.splitlines(), 0
    for node in ast.parse(block).body:
        code, _, answer = "\n".join(lines[node.lineno - 1 : node.end_lineno]).partition("  # -> ")
        if not answer:
            exec(code, names)
            continue
        if isinstance(node, ast.Assign):
            exec(code, names)
            code = ast.unparse(node.targets[0])
        public = {name: getattr(supervisor, name) for name in supervisor.__all__}
        assert eval(code, names) == eval(answer, public), code
        checked += 1
    assert checked == block.count("# -> "), "only what is not indented is checked"


FIRST, *EXAMPLES = (block for block in blocks(GUIDE, "python") if "@handler" not in block)


@pytest.mark.parametrize("block", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_the_examples_of_the_guide_give_the_printed_answers(block, server, namespace, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    names: dict[str, object] = {}
    carry_out(FIRST, names)
    carry_out(block.replace("{leasehold}", f"{{{namespace}}}"), names)
    names["client"].close()
    assert misplaced(read_namespace(server.redis, namespace)) == []


def test_one_command_pushes_a_job_in_five_languages(server, namespace):
    pushes = [block for block in FENCE.findall(section(GUIDE, "Jobs from any language")) if "LPUSH" in block[1].upper()]
    assert [language for language, _ in pushes][:5] == ["sh", "python", "js", "go", "ruby"]
    assert all('"{leasehold}:in:emails"' in body.replace("'", '"') for _, body in pushes)
    *to_the_server, push = pushes[0][1].replace("{leasehold}", f"{{{namespace}}}").partition("LPUSH")[::2]
    assert to_the_server == ['redis-cli -u "$LEASEHOLD_REDIS_URL" ']
    command = ["LPUSH", *shlex.split(push)]
    server.redis.execute_command(*command)
    with supervisor.Client(server.url, namespace) as client:
        (lease,) = client.lease("worker", ["emails"])
        assert (lease.klass, lease.data, lease.priority) == ("email.send", {"to": "ada@example.org"}, -1)


def test_entry_keys_agree_with_the_script():
    table = {row[0].strip("`") for row in rows(GUIDE, "Jobs from any language")}
    assert table == set(re.findall(r"\bchecks\.(\w+)", ENTRIES.read_text()))
