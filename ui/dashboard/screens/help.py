"""Every key, every state and every column, made from the same tables that the screens are made from."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from ui.dashboard import keymap, words
from ui.dashboard.columns import COLUMNS
from ui.dashboard.paint import Line, Tone
from ui.dashboard.states import DEPLOYMENT_LOOKS, REPLICA_LOOKS
from ui.dashboard.widgets.line_view import Page

INDENT, KEY_WIDTH, NAME_WIDTH = 3, 13, 16


class HelpScreen(ModalScreen[None]):
    """The page behind `?`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1,ctrl+c,ctrl+q,enter", "close", "close")]

    def __init__(self, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            yield Page("help · j k scroll, Esc closes", id="help-lines")

    def on_mount(self) -> None:
        self.query_one(Page).focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        page = self.query_one(Page)
        page.empty()
        page.append(help_lines(self._readonly, page.size.width))
        page.action_first()

    def action_close(self) -> None:
        self.dismiss(None)


def help_lines(readonly: bool, width: int) -> list[Line]:
    """The whole page, its sentences wrapped to the width."""
    room = max(width - INDENT - KEY_WIDTH - NAME_WIDTH - 1, 20)
    lines: list[Line] = []
    for group, actions in keymap.by_group(readonly):
        lines += [(), ((f" {group.value}", Tone.STRONG),)]
        for action in actions:
            keys = " ".join(_written(key) for key in action.keys) or ": theme"
            for index, sentence in enumerate(textwrap.wrap(action.help, room)):
                first = index == 0
                lines.append(
                    (
                        (" " * INDENT, Tone.TEXT),
                        (words.fit(keys if first else "", KEY_WIDTH), Tone.KEY),
                        (words.fit(action.label if first else "", NAME_WIDTH), Tone.TEXT),
                        (sentence, Tone.DIM),
                    )
                )
    lines += [(), ((" States of a replica", Tone.STRONG),)]
    lines += [_state(name, look.glyph, look.tone, look.means) for name, look in REPLICA_LOOKS.items()]
    lines += [(), ((" States of a deployment", Tone.STRONG),)]
    lines += [_state(name, look.glyph, look.tone, look.means) for name, look in DEPLOYMENT_LOOKS.items()]
    lines += [(), ((" Columns; the wider the terminal, the more of them", Tone.STRONG),)]
    for column in COLUMNS:
        lines.append(
            (
                (" " * INDENT, Tone.TEXT),
                (words.fit(column.title, KEY_WIDTH + 3), Tone.TEXT),
                (column.means, Tone.DIM),
            )
        )
    return lines


def _state(name: str, glyph: str, tone: Tone, means: str) -> Line:
    return ((" " * INDENT, Tone.TEXT), (words.fit(f"{glyph} {name}", KEY_WIDTH + 3), tone), (means, Tone.DIM))


_WRITTEN = {
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "plus": "+",
    "minus": "-",
    "space": "Space",
    "enter": "Enter",
    "escape": "Esc",
    "tab": "Tab",
    "down": "↓",
    "up": "↑",
    "home": "Home",
    "end": "End",
    "pagedown": "PgDn",
    "pageup": "PgUp",
}


def _written(key: str) -> str:
    if key.startswith("ctrl+"):
        return f"^{key.removeprefix('ctrl+').upper()}"
    return _WRITTEN.get(key, key.upper() if key[0] == "f" and key[1:].isdigit() else key)
