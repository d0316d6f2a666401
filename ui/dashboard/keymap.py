"""The one registry of actions. Bindings, footer, help screen and palette are all read from it, so they cannot disagree.

An action's name is the name of the Textual action: `drain` runs `action_drain` of the widget or screen whose place it
is bound in. What acts on the fleet says so (`acts`) and is not there at all in a read-only dashboard.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from textual.binding import Binding

from ui.dashboard.columns import COLUMNS


class Place(enum.Enum):
    """Where a key works. A focused widget's keys come before its screen's, those before the app's."""

    TABLE = "fleet"
    MAIN = "main screen"
    LOGS = "log pane"
    DETAILS = "details"
    THREADS = "threads"
    APP = "anywhere"


class Needs(enum.Enum):
    """What must be under the cursor, or marked."""

    NOTHING = "nothing"
    ROW = "a row"
    REPLICA = "a replica"


class Confirm(enum.Enum):
    """When an action asks first."""

    NEVER = "never"
    MANY = "for more than one replica"
    ALWAYS = "always"


class Group(enum.StrEnum):
    """Headings of the help screen, in its order."""

    SEE = "See"
    MOVE = "Move"
    REPLICA = "Act on a replica, or on all that are marked"
    DEPLOYMENT = "Act on a deployment"
    CHARTS = "While charts are shown"
    LOGS = "In logs"
    SORT = "Sort; again for the other way round"
    LEAVE = "Leave"


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    keys: Textual's names of the keys. shown: how the first of them is written. rank: place in a narrow footer, the
    lowest first; 0: never in the footer.
    """

    name: str
    keys: tuple[str, ...]
    shown: str
    label: str
    group: Group
    places: frozenset[Place]
    help: str
    acts: bool = False
    needs: Needs = Needs.NOTHING
    confirm: Confirm = Confirm.NEVER
    rank: int = 0
    in_palette: bool = True


_MAIN = frozenset({Place.MAIN})
_SCREENS = frozenset({Place.MAIN, Place.DETAILS})
_VIEWS = frozenset({Place.MAIN, Place.DETAILS, Place.THREADS})
_DETAILS = frozenset({Place.DETAILS})
_TABLE = frozenset({Place.TABLE})
_LISTS = frozenset({Place.TABLE, Place.LOGS})
_LOGS = frozenset({Place.LOGS})
_APP = frozenset({Place.APP})

_ROW, _ONE = Needs.ROW, Needs.REPLICA
_MANY, _ALWAYS = Confirm.MANY, Confirm.ALWAYS
_SEE, _MOVE, _REPLICA, _DEPLOYMENT = Group.SEE, Group.MOVE, Group.REPLICA, Group.DEPLOYMENT

# fmt: off
ACTIONS: tuple[Action, ...] = (
    Action("help", ("question_mark", "f1"), "?", "help", _SEE, _APP, rank=1,
           help="This page."),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "q", "quit", Group.LEAVE, _APP, rank=2,
           help="Leave: detach, or stop everything. Asks."),
    Action("details", ("enter",), "↵", "details", _SEE, _TABLE, needs=_ROW, rank=3,
           help="Everything about the row under the cursor."),
    Action("logs", ("l",), "l", "logs", _SEE, _SCREENS, needs=_ROW, rank=4,
           help="What the replica under the cursor writes; again to close."),
    Action("drain", ("d",), "d", "drain", _REPLICA, _SCREENS, acts=True, needs=_ONE, confirm=_MANY, rank=5,
           help="Out of rotation, finish what is in flight, then leave. It stays out until restarted."),
    Action("restart", ("r",), "r", "restart", _REPLICA, _SCREENS, acts=True, needs=_ROW, confirm=_MANY,
           rank=6, help="Drain, then start the next incarnation. On a deployment: one replica at a time."),
    Action("eject", ("x",), "x", "eject", _REPLICA, _SCREENS, acts=True, needs=_ONE, confirm=_MANY, rank=9,
           help="Out of rotation for a while; readmit it if it is out."),
    Action("kill", ("K",), "K", "kill", _REPLICA, _SCREENS, acts=True, needs=_ONE, confirm=_ALWAYS, rank=10,
           help="SIGKILL now. Asks, and says what is cut."),
    Action("mark", ("space",), "␣", "mark", _REPLICA, _TABLE, needs=_ROW, rank=15,
           help="Mark or unmark; on a deployment, all its replicas."),
    Action("more", ("plus",), "+", "more", _DEPLOYMENT, _MAIN, acts=True, needs=_ROW, rank=7,
           help="One more replica of this deployment."),
    Action("fewer", ("minus",), "-", "less", _DEPLOYMENT, _MAIN, acts=True, needs=_ROW, rank=8,
           help="One replica less: the one that costs least to lose is drained."),
    Action("scale", ("s", "f2"), "s", "scale", _DEPLOYMENT, _MAIN, acts=True, needs=_ROW, rank=11,
           help="Ask for a number of replicas."),
    Action("filter", ("slash",), "/", "filter", _SEE, _MAIN, rank=12,
           help="Show only what matches every word; Enter keeps it, Esc clears it."),
    Action("charts", ("c",), "c", "charts", _SEE, _MAIN, needs=_ROW, rank=4,
           help="Requests/s, latency and in flight over time, of the row under the cursor; again to close."),
    Action("states", ("h",), "h", "history", _SEE, _DETAILS, rank=13, in_palette=False,
           help="In details: the states that the replica went through, why, and how its processes ended."),
    Action("events", ("e",), "e", "events", _SEE, _SCREENS, rank=14,
           help="Show or hide the events."),
    Action("threads", ("t",), "t", "threads", _SEE, _VIEWS, rank=14,
           help="CPU threads: the budget, and what each replica learned about its own."),
    Action("pause", ("p",), "p", "pause", _SEE, _SCREENS, rank=15,
           help="Hold the picture still; the fleet goes on."),
    Action("palette", ("colon", "ctrl+p"), ":", "palette", _SEE, _SCREENS, rank=16, in_palette=False,
           help="Every action by name."),
    Action("theme", (), "", "theme", _SEE, _APP,
           help="Choose other colours."),
    Action("back", ("escape",), "esc", "back", _MOVE, _VIEWS, in_palette=False,
           help="Close what is open; clear filter and marks."),
    Action("cursor_down", ("down", "j"), "j", "down", _MOVE, _LISTS, in_palette=False,
           help="Next row."),
    Action("cursor_up", ("up", "k"), "k", "up", _MOVE, _LISTS, in_palette=False,
           help="Previous row."),
    Action("first", ("home", "g"), "g", "first", _MOVE, _LISTS, in_palette=False,
           help="First row."),
    Action("last", ("end", "G"), "G", "last", _MOVE, _LISTS, in_palette=False,
           help="Last row."),
    Action("page_down", ("pagedown", "ctrl+f"), "PgDn", "page down", _MOVE, _LISTS, in_palette=False,
           help="One page down."),
    Action("page_up", ("pageup", "ctrl+b"), "PgUp", "page up", _MOVE, _LISTS, in_palette=False,
           help="One page up."),
    Action("next_pane", ("tab",), "tab", "other pane", _MOVE, _SCREENS, in_palette=False,
           help="From the table to the log and back."),
    Action("split", ("b",), "b", "by replica", Group.CHARTS, _MAIN, rank=3, in_palette=False,
           help="A line for each replica of the deployment, or one for the whole."),
    Action("window", ("w",), "w", "window", Group.CHARTS, _MAIN, rank=3, in_palette=False,
           help="How far back: 1, 2, 5 or 10 minutes."),
    Action("enlarge", ("f",), "f", "full", Group.CHARTS, _MAIN, rank=3, in_palette=False,
           help="The charts on the whole screen, and back."),
    Action("follow", ("s", "f5"), "s", "follow", Group.LOGS, _LOGS, rank=20, in_palette=False,
           help="Stay at the newest line; on again after scrolling up."),
    Action("wrap", ("w", "f6"), "w", "wrap", Group.LOGS, _LOGS, rank=21, in_palette=False,
           help="Wrap long lines; unwrapped, ← and → move sideways."),
    Action("full", ("f",), "f", "full", Group.LOGS, _LOGS, rank=22, in_palette=False,
           help="The log on the whole screen, and back."),
    Action("search", ("slash",), "/", "search", Group.LOGS, _LOGS, rank=23, in_palette=False,
           help="Find text in the log."),
    Action("next_match", ("n",), "n", "next match", Group.LOGS, _LOGS, rank=24, in_palette=False,
           help="Next place that was found."),
    Action("previous_match", ("N",), "N", "previous match", Group.LOGS, _LOGS, in_palette=False,
           help="Previous place that was found."),
    Action("clear", ("C",), "C", "clear", Group.LOGS, _LOGS, in_palette=False,
           help="Empty the pane; the files keep everything."),
    Action("suspend", ("ctrl+z",), "^Z", "suspend", Group.LEAVE, _APP, in_palette=False,
           help="To the shell; `fg` comes back."),
    *(
        Action(f"sort('{column.name}')", (column.letter,), column.letter, f"sort by {column.title.lower()}",
               Group.SORT, _MAIN, help=f"{column.title.capitalize()}: {column.means}.")
        for column in COLUMNS
        if column.letter
    ),
)
# fmt: on

BY_NAME = {action.name: action for action in ACTIONS}


def actions(readonly: bool) -> list[Action]:
    """Everything that can be done in a dashboard, or in a read-only one."""
    return [action for action in ACTIONS if not (readonly and action.acts)]


def in_place(place: Place, readonly: bool) -> list[Action]:
    """The actions whose keys work in a place."""
    return [action for action in actions(readonly) if place in action.places]


def bindings(place: Place, readonly: bool = False) -> list[Binding]:
    """Textual's bindings for a place."""
    return [
        Binding(",".join(action.keys), action.name, action.label, tooltip=action.help, priority=_first(action))
        for action in in_place(place, readonly)
        if action.keys
    ]


def _first(action: Action) -> bool:
    return action.name == "suspend"


def footer(places: Iterable[Place], readonly: bool) -> list[Action]:
    """What a footer offers, the most important first; nearer places hide the same key of farther ones."""
    offered: dict[str, Action] = {}
    for place in places:
        for action in in_place(place, readonly):
            if action.rank and action.shown not in offered:
                offered[action.shown] = action
    return sorted(offered.values(), key=lambda action: action.rank)


def in_palette(readonly: bool) -> list[Action]:
    """What the palette offers, in the order of the registry."""
    return [action for action in actions(readonly) if action.in_palette]


def by_group(readonly: bool) -> list[tuple[Group, list[Action]]]:
    """For the help screen: each heading with its actions."""
    offered = actions(readonly)
    groups = [(group, [action for action in offered if action.group is group]) for group in Group]
    return [(group, members) for group, members in groups if members]
