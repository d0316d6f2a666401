"""The actions that main screen and details share: each names its target at the key press and hands it to the app."""

from __future__ import annotations

from ui.dashboard import keymap, words
from ui.dashboard.desk import Desk, FleetScreen
from ui.dashboard.orders import Target
from ui.dashboard.paint import Tone
from ui.dashboard.screens.palette import Choice, PaletteScreen
from ui.dashboard.widgets.bottom_line import BottomLine


class ActingScreen(FleetScreen, inherit_bindings=False):
    """A screen with a target. Subclasses say what it is, and which nodes their actions belong to."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk

    def target(self) -> Target | None:
        """What an action is for at this moment; None: it is not certain, and that has been said."""
        raise NotImplementedError

    async def run_named(self, name: str, target: Target | None) -> None:
        """Do what is not about the fleet: move, show, hide."""
        raise NotImplementedError

    def act(self, name: str) -> None:
        """Do what acts on the fleet, for the present target."""
        if (target := self.target()) is not None:
            self.desk.perform(name, target)

    async def action_do(self, name: str) -> None:
        """An action by its name: a label was clicked."""
        action = keymap.BY_NAME[name]
        if not (action.acts and self.desk.readonly):
            await self._run(name, self.target() if action.acts else None)

    async def _run(self, name: str, target: Target | None) -> None:
        action = keymap.BY_NAME[name]
        if action.acts and name != "scale":
            if target is not None:
                self.desk.perform(name, target)
        else:
            await self.run_named(name, target)

    def action_drain(self) -> None:
        self.act("drain")

    def action_restart(self) -> None:
        self.act("restart")

    def action_eject(self) -> None:
        self.act("eject")

    def action_kill(self) -> None:
        self.act("kill")

    def action_pause(self) -> None:
        self.desk.model.pause(not self.desk.model.paused)
        self.desk.redraw()

    def action_palette(self) -> None:
        """What is chosen there is for the row under the cursor now, not for one that takes its place meanwhile."""
        target = self.target()
        if target is None:
            return
        choices = [
            Choice(action.name, action.label, action.help, action.shown)
            for action in keymap.in_palette(self.desk.readonly)
        ]

        async def chosen(name: str | None) -> None:
            if name is not None:
                await self._run(name, target)

        self.app.push_screen(PaletteScreen(choices, f"what to do with {words.literal(str(target))}"), chosen)

    def tell(self, text: str, tone: Tone) -> None:
        """Say something at the bottom."""
        self.query_one(BottomLine).tell(text, tone)
