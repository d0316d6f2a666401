"""What is wrong with a config: every problem with its place, what was found, and what is allowed (spec 3)."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from engine.errors import StokerError


class Problem(NamedTuple):
    """One thing that is wrong with a file."""

    file: str
    line: int
    path: str
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}: found {self.found}; allowed {self.allowed}"


class ConfigError(StokerError):
    """A config that cannot be used: all of its problems, one a line, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def refuse(source: str, line: int, found: str, allowed: str) -> NoReturn:
    """Stop at a text that is no document at all. Raises ConfigError."""
    raise ConfigError([Problem(source, line, "(file)", found, allowed)])


def quoted(text: str) -> str:
    """Text of a file as it is said back: short, and printable."""
    short = text if len(text) <= 60 else text[:57] + "…"
    return '"' + "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in short) + '"'
