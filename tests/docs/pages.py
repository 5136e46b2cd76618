"""The pages of the repository, and what stands in them: sections, tables, and blocks in their fences."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README, INDEX = ROOT / "README.md", ROOT / "deploy/README.md"
FIRST_STEPS = ROOT / "supervisor/docs/first-ten-minutes.md"
PROMISES = ROOT / "supervisor/docs/promises.md"
TESTING = ROOT / "supervisor/docs/testing.md"
CONTRACT, ARCHITECTURE = ROOT / "handlers/README.md", ROOT / "supervisor/ARCHITECTURE.md"
CONTRIBUTING = ROOT / "supervisor/CONTRIBUTING.md"
GUIDE, PARITY = ROOT / "supervisor/engine/README.md", ROOT / "tests/engine/PARITY.md"
#: Pages for users of another queue, by its name in small letters.
OTHER_QUEUES = {name: ROOT / f"supervisor/docs/from_{name}.md" for name in ("celery", "rq", "dramatiq", "sidekiq")}
#: Pages for people who change the code. Their paths are relative to the package or to the repository.
INTERNALS = [
    *(ARCHITECTURE, CONTRIBUTING, ROOT / "supervisor/DECISIONS.md"),
    *(ROOT / "supervisor/docs/processes.md", ROOT / "supervisor/docs/exchange.md"),
]


class Manual:
    """The pages that the index of the operations manual lists, in its order, as one page."""

    name = "deploy/docs"

    def __init__(self) -> None:
        listed = re.findall(r"^\| \[.*?\]\((docs/[\w-]+\.md)\)", INDEX.read_text(), re.MULTILINE)
        self.pages = [INDEX, *(INDEX.parent / path for path in listed)]

    def read_text(self) -> str:
        return "\n".join(page.read_text() for page in self.pages)


OPERATIONS = Manual()
PAGES = [
    *(README, CONTRACT, GUIDE, PARITY, FIRST_STEPS, TESTING, PROMISES, ROOT / "supervisor/docs/comparison.md"),
    *(ROOT / "supervisor/docs/batches.md", ROOT / "supervisor/docs/outbox.md", ROOT / "supervisor/docs/frameworks.md"),
    *(ROOT / "supervisor/docs/in_process.md", ROOT / "supervisor/docs/web_security.md"),
    *OTHER_QUEUES.values(),
    ROOT / "supervisor/docs/from_qless.md",
    *(ROOT / "deploy/CHANGELOG.md", *OPERATIONS.pages, *INTERNALS),
]
Page = Path | Manual
#: Files that run us in containers, clusters and under systemd.
RECIPES = [
    path
    for path in sorted((ROOT / "deploy").rglob("*"))
    if path.is_file() and path.suffix not in {".md", ".txt", ".webp"}
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def path_of(page: Page) -> str:
    return page.name if isinstance(page, Manual) else str(page.relative_to(ROOT))


def blocks(page: Page, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if not languages or language in languages]


def account_rights(user: str, namespace: str) -> list[str]:
    """Return the rights of an account of the manual, as words of ACL SETUSER, for this namespace or pattern."""
    begin = f"ACL SETUSER {user} "
    lines = [line for block in blocks(OPERATIONS, "") for line in block.splitlines()]
    (line,) = [line for line in lines if line.startswith(f"{begin}on ")]  # the others add keys of doors
    return line.removeprefix(begin).replace("{leasehold}", f"{{{namespace}}}").split()


def rights_to_find_servers() -> list[str]:
    """Return what the manual adds to an account behind sentinels and in a Cluster."""
    return " ".join(re.findall(r"`(\+[a-z][a-z+| ]*)`", OPERATIONS.read_text())).split()


def section(page: Page, title: str) -> str:
    """Return the text from a heading to the next one of its level or above. A comment in a block is no heading."""
    text = page.read_text()
    headings = FENCE.sub(lambda fence: re.sub(r"[^\n]", "`", fence[0]), text)
    begin = re.search(rf"^(#+) {re.escape(title)}\n", headings, re.MULTILINE)
    assert begin, f"{page.name} has no section {title!r}"
    end = re.compile(rf"^#{{1,{len(begin[1])}}} ", re.MULTILINE).search(headings, begin.end())
    return text[begin.end() : end.start() if end else len(text)]


def tables(page: Page, title: str) -> list[list[list[str]]]:
    """Return the cells of each table of a section, without its heading."""
    found = re.findall(r"^(?:\|.*\n)+", section(page, title), re.MULTILINE)
    assert found, f"{page.name}, {title}: no table"
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in table.splitlines()[2:]]
        for table in found
    ]


def rows(page: Page, title: str) -> list[list[str]]:
    """Return the rows of a section's first table."""
    return tables(page, title)[0]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def example(page: Path, name: str) -> str:
    """Return the module `handlers/<name>.py` of a page."""
    (block,) = (block for block in blocks(page, "python") if block.startswith(f"# handlers/{name}.py"))
    return block
