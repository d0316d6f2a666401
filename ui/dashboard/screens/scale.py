"""The scale form: how many replicas, starting from how many were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Button, Input, Label

from supervisor.control.messages import DeploymentStatus
from ui.dashboard import words
from ui.dashboard.screens.dialog import Dialog, button

FEWEST, MOST = 1, 64
"""Replicas of a deployment (spec 1)."""


class ScaleScreen(Dialog[int | None]):
    """The number that was asked for; None: leave it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "add(1)", "one more"),
        Binding("down", "add(-1)", "one less"),
    ]

    def __init__(self, deployment: DeploymentStatus) -> None:
        super().__init__()
        self._deployment = deployment
        self.TITLE_TEXT = f"Scale {words.literal(deployment.name)}"

    def compose_body(self) -> ComposeResult:
        status = self._deployment
        yield Label(
            f"{status.desired_replicas} asked, {len(status.replicas)} there, {status.ready_replicas} ready",
            markup=False,
            classes="dialog-facts",
        )
        yield Input(
            str(status.desired_replicas),
            id="number",
            type="integer",
            max_length=3,
            compact=True,
            select_on_focus=True,
        )
        yield Label("", markup=False, id="effect")

    def buttons(self) -> Iterator[Button]:
        yield button(" Scale ", "scale", "safe")
        yield button(" Cancel ", "cancel", "safe")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(Input).focus()

    def on_input_changed(self) -> None:
        self.query_one("#effect", Label).update(self._effect())

    def on_input_submitted(self) -> None:
        self._submit()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "scale":
            self._submit()
        else:
            self.dismiss(None)

    def action_add(self, step: int) -> None:
        """One more or one less, within what is allowed."""
        number = self._number()
        field = self.query_one(Input)
        field.value = str(max(FEWEST, min((number if number is not None else 0) + step, MOST)))
        field.cursor_position = len(field.value)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def _submit(self) -> None:
        number = self._number()
        if number is not None and FEWEST <= number <= MOST:
            self.dismiss(number)

    def _number(self) -> int | None:
        text = self.query_one(Input).value
        return int(text) if text.isascii() and text.isdigit() else None

    def _effect(self) -> str:
        number = self._number()
        if number is None or not FEWEST <= number <= MOST:
            return f"a number from {FEWEST} to {MOST}"
        change = number - self._deployment.desired_replicas
        if change > 0:
            return f"{words.plural(change, 'more replica')} will start"
        return f"{words.plural(-change, 'replica')} will be drained" if change else "no change"
