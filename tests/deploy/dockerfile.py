"""Reads deploy/Dockerfile, line by line: its stages, and the instructions of each with their flags."""

import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction of a stage; its continued lines are one."""

    word: str
    flags: dict[str, str]
    text: str

    def command(self) -> list[str] | None:
        """The words of the exec form; None: it is in the shell form, or none at all."""
        text = self.text.removeprefix("CMD ") if self.word == "HEALTHCHECK" else self.text
        return json.loads(text) if text.startswith("[") else None

    def pairs(self) -> dict[str, str]:
        """Return the names and values of an ENV, ARG or LABEL."""
        return dict(pair.split("=", 1) for pair in self.text.split() if "=" in pair)


@dataclass(frozen=True)
class Stage:
    """The instructions from one FROM to the next."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        return [each for each in self.instructions if each.word == word]

    def last(self, word: str) -> Instruction:
        return self.all(word)[-1]


def read(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first FROM, and the stages."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        instruction = _instruction(line)
        if instruction.word == "FROM":
            base, _, name = instruction.text.partition(" AS ")
            for known, value in arguments.items():
                base = base.replace(f"${{{known}}}", value)
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].instructions.append(instruction)
        else:
            assert instruction.word == "ARG", f"{instruction.word} before the first FROM"
            arguments |= instruction.pairs()
    return arguments, stages


def _instruction(line: str) -> Instruction:
    word, _, rest = line.strip().partition(" ")
    flags = {}
    while match := re.match(r"\s*--([a-z-]+)=(\S+)\s+", rest):
        flags[match[1]] = match[2]
        rest = rest[match.end() :]
    return Instruction(word, flags, re.sub(r"\s+", " ", rest).strip())


def context(root: Path) -> list[Path]:
    """The files below `root` that .dockerignore leaves to the build, relative. The last pattern that fits decides."""
    lines = (root / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    allowed = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    files = [path.relative_to(root) for name in allowed for path in _files(root / name)]
    return [file for file in files if not _ignored(file, patterns)]


def _files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]


def _ignored(file: Path, patterns: list[str]) -> bool:
    ignored = False
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        parts = file.parts if bare.startswith("**/") else (file.parts[0], str(file))
        if any(fnmatch(part, bare.removeprefix("**/")) for part in parts):
            ignored = not pattern.startswith("!")
    return ignored
