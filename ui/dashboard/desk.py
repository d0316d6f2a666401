"""What a screen may ask of the app: the model to read, and the few things that reach beyond the screen."""

from __future__ import annotations

import enum
from typing import Protocol

from textual.screen import Screen

from ui.dashboard.model import Model
from ui.dashboard.orders import Target
from ui.dashboard.paint import Tone
from ui.dashboard.rows import RowKey


class QuitChoice(enum.Enum):
    """How a dashboard ended, for whoever started it."""

    DETACH = "detach"
    """Somebody left; the fleet goes on, unless it had ended before."""
    STOP = "stop"
    """The supervisor was asked to stop everything, by this dashboard. It may still be draining."""
    TERMINATED = "terminated"
    """A signal, or a terminal that was closed, ended the dashboard."""
    FAILED = "failed"
    """The dashboard itself broke; its traceback is on the terminal. The fleet goes on."""


class Desk(Protocol):
    """The app, as its screens see it."""

    @property
    def model(self) -> Model: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def owns_supervisor(self) -> bool: ...

    def now(self) -> float:
        """Monotonic seconds."""

    def lost_for_s(self) -> float:
        """How long the supervisor has been lost, seconds; 0 while it is not."""

    def stops_in_s(self) -> float | None:
        """How long the stop that goes on may still last, seconds; None: none does, or nobody said."""

    def perform(self, action: str, target: Target) -> None:
        """Do what acts on the fleet: ask first where that is the rule, check, send, tell."""

    def scale_to(self, deployment: str, replicas: int) -> None:
        """Ask for a number of replicas."""

    def look_at(self, replica: str | None) -> None:
        """Have everything about that replica come into the model; None: about nobody."""

    def tell(self, text: str, tone: Tone) -> None:
        """Say something at the bottom of the screen for a moment."""

    def read_log(self, of: RowKey | None) -> None:
        """Have the lines of that log come to the top screen's log pane."""

    def redraw(self) -> None:
        """Show the model anew on every screen that is open."""


class FleetScreen(Screen[None], inherit_bindings=False):
    """A screen that shows the model."""

    def show_model(self) -> None:
        """Draw what the model says now."""
