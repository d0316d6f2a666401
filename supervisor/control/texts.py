"""Text that may be sent and written: what Python made of bytes that are no UTF-8 has no place in JSON or msgpack."""

from __future__ import annotations


def readable(text: str) -> str:
    """The text, with such bytes written as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


def all_readable(value: object) -> object:
    """Plain data with every text in it readable."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, list | tuple):
        return [all_readable(item) for item in value]
    if isinstance(value, dict):
        return {all_readable(key): all_readable(item) for key, item in value.items()}
    return value
