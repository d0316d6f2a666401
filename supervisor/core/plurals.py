"""A number with the word for what it counts, for every room that speaks to people."""

from __future__ import annotations


def count(number: int, thing: str) -> str:
    """`1 replica`, `3 replicas`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
