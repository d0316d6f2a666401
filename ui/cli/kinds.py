"""Kinds of numbers on a command line, refused in words: what is expected, and what was found.

click's own say `'x' is not a valid integer range`, and take `nan` for a number within any range.
"""

from __future__ import annotations

import math
import re
from typing import Any

import click


class Whole(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(value) if re.fullmatch(r"-?[0-9]{1,18}", str(value)) else None
        if number is None or not self._allows(number):
            self.fail(f"expected a whole number{self._bounds()}, found {str(value)!r}", param, ctx)
        return number

    def _allows(self, number: int) -> bool:
        return (self.min is None or number >= self.min) and (self.max is None or number <= self.max)

    def _bounds(self) -> str:
        if self.max is None:
            return f", {self.min} or more"
        return f" from {self.min} to {self.max}"


class Number(click.FloatRange):
    """A finite number, 0 or more, or over 0."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = _finite(str(value))
        if number is None or number < 0 or (number == 0 and self.min_open) or (self.max and number > self.max):
            self.fail(f"expected a number{self._bounds()}, found {str(value)!r}", param, ctx)
        return number

    def _bounds(self) -> str:
        least = " over 0" if self.min_open else ", 0 or more"
        return f"{least}, {self.max:.0f} at most" if self.max else least


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
