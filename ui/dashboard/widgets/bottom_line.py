"""The last line: the keys that work here, or for a moment what an action led to."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.timer import Timer

from ui.dashboard import words
from ui.dashboard.keymap import Action
from ui.dashboard.paint import Line, Painter, Piece, Tone

GOOD_NEWS_S = 4.0
BAD_NEWS_S = 8.0
GLYPHS = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.WARN: "▲"}


class BottomLine(Painter):
    """Shows as many keys as fit, the most important first. Each can be clicked. `tell` covers them for some seconds."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._actions: Sequence[Action] = ()
        self._idle: frozenset[str] = frozenset()
        self._news: Line = ()
        self._timer: Timer | None = None

    @property
    def news(self) -> str:
        """What is being told, as words."""
        return "".join(text for text, _ in self._news).strip()

    def offer(self, actions: Sequence[Action], idle: frozenset[str]) -> None:
        """These actions, of which those in `idle` do nothing for what is under the cursor."""
        if (actions, idle) != (self._actions, self._idle):
            self._actions, self._idle = actions, idle
            self.refresh()

    def tell(self, text: str, tone: Tone) -> None:
        """Say something for a while."""
        self._news = ((f" {GLYPHS.get(tone, '·')} ", tone), (words.literal(text), tone))
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(GOOD_NEWS_S if tone is Tone.GOOD else BAD_NEWS_S, self.hush)
        self.refresh()

    def hush(self) -> None:
        """Back to the keys."""
        self._news = ()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        return self.paint(self._news, width) if self._news else self._draw_keys(width)

    def _draw_keys(self, width: int) -> Strip:
        segments = [Segment(" ", self.look(Tone.TEXT))]
        used = 1
        for action in fitting(self._actions, width - 1):
            idle = action.name in self._idle
            pieces: list[Piece] = [
                (action.shown, Tone.DIM if idle else Tone.KEY),
                (f" {action.label}", Tone.DIM if idle else Tone.TEXT),
            ]
            click = Style(meta={"@click": f"do({action.name!r})"})
            segments += [Segment(text, self.look(tone) + click) for text, tone in pieces]
            segments.append(Segment("  ", self.look(Tone.TEXT)))
            used += item_width(action)
        return Strip(segments).adjust_cell_length(width, self.look(Tone.TEXT))

    async def action_do(self, name: str) -> None:
        """A key's label was clicked."""
        await self.screen.run_action(f"do({name!r})")


def item_width(action: Action) -> int:
    """Cells that an action takes in the footer."""
    return len(action.shown) + 1 + len(action.label) + 2


def fitting(actions: Sequence[Action], width: int) -> list[Action]:
    """As many actions as fit, in their order."""
    kept: list[Action] = []
    for action in actions:
        width -= item_width(action)
        if width < -2:
            break
        kept.append(action)
    return kept
