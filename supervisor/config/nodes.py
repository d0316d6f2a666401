"""A YAML document as a tree of nodes that know their place in the text; for reading it, and for editing it.

PyYAML only splits the text into events. Which plain words are numbers or truth values is decided here, by the YAML 1.2
core rules, so that `off`, `1:30` and `010` mean what they look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from supervisor.config.problems import quoted, refuse

MAX_BYTES = 1 << 20
"""A larger file is no config written by people; reading it would only cost memory."""

MAX_NODES = 50_000
"""Nodes of a document with every alias written out: what stops an alias bomb."""

MAX_DEPTH = 64
"""Nesting with every alias written out; the document itself needs 8."""


@dataclass(slots=True, eq=False)
class Node:
    """A value and its place: `text[start:end]` (offsets in characters), `line` counted from 1.

    A mapping's `children` are its keys and values in turn. An alias keeps its own place and has a `target`.
    `size` and `depth` count what is below with every alias written out.
    """

    kind: str
    line: int
    start: int
    end: int
    text: str = ""
    plain: bool = False
    flow: bool = False
    anchor: str | None = None
    children: list[Node] = field(default_factory=list)
    target: Node | None = None
    size: int = 1
    depth: int = 1

    @property
    def real(self) -> Node:
        """The node itself, or what the alias stands for."""
        return self.target or self

    @property
    def pairs(self) -> Iterator[tuple[Node, Node]]:
        """Keys and values of a mapping as they stand, a merge key among them."""
        return zip(self.children[::2], self.children[1::2], strict=True)


_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {
    "scalar": "tag:yaml.org,2002:str",
    "mapping": "tag:yaml.org,2002:map",
    "sequence": "tag:yaml.org,2002:seq",
}


def compose(text: str, source: str) -> Node | None:
    """The document as nodes, None for a text without one. Raises ConfigError if it is not one document."""
    if len(text) > MAX_BYTES:
        refuse(source, 1, f"{len(text)} characters", f"{MAX_BYTES} at most")
    if odd := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        refuse(source, line, f"the character U+{ord(odd.group()):04X}", "printable text")
    shift = 1 if text.startswith("\ufeff") else 0
    builder = _Builder(source, shift)
    try:
        for event in yaml.parse(text[shift:], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        if text[mark.index + shift : mark.index + shift + 1] == "\t":
            refuse(source, mark.line + 1, "a tab", "spaces, to indent")
        refuse(source, mark.line + 1, f"no valid YAML ({_said(error)})", "a YAML document")
    return builder.root


def _said(error: yaml.MarkedYAMLError) -> str:
    """What the parser says, and where the part began that it was in."""
    context: Any = error.context_mark
    began = f" that began on line {context.line + 1}" if error.context and context is not None else ""
    return ", ".join(filter(None, (error.problem, f"{error.context}{began}" if error.context else "")))


class _Builder:
    """Turns YAML events into nodes and counts, so that no text makes the tree larger or deeper than allowed.

    It stops at the first problem: what comes after one is guesswork.
    """

    def __init__(self, source: str, shift: int) -> None:
        self.root: Node | None = None
        self._source = source
        self._shift = shift
        self._open: list[Node] = []
        self._anchors: dict[str, Node] = {}

    def take(self, event: Any) -> None:
        match event:
            case yaml.DocumentStartEvent() if self.root is not None:
                self._stop(event, "a second document", "one document in a file")
            case yaml.AliasEvent():
                self._add(self._alias(event))
            case yaml.ScalarEvent():
                node = self._node("scalar", event)
                node.text = event.value
                node.plain = event.style in (None, "") and event.tag is None
                self._add(node)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                node = self._node("mapping" if isinstance(event, yaml.MappingStartEvent) else "sequence", event)
                node.flow = bool(event.flow_style)
                self._open.append(node)
            case yaml.CollectionEndEvent():
                self._add(self._closed(self._open.pop(), event))

    def _node(self, kind: str, event: Any) -> Node:
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", _TAGS.get(kind)):
            self._stop(event, f"the tag {quoted(tag)}", "values without a tag, or !!str")
        start, end = event.start_mark.index + self._shift, event.end_mark.index + self._shift
        return Node(kind, event.start_mark.line + 1, start, end, anchor=event.anchor)

    def _closed(self, node: Node, event: Any) -> Node:
        last = node.children[-1] if node.children and not node.flow else None
        node.end = last.end if last else event.end_mark.index + self._shift
        node.size += sum(child.size for child in node.children)
        node.depth += max((child.depth for child in node.children), default=0)
        return node

    def _alias(self, event: Any) -> Node:
        node = self._node("alias", event)
        node.target = self._anchors.get(event.anchor)
        if node.target is None:
            self._stop(event, f"*{event.anchor}, which names nothing that ends above it", "an anchor's name")
        node.size, node.depth, node.anchor = node.target.size, node.target.depth, None
        return node

    def _stop(self, event: Any, found: str, allowed: str) -> NoReturn:
        refuse(self._source, event.start_mark.line + 1, found, allowed)

    def _add(self, node: Node) -> None:
        limits = f"{MAX_NODES} values in {MAX_DEPTH} levels, with every alias written out"
        if node.size > MAX_NODES or node.depth + len(self._open) > MAX_DEPTH:
            refuse(self._source, node.line, "a larger or deeper value than that", limits)
        if node.anchor is not None:
            self._anchors[node.anchor] = node
        if self._open:
            self._open[-1].children.append(node)
        else:
            self.root = node


# -------------------------------------------------------------------------------- words to values

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS = dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
SWITCHES = (
    _TRUTHS
    | dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), True)
    | dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), False)
)
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def plain_value(node: Node) -> str | int | float | bool | None:
    """What a scalar means where any type is allowed: quoted is text, plain is what it looks like."""
    text = node.text
    if not node.plain:
        return text
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _WHOLE.fullmatch(text) and len(text) < 32:
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def is_null(node: Node) -> bool:
    """Whether it says that there is nothing."""
    return node.kind == "scalar" and node.plain and node.text in _NULLS


def described(node: Node) -> str:
    """What stands there, for a problem."""
    if node.kind != "scalar":
        return {"mapping": "a mapping", "sequence": "a list"}[node.kind]
    if is_null(node):
        return "nothing (null)"
    return quoted(node.text) if isinstance(plain_value(node), str) else node.text[:60]
