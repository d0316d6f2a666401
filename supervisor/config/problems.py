"""What is wrong with a config: every problem with its place, what was found, and what is allowed (spec 3)."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from engine.errors import StokerError


class Problem(NamedTuple):
    """One thing that is wrong with a file.

    line: 0 where none of it was read. path: empty where the file as a whole is meant. near: what was probably meant.
    """

    file: str
    line: int
    path: str
    found: str
    allowed: str
    near: str | None = None

    def __str__(self) -> str:
        if self.line == 0:
            return f"{self.file}: {self.found}; {self.allowed}"
        where = f"{self.file}:{self.line}: " + (f"{self.path}: " if self.path else "")
        guess = f" (did you mean {self.near}?)" if self.near else ""
        return f"{where}found {self.found}{guess}; allowed {self.allowed}"


class ConfigError(StokerError):
    """A config that cannot be used: all of its problems, one a line, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def refuse(source: str, line: int, found: str, allowed: str) -> NoReturn:
    """Stop at a text that is no document at all. Raises ConfigError."""
    raise ConfigError([Problem(source, line, "", found, allowed)])


def refuse_file(source: str, found: str, advice: str) -> NoReturn:
    """Stop at a file of which nothing was read. Raises ConfigError."""
    raise ConfigError([Problem(source, 0, "", found, advice)])


def quoted(text: str) -> str:
    """Text of a file as it is said back: short, and printable."""
    short = text if len(text) <= 60 else text[:57] + "…"
    return '"' + "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in short) + '"'
