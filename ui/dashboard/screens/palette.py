"""A list to choose from by typing: every action by name, or the themes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.fuzzy import Matcher
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ui.dashboard import words


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """One line of the list. value: what choosing it returns."""

    value: str
    text: str
    help: str = ""
    key: str = ""


class PaletteScreen(ModalScreen[str | None]):
    """The value of what was chosen; None: nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,ctrl+q", "cancel", "cancel"),
        Binding("down,ctrl+n,tab", "move(1)", "next"),
        Binding("up,ctrl+p,shift+tab", "move(-1)", "previous"),
    ]

    def __init__(self, choices: Sequence[Choice], prompt: str) -> None:
        super().__init__()
        self._choices = choices
        self._prompt = prompt
        self._shown: list[Choice] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="palette"):
            yield Input(placeholder=self._prompt, compact=True)
            yield OptionList(compact=True, markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(Input).focus()
        self._fill("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def on_input_submitted(self) -> None:
        at = self.query_one(OptionList).highlighted
        self.dismiss(self._shown[at].value if at is not None else None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._shown[event.option_index].value)

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if self._shown:
            options.highlighted = ((options.highlighted or 0) + step) % len(self._shown)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def _fill(self, query: str) -> None:
        self._shown = matching(self._choices, query)
        width = max((len(choice.text) for choice in self._choices), default=0)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(_line(choice, width)) for choice in self._shown])
        options.highlighted = 0 if self._shown else None


def matching(choices: Sequence[Choice], query: str) -> list[Choice]:
    """The choices that a fuzzy query finds, the best first."""
    if not query:
        return list(choices)
    matcher = Matcher(query)
    scored = [(max(matcher.match(choice.text) * 2, matcher.match(choice.help)), choice) for choice in choices]
    found = [(score, choice) for score, choice in scored if score > 0]
    return [choice for _, choice in sorted(found, key=lambda pair: -pair[0])]


def _line(choice: Choice, width: int) -> Content:
    return Content.assemble(
        (words.fit(choice.text, width + 2), "bold"),
        (words.fit(choice.key, 5), "$primary"),
        (choice.help, "$foreground 60%"),
    )
