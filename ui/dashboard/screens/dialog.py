"""What the dialogs share: a box in the middle, a row of buttons, and keys that move between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label

Result = TypeVar("Result")


class Dialog(ModalScreen[Result], Generic[Result]):
    """A question in a box. Subclasses say its title, its body and its buttons, and what Escape means."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,ctrl+q", "cancel", "cancel"),
        Binding("left,h,shift+tab", "move(-1)", "previous", show=False),
        Binding("right,l,tab", "move(1)", "next", show=False),
    ]

    TITLE_TEXT = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self.TITLE_TEXT, markup=False, classes="dialog-title")
            yield from self.compose_body()
            with Horizontal(classes="dialog-buttons"):
                yield from self.buttons()

    def compose_body(self) -> ComposeResult:
        """What stands between title and buttons."""
        raise NotImplementedError

    def buttons(self) -> Iterator[Button]:
        """The buttons, from left to right."""
        raise NotImplementedError

    def action_cancel(self) -> None:
        """Leave without an answer."""
        raise NotImplementedError

    def action_move(self, step: int) -> None:
        """To the next button, around the ends."""
        buttons = [one for one in self.query(Button) if one.display]
        at = next((index for index, button in enumerate(buttons) if button.has_focus), 0)
        buttons[(at + step) % len(buttons)].focus()


def button(text: str, name: str, kind: str) -> Button:
    """A flat button. kind: `safe` or `danger`, as style.tcss draws them."""
    return Button(text, id=name, classes=kind, compact=True)
