"""Stoker's edits of the user's file: only the words that change, every other byte stays (spec 3).

An edit is a list of patches, places in the text that get other words, found by the nodes of `nodes.compose`.
Nothing is emitted anew, so comments, order, quoting and line ends cannot get lost. Each edit is then read
back: it must say exactly what was asked and leave all else as it was, or the text is not changed at all. That
check is what makes anchors, merge keys and odd layouts safe: where an edit cannot stay local, it is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from engine.errors import StokerError
from supervisor import names
from supervisor.config.load import DEPLOYMENTS, parse_config
from supervisor.config.nodes import Node, compose, plain_value
from supervisor.config.problems import ConfigError
from supervisor.config.schema import AUTO, Config, Deployment, Placement

SHORTHAND = ("device", "endpoint", "model")
"""Keys that place a single replica on the deployment itself; `replicas` takes their place."""

_PLACED = frozenset({"replicas", *SHORTHAND})
_SOURCE = "the config"
_NEWLINE = re.compile(r"\r\n|\n|\r")
_PLAIN = re.compile(r"[A-Za-z_./~]([A-Za-z0-9_./~:@+-]*[A-Za-z0-9_./~@+-])?")
_TRUTHS_OF_YAML_1_1 = frozenset({"y", "n", "yes", "no", "on", "off"})


class CannotEdit(StokerError):
    """The text has a form in which this change would not stay local; it has to be made by hand."""


def set_placements(text: str, deployment: str, placements: Sequence[Placement]) -> str:
    """The text with these replicas in this order. Raises ConfigError for a text, CannotEdit for an edit."""
    before = parse_config(text, _SOURCE).config
    current = _known(before, deployment).replicas
    wanted = tuple(placement.normalised() for placement in placements)
    if current == wanted:
        return text
    editor = _Editor(text, deployment)
    editor.place(current, wanted)
    return editor.checked(before, {"replicas": wanted}, _PLACED)


def set_artifact(text: str, deployment: str, artifact: str) -> str:
    """The text with this artifact; another one drops the old revision (spec 4). Raises as above."""
    before = parse_config(text, _SOURCE).config
    if _known(before, deployment).artifact == artifact:
        return text
    editor = _Editor(text, deployment)
    editor.say("artifact", artifact)
    editor.remove("revision")
    said = {"artifact": artifact, "revision": None}
    return editor.checked(before, said, frozenset(said))


def new_document(deployment: str, artifact: str, placements: Sequence[Placement]) -> str:
    """A document with one deployment, the default one. Raises ConfigError where it would not be valid."""
    wanted = tuple(placement.normalised() for placement in placements)
    lines = [
        "# Written by `stoker serve`. Edit it freely: Stoker keeps comments, order and quoting.",
        "global:",
        "  router: {enabled: false}",
        "  model_catalog:",
        "    deployments:",
        f"      {_word(deployment)}:",
        "        provider: model_runtime",
        f"        artifact: {_word(artifact)}",
    ]
    if wanted != (Placement(device=AUTO),):
        lines.append("        replicas:")
        for placement in wanted:
            first, *more = _items(placement, _word)
            lines += [f"          - {first}", *(f"            {each}" for each in more)]
    lines.append(f"    system: {{decision_model: {{deployment: {_word(deployment)}}}}}")
    text = "\n".join(lines) + "\n"
    parse_config(text, "the new document")
    return text


def _known(config: Config, deployment: str) -> Deployment:
    if deployment not in config.deployments:
        raise CannotEdit(names.no_such("deployment", deployment, list(config.deployments)))
    return config.deployments[deployment]


# -------------------------------------------------------------------------------- words


def _word(text: str) -> str:
    """The text as a YAML word: plain where every reader takes it for text, else quoted."""
    if not _PLAIN.fullmatch(text) or text.lower() in _TRUTHS_OF_YAML_1_1:
        return _quoted(text)
    read_back = plain_value(Node("scalar", 1, 0, 0, text, plain=True))
    return text if isinstance(read_back, str) else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _like(old: str, text: str) -> str:
    """The text, quoted as the word whose place it takes, which begins with that character."""
    if old == '"':
        return _quoted(text)
    if old == "'" and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return _word(text)


def _items(placement: Placement, word: Callable[[str], str]) -> list[str]:
    """`key: value` of each key that a placement says."""
    said = ((key, getattr(placement, key)) for key in SHORTHAND)
    return [f"{word(key)}: {word(value)}" for key, value in said if value is not None]


# -------------------------------------------------------------------------------- places in a text


def _line_start(text: str, at: int) -> int:
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _line_end(text: str, at: int) -> int:
    """Where the line break of the line that holds this place begins, or the text ends."""
    found = _NEWLINE.search(text, at)
    return found.start() if found else len(text)


def _next_line(text: str, at: int) -> int:
    found = _NEWLINE.search(text, at)
    return found.end() if found else len(text)


def _starts_line(text: str, at: int) -> bool:
    return not text[_line_start(text, at) : at].strip()


def _ends_line(text: str, at: int) -> bool:
    """Whether nothing but blanks or a comment follows on the line."""
    rest = text[at : _line_end(text, at)].strip()
    return not rest or rest.startswith("#")


def _tail(text: str, node: Node) -> int:
    """Where the last word of a value ends; a block text's own end may lie lines below."""
    return node.start + len(text[node.start : node.end].rstrip())


def _places(text: str, char: str, start: int, end: int) -> list[int]:
    """Where that character stands between two values, outside of comments."""
    found = re.finditer(r"#[^\r\n]*|.", text[start:end], re.DOTALL)
    return [start + each.start() for each in found if each.group() == char]


def _own(node: Node, key: str) -> tuple[Node, Node] | None:
    """Key and value of what is written in this mapping itself, not merged into it."""
    return next((pair for pair in node.pairs if pair[0].kind == "scalar" and pair[0].text == key), None)


# -------------------------------------------------------------------------------- edits


class _Patch(NamedTuple):
    start: int
    end: int
    words: str


class _Editor:
    """Collects the patches of one edit of one deployment; their offsets are those of the text before it."""

    def __init__(self, text: str, deployment: str) -> None:
        self._text = text
        self._name = deployment
        self._root = compose(text, _SOURCE)
        self._mapping = self._find(self._root)
        self._patches: list[_Patch] = []
        newline = _NEWLINE.search(text)
        self._newline = newline.group() if newline else "\n"
        self._word = _quoted if text[self._mapping.children[0].start] == '"' else _word

    def _find(self, root: Node | None) -> Node:
        node = root
        for key in (*DEPLOYMENTS, self._name):
            pair = _own(node, key) if node and node.kind == "mapping" else None
            node = pair[1] if pair else None
        if node is None or node.kind != "mapping":
            self._refuse("it is not written out where it stands, but taken from an anchor")
        return node

    def _refuse(self, reason: str) -> NoReturn:
        raise CannotEdit(f"deployment {self._name} cannot be edited in place: {reason}; change it by hand")

    def checked(self, before: Config, said: dict[str, Any], touched: frozenset[str]) -> str:
        """The edited text, once it has been read back: it must say what was asked and nothing else anew."""
        text = self._text
        for patch in sorted(self._patches, reverse=True):
            text = text[: patch.start] + patch.words + text[patch.end :]
        try:
            after = parse_config(text, _SOURCE).config
        except ConfigError as error:
            self._refuse(f"the config would not be valid ({error})")
        engine_args = after.deployments[self._name].engine_args
        edited = msgspec.structs.replace(before.deployments[self._name], engine_args=engine_args, **said)
        deployments = {**before.deployments, self._name: edited}
        root = compose(text, _SOURCE)
        same = _outline(self._root, self._mapping, touched) == _outline(root, self._find(root), touched)
        if not same or after != msgspec.structs.replace(before, deployments=deployments):
            self._refuse("the change would reach further than what was asked")
        return text

    # ---- keys of the deployment

    def say(self, key: str, value: str) -> None:
        """`key: value`, in place of the old value or as a further key."""
        pair = _own(self._mapping, key)
        if pair is None:
            self._add([f"{self._word(key)}: {self._word(value)}"])
        else:
            self._replace_word(pair[1], value)

    def remove(self, key: str) -> None:
        """Take a key away, with its value and the comment beside it."""
        pair = _own(self._mapping, key)
        if pair is None:
            return
        if self._mapping.flow:
            pairs = list(self._mapping.pairs)
            index = pairs.index(pair)
            spans = [(first.start, _tail(self._text, value)) for first, value in pairs]
            self._cut_flow(spans, index, index, self._mapping.end - 1)
        else:
            self._cut_lines(pair[0].start, _tail(self._text, pair[1]))

    def place(self, current: Sequence[Placement], wanted: Sequence[Placement]) -> None:
        """The replicas: in the list that is there, else by the shorthand, else as a new list."""
        pair = _own(self._mapping, "replicas")
        shorthand = [key for key in SHORTHAND if _own(self._mapping, key)]
        if pair and pair[1].kind == "sequence":
            self._place_in_list(pair[1], current, wanted)
        elif pair:
            self._replace(pair[1], self._flow_list(wanted))
            for key in shorthand:
                self.remove(key)
        elif len(wanted) == 1 and wanted[0].managed and shorthand in ([], ["device"]):
            self.say("device", str(wanted[0].device))
        else:
            self._place_in_new_list(wanted, shorthand)

    def _place_in_new_list(self, wanted: Sequence[Placement], shorthand: Sequence[str]) -> None:
        lines = [f"{self._word('replicas')}:"]
        if self._mapping.flow:
            lines[0] += " " + self._flow_list(wanted)
        else:
            lines += [f"  - {line}" for line in map(self._entry, wanted)]
        if not shorthand:
            self._add(lines)
            return
        first, *others = shorthand
        key, value = self._pair(first)
        end = _tail(self._text, value)
        self._patches.append(_Patch(key.start, end, lines[0]))
        if lines[1:]:
            self._insert_lines(end, [self._indent() + line for line in lines[1:]])
        for other in others:
            self.remove(other)

    def _add(self, lines: Sequence[str]) -> None:
        """Further keys: behind the artifact, which every reader looks for first, or at the end."""
        pairs = [pair for key in ("artifact", "provider") if (pair := _own(self._mapping, key))]
        _, value = pairs[0] if pairs else list(self._mapping.pairs)[-1]
        end = _tail(self._text, value)
        if self._mapping.flow:
            self._patches.append(_Patch(end, end, ", " + " ".join(lines)))
        else:
            self._insert_lines(end, [self._indent() + line for line in lines])

    def _pair(self, key: str) -> tuple[Node, Node]:
        pair = _own(self._mapping, key)
        assert pair is not None
        return pair

    def _indent(self) -> str:
        first = self._mapping.children[0].start
        return " " * (first - _line_start(self._text, first))

    # ---- a list of replicas

    def _place_in_list(self, entries: Node, current: Sequence[Placement], wanted: Sequence[Placement]) -> None:
        for node, old, new in zip(entries.children, current, wanted, strict=False):
            if old != new:
                self._change_entry(node, new)
        further = [self._words_like(new, entries, current) for new in wanted[len(current) :]]
        if len(wanted) < len(current):
            self._cut_entries(entries, len(wanted))
        elif further and entries.flow:
            self._append_flow(entries, further)
        elif further:
            self._append_block(entries, further)

    def _change_entry(self, node: Node, new: Placement) -> None:
        device = _own(node, "device") if node.kind == "mapping" else None
        if device and new.managed:
            self._replace_word(device[1], str(new.device))
        else:
            self._replace(node, self._entry(new))

    def _words_like(self, new: Placement, entries: Node, current: Sequence[Placement]) -> list[str]:
        """The lines of a further entry: as the user has written such a one before, else in the same style."""
        for node, there in zip(entries.children, current, strict=True):
            words = self._text[node.start : _tail(self._text, node)]
            if there == new and words and not re.search(r"[#&*\r\n]", words):
                return [words]
        last = entries.children[-1]
        block = last.kind == "mapping" and not last.flow
        return self._items(new) if block else [self._entry(new)]

    def _cut_entries(self, entries: Node, first: int) -> None:
        """Take away the entries from that one on."""
        spans = [(node.start, _tail(self._text, node)) for node in entries.children]
        if entries.flow:
            self._cut_flow(spans, first, len(spans) - 1, entries.end - 1)
            return
        for index in range(first, len(spans)):
            dash = self._dash(entries, index)
            self._cut_lines(dash, max(dash + 1, spans[index][1]))

    def _dash(self, entries: Node, index: int) -> int:
        """Where the dash of a block entry stands."""
        above = _tail(self._text, entries.children[index - 1]) if index else entries.start
        return _places(self._text, "-", above, entries.children[index].start)[-1]

    def _append_block(self, entries: Node, further: Sequence[Sequence[str]]) -> None:
        last = entries.children[-1]
        dash = self._dash(entries, len(entries.children) - 1)
        indent = self._text[_line_start(self._text, dash) : dash]
        gap = self._text[dash + 1 : last.start]
        gap = " " if gap.strip(" ") or not gap else gap
        deeper = self._newline + indent + " " + gap
        lines = [indent + "-" + gap + deeper.join(words) for words in further]
        self._insert_lines(max(dash + 1, _tail(self._text, last)), lines)

    def _append_flow(self, entries: Node, further: Sequence[Sequence[str]]) -> None:
        """Behind the last entry; on lines of their own where that one has its own, too."""
        start, end = entries.children[-1].start, _tail(self._text, entries.children[-1])
        words = [" ".join(lines) for lines in further]
        if not _starts_line(self._text, start):
            self._patches.append(_Patch(end, end, "".join(f", {entry}" for entry in words)))
            return
        indent = self._text[_line_start(self._text, start) : start]
        commas = _places(self._text, ",", end, entries.end - 1)
        joined = ("," + self._newline).join(indent + entry for entry in words)
        if not _ends_line(self._text, commas[0] + 1 if commas else end):
            self._patches.append(_Patch(end, end, "," + self._newline + joined))
        elif commas:
            self._insert_lines(commas[0], [joined + ","])
        else:
            self._patches.append(_Patch(end, end, ","))
            self._insert_lines(end, [joined])

    # ---- words of this document

    def _items(self, placement: Placement) -> list[str]:
        return _items(placement, self._word)

    def _entry(self, placement: Placement) -> str:
        return "{" + ", ".join(self._items(placement)) + "}"

    def _flow_list(self, placements: Sequence[Placement]) -> str:
        return "[" + ", ".join(map(self._entry, placements)) + "]"

    # ---- patches

    def _replace_word(self, node: Node, words: str) -> None:
        self._replace(node, _like(self._text[node.start : node.start + 1], words))

    def _replace(self, node: Node, words: str) -> None:
        """Other words for a value; one that was left empty gets a blank before them."""
        blank = " " if self._text[node.start - 1] in ":-" else ""
        self._patches.append(_Patch(node.start, max(node.start, _tail(self._text, node)), blank + words))

    def _cut_lines(self, start: int, end: int) -> None:
        """All lines from one place to another, with what stands beside it."""
        if not (_starts_line(self._text, start) and _ends_line(self._text, end)):
            self._refuse("what has to go does not stand on lines of its own")
        self._patches.append(_Patch(_line_start(self._text, start), _next_line(self._text, end), ""))

    def _cut_flow(self, spans: Sequence[tuple[int, int]], first: int, last: int, close: int) -> None:
        """Values between brackets, with one comma; with their lines where these hold nothing else."""
        text, start, end = self._text, spans[first][0], spans[last][1]
        above = spans[first - 1][1] if first else start
        line = _line_start(text, start)
        before = _places(text, ",", above, start)
        behind = _places(text, ",", end, spans[last + 1][0] if last + 1 < len(spans) else close)
        if before and before[0] >= line:
            start = above if above >= line else before[0]
        elif behind:
            end = behind[0] + 1
        elif before:
            self._patches.append(_Patch(before[0], before[0] + 1, ""))
        if _starts_line(text, start) and _ends_line(text, end):
            self._cut_lines(start, end)
            return
        if _starts_line(text, start) or first == 0:
            end += len(text[end:]) - len(text[end:].lstrip(" "))
        self._patches.append(_Patch(start, end, ""))

    def _insert_lines(self, at: int, lines: Sequence[str]) -> None:
        """Lines below the line of that place; a file without a final line break stays one."""
        below = _next_line(self._text, at)
        words = self._newline.join(lines)
        if below == _line_end(self._text, at):
            self._patches.append(_Patch(below, below, self._newline + words))
        else:
            self._patches.append(_Patch(below, below, words + self._newline))


def _outline(node: Node | None, edited: Node, touched: frozenset[str]) -> Any:
    """What a tree says, without the places: two are equal when only `touched` keys of `edited` differ."""
    if node is None:
        return None
    node = node.real
    if node.kind == "scalar":
        return node.plain, node.text
    if node.kind == "sequence":
        return "sequence", [_outline(child, edited, touched) for child in node.children]
    return "mapping", [
        (_outline(key, edited, touched), _outline(value, edited, touched))
        for key, value in node.pairs
        if node is not edited or key.real.text not in touched
    ]
