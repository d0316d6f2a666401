"""Text from outside as a terminal may show it: nothing in it is obeyed, and nothing is hidden (spec 14, 15).

Logs, reasons and names pass through here before they are drawn: control characters, escape sequences, bidirectional
overrides and invisible characters become visible escapes, so what a replica writes can neither move the cursor nor
dress up as something else. One rule for the command line and the dashboard.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Categories of what is obeyed or cannot be seen."""


class _Literal(dict[int, str | int | None]):
    """A translation table that fills itself: each character is judged once."""

    def __missing__(self, code: int) -> str | int | None:
        shown = _shown(code)
        self[code] = shown
        return shown


def _shown(code: int) -> str | int | None:
    if 0xFE00 <= code <= 0xFE0F:
        return None  # variation selectors: they only ask for another width
    if chr(code) == "\t" or unicodedata.category(chr(code)) not in _HIDDEN:
        return code
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_LITERAL = _Literal()


def literal(text: str) -> str:
    """`text` with all that a terminal obeys, or that cannot be seen, as visible escapes (`\\x1b[31m`). Tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_LITERAL)
