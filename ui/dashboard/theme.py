"""The dashboard's own colours, dark and light. Textual's other themes can be chosen from the palette."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="stoker-dark",
    primary="#6cb6ff",
    secondary="#4c9aff",
    accent="#ffb454",
    success="#57c77a",
    warning="#e0af4b",
    error="#f47067",
    foreground="#cdd6e0",
    background="#0e1319",
    surface="#151c25",
    panel="#1d2733",
    dark=True,
    variables={"block-cursor-text-style": "none", "border": "#33414f", "scrollbar": "#33414f"},
)
LIGHT = Theme(
    name="stoker-light",
    primary="#0b61b8",
    secondary="#2f7fd0",
    accent="#b35c00",
    success="#1a7f37",
    warning="#8f5f00",
    error="#c0322b",
    foreground="#24292f",
    background="#fbfcfd",
    surface="#f0f3f6",
    panel="#e3e8ee",
    dark=False,
    variables={"block-cursor-text-style": "none", "border": "#b9c2cc", "scrollbar": "#b9c2cc"},
)
