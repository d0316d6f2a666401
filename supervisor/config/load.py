"""From a YAML file to a `Config`, with every error of the file at once and each at its line (spec 3).

`nodes.compose` makes a tree of the text. `_Reader` walks that tree beside the types of `schema`, collects problems
instead of stopping at the first, and fills in what the file leaves out.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

from supervisor import names
from supervisor.config import engine_options, rules, schema, shapes
from supervisor.config.engine_options import EngineArgs, EngineSection
from supervisor.config.nodes import MAX_BYTES, SWITCHES, Node, compose, described, is_null, plain_value
from supervisor.config.problems import ConfigError, Problem, quoted, refuse, refuse_file
from supervisor.config.schema import Config, Deployment, DeploymentSection, Document

MAX_WHOLE = 2**53
"""Whole numbers stay within what a float and msgpack hold exactly."""

SUFFIXES = (".yaml", ".yml")
"""Of files that are named where another one was meant."""

SMALLEST = "global: {model_catalog: {deployments: {primary: {artifact: owner/name}}}}"
"""A whole document."""

DEPLOYMENTS = ("global", "model_catalog", "deployments")
"""Where the deployments stand in the document."""

Steps = tuple[str | int, ...]
"""The keys and positions that lead to a value."""

Pairs = dict[str, tuple[Node, Node]]
"""A mapping's keys, each with the nodes of key and value."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config, what to tell the user about it, and the text that it was read from."""

    config: Config
    warnings: list[str]
    text: str
    source: str
    lines: Mapping[Steps, int] = field(default_factory=dict)

    def place(self, *path: str | int) -> str:
        """Where a key stands, or what holds it where the document leaves it out: `FILE:LINE: dotted.path`."""
        return f"{self.source}:{_line(self.lines, path)}: {_dotted(path)}"


def load_config(path: Path) -> LoadedConfig:
    """Read a file. Raises ConfigError with every problem of it."""
    return parse_config(read_text(path), str(path))


def parse_config(text: str, source: str) -> LoadedConfig:
    """Read a document; `source` names it in problems. Raises ConfigError with every problem of it."""
    reader = _Reader(source)
    config = reader.config(compose(text, source))
    if reader.problems:
        raise ConfigError(sorted(dict.fromkeys(reader.problems), key=lambda problem: problem.line))
    return LoadedConfig(config, reader.warnings(), text, source, reader.lines)


def read_text(path: Path) -> str:
    """The file's text as it is, line ends included. Raises ConfigError where it cannot be read."""
    source = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            refuse_file(source, "this is a folder", f"expected a YAML file{_one_of(_configs_in(path))}")
        if not stat.S_ISREG(status.st_mode):
            refuse_file(source, "this is not a regular file", "expected a YAML file")
        if status.st_size > MAX_BYTES:
            refuse_file(source, f"{status.st_size} bytes", f"expected a YAML file of {MAX_BYTES} bytes at most")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        refuse_file(source, "there is no such file", _another_file(path))
    except OSError as error:
        reason = error.strerror or str(error)
        refuse_file(source, f"it cannot be read ({reason})", f"expected a file that user {os.geteuid()} may read")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        refuse(source, line, f"the byte 0x{error.object[error.start]:02x}", "UTF-8 text")


def _another_file(path: Path) -> str:
    """What to do about a config that is not there."""
    beside = _configs_in(path.parent)
    by_stem = {each.stem: each for each in beside}
    near = names.nearest(path.stem, by_stem)
    if near is not None:
        return f"did you mean {by_stem[near]}?"
    return f"expected a YAML file{_one_of(beside)}"


def _configs_in(folder: Path) -> list[Path]:
    """Files of a folder that may be configs; none where it cannot be read."""
    try:
        return sorted(each for each in folder.iterdir() if each.suffix in SUFFIXES and not each.name.startswith("."))
    except OSError:
        return []


def _one_of(files: list[Path]) -> str:
    return f", such as {files[0]}" if files else ""


class _Invalid:
    """Stands for a value that was refused; its problem has been noted."""


INVALID: Final = _Invalid()


# -------------------------------------------------------------------------------- nodes to types


class _Reader:
    """Walks nodes beside types. Notes problems and ignored keys, leaves out what was refused and goes on."""

    def __init__(self, source: str) -> None:
        self.problems: list[Problem] = []
        self.lines: dict[Steps, int] = {(): 1}
        self._source = source
        self._ignored: list[Steps] = []
        self._refused: set[Steps] = set()
        self._rest: dict[Steps, Pairs] = {}

    # ---- the whole document

    def config(self, root: Node | None) -> Config:
        """The document as a Config, of use only where no problem was noted."""
        document = self._value(root or Node("scalar", 1, 0, 0, plain=True), mi.type_info(Document), ())
        if not isinstance(document, Document):
            return Config(deployments={})
        if document.global_.router.enabled:
            self._ignored.append(("global", "router", "enabled"))
        catalog = document.global_.model_catalog
        hidden = any(DEPLOYMENTS[:length] in self._refused for length in range(len(DEPLOYMENTS)))
        if not catalog.deployments and not hidden:
            self._refuse(DEPLOYMENTS, "no deployment", f"at least one, as in {SMALLEST}")
        deployments = {name: self._deployment(name, section) for name, section in catalog.deployments.items()}
        default = self._default(catalog.system.decision_model.deployment, deployments)
        return Config(deployments=deployments, default_deployment=default, stoker=document.stoker)

    def warnings(self) -> list[str]:
        """One sentence that names every ignored key; none where there is none."""
        if not self._ignored:
            return []
        named = ", ".join(f"{_dotted(path)} (line {self._line(path)})" for path in self._ignored)
        sentence = "keys of the vLLM Semantic Router that Stoker has no use for are ignored"
        return [f"{self._source}: {sentence}: {named}"]

    def _default(self, named: str | None, deployments: dict[str, Deployment]) -> str | None:
        if named is None:
            return next(iter(deployments)) if len(deployments) == 1 else None
        if named not in deployments and (*DEPLOYMENTS, named) not in self._refused:
            where = ("global", "model_catalog", "system", "decision_model", "deployment")
            known = sorted(deployments)
            allowed = f"a deployment of this file: {', '.join(known)}"
            self._refuse(where, quoted(named), allowed, names.nearest(named, known))
        return named

    def _deployment(self, name: str, section: DeploymentSection) -> Deployment:
        path = (*DEPLOYMENTS, name)
        if not shapes.is_deployment_name(name):
            self._refuse(path, f"the name {quoted(name)}", shapes.NAME.allowed)
        for broken in rules.broken_rules(section):
            if (*path, *broken.leans_on) not in self._refused:
                self._refuse((*path, *broken.where), broken.found, broken.allowed)
        common = {key: getattr(section, key) for key in schema.DeploymentCommon.__struct_fields__}
        given = {key: getattr(section.engine_args, key) for key in EngineSection.__struct_fields__}
        given["engine"] = given["engine"] or engine_options.default_engine(section.artifact)
        given["options"] = self._options(given["engine"], section, (*path, "engine_args"))
        return Deployment(name=name, replicas=section.placements(), engine_args=EngineArgs(**given), **common)

    def _options(self, engine: str, section: DeploymentSection, path: Steps) -> dict[str, Any]:
        kind = engine_options.OPTIONS[engine]
        rest = self._rest.get(path, {})
        if kind is None:
            return dict(_sorted({key: self._free(node, (*path, key)) for key, (_, node) in rest.items()}))
        started = any(placement.managed for placement in section.placements())
        if path in self._refused or not (rest or started):
            return {}
        info = mi.type_info(kind)
        assert isinstance(info, mi.StructType)
        options = self._members(rest, info, path, frozenset(EngineSection.__struct_fields__))
        return {} if options is INVALID else dict(_sorted(msgspec.to_builtins(options)))

    # ---- one value; each of these returns what the node means as that type, or INVALID

    def _value(self, node: Node, kind: mi.Type, path: Steps) -> Any:
        node = node.real
        match kind:
            case mi.Metadata():
                return self._worded(node, kind, path)
            case mi.UnionType():
                return self._union(node, kind, path)
            case mi.AnyType():
                return self._free(node, path)
            case mi.StructType() if node.kind == "mapping" or is_null(node):
                return self._members(self._pairs(node, path), kind, path, frozenset())
            case mi.DictType() if node.kind == "mapping" or is_null(node):
                return self._named(node, kind.value_type, path)
            case mi.VarTupleType() if node.kind == "sequence":
                return self._listed(node, kind, path)
            case mi.LiteralType() if node.kind == "scalar":
                return self._literal(node, kind, path)
            case mi.StrType() if node.kind == "scalar" and not is_null(node):
                return node.text
            case mi.BoolType() if node.plain and node.text in SWITCHES:
                return SWITCHES[node.text]
            case mi.IntType() | mi.FloatType() if node.kind == "scalar":
                return self._number(node, kind, path)
        return self._refuse(path, described(node), shapes.wording(kind))

    def _worded(self, node: Node, kind: mi.Metadata, path: Steps) -> Any:
        words: shapes.Words | None = (kind.extra or {}).get("words")
        if words is None or is_null(node):
            return self._value(node, kind.type, path)
        if node.kind != "scalar":
            return self._refuse(path, described(node), words.allowed)
        if not words.check(node.text):
            self._refuse(path, "text of another form" if words.secret else described(node), words.allowed)
        return node.text

    def _union(self, node: Node, kind: mi.UnionType, path: Steps) -> Any:
        others = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        if is_null(node) and len(others) < len(kind.types):
            return None
        if len(others) == 1:
            return self._value(node, others[0], path)
        if node.kind != "scalar" or is_null(node):
            return self._refuse(path, described(node), shapes.wording(kind))
        return self._free(node, path)

    def _number(self, node: Node, kind: mi.IntType | mi.FloatType, path: Steps) -> Any:
        value = plain_value(node)
        if isinstance(value, int) and not isinstance(value, bool) and isinstance(kind, mi.FloatType):
            value = float(value)
        if type(value) is not (float if isinstance(kind, mi.FloatType) else int) or not _is_sane(value):
            return self._refuse(path, described(node), shapes.wording(kind))
        if (kind.ge is not None and value < kind.ge) or (kind.le is not None and value > kind.le):
            self._refuse(path, described(node), shapes.wording(kind))
        return value

    def _literal(self, node: Node, kind: mi.LiteralType, path: Steps) -> Any:
        value = plain_value(node) if isinstance(kind.values[0], int) else node.text
        if any(value == known and type(value) is type(known) for known in kind.values):
            return value
        return self._refuse(path, described(node), shapes.wording(kind))

    def _listed(self, node: Node, kind: mi.VarTupleType, path: Steps) -> Any:
        values = [self._value(child, kind.item_type, at) for at, child in self._items(node, path)]
        if len(values) < (kind.min_length or 0):
            return self._refuse(path, "an empty list", shapes.wording(kind))
        if INVALID in values:
            self._refused.add(path)
            return INVALID
        return tuple(values)

    def _named(self, node: Node, kind: mi.Type, path: Steps) -> Any:
        pairs = self._pairs(node, path)
        values = {key: self._value(value, kind, (*path, key)) for key, (_, value) in pairs.items()}
        kept = {key: value for key, value in values.items() if value is not INVALID}
        if len(kept) < len(values):
            self._refused.add(path)
        return kept

    def _free(self, node: Node, path: Steps) -> Any:
        node = node.real
        if node.kind == "sequence":
            return [self._free(child, at) for at, child in self._items(node, path)]
        if node.kind == "mapping":
            pairs = self._pairs(node, path)
            return {key: self._free(value, (*path, key)) for key, (_, value) in pairs.items()}
        value = plain_value(node)
        if _is_sane(value):
            return value
        return self._refuse(path, described(node), f"a finite number, {MAX_WHOLE} at most")

    # ---- lists and mappings

    def _items(self, node: Node, path: Steps) -> Iterator[tuple[Steps, Node]]:
        for index, child in enumerate(node.children):
            self.lines[(*path, index)] = child.line
            yield (*path, index), child

    def _members(self, pairs: Pairs, kind: mi.StructType, path: Steps, neighbours: frozenset[str]) -> Any:
        """A section from its keys. `neighbours`: keys of the same mapping that another section has read."""
        fields = {each.encode_name: each for each in kind.fields}
        ignored: frozenset[str] = getattr(kind.cls, "router_keys", frozenset())
        values = {}
        for key, (_, node) in pairs.items():
            if key in fields:
                values[fields[key].name] = self._value(node, fields[key].type, (*path, key))
            elif key in ignored or ignored == schema.EVERY_KEY:
                self._ignored.append((*path, key))
            elif getattr(kind.cls, "open_ended", False):
                self._rest.setdefault(path, {})[key] = pairs[key]
            else:
                known = sorted(fields.keys() | neighbours)
                self._refuse((*path, key), "an unknown key", ", ".join(known), names.nearest(key, known))
        values = {key: value for key, value in values.items() if value is not INVALID}
        missing = [each for each in kind.fields if each.required and each.name not in values]
        for each in missing:
            self._refuse((*path, each.encode_name), "nothing", shapes.wording(each.type))
        return INVALID if missing else kind.cls(**values)

    def _pairs(self, node: Node, path: Steps) -> Pairs:
        """Keys and values of a mapping, merge keys (`<<`) followed; what is written beside a merge wins."""
        own: Pairs = {}
        merged: list[Node] = []
        for key_node, value in node.pairs:
            if key_node.plain and key_node.text == "<<":
                merged += value.real.children if value.real.kind == "sequence" else [value]
                continue
            key = self._key(key_node.real, path)
            if key in own:
                found = f"a second {quoted(key)}, the first is on line {own[key][0].line}"
                self._note((*path, key), key_node.line, found, "each key once")
            elif key is not None:
                own[key] = (key_node, value)
                self.lines.setdefault((*path, key), key_node.line)
        for source in merged:
            if source.real.kind != "mapping":
                found = f"{described(source.real)} to merge"
                self._note((*path, "<<"), source.line, found, "a mapping, or a list of them")
                continue
            own = self._pairs(source.real, path) | own
        return own

    def _key(self, node: Node, path: Steps) -> str | None:
        if node.kind == "scalar" and isinstance(plain_value(node), str):
            return node.text
        allowed = f"text, as in {quoted(node.text)}" if node.text else "text"
        self._note(path, node.line, f"{described(node)} as a key", allowed)
        return None

    # ---- problems

    def _refuse(self, path: Steps, found: str, allowed: str, near: str | None = None) -> _Invalid:
        """Note the first problem of a path; its line is that of the path or of what holds it."""
        if path not in self._refused:
            self._refused.add(path)
            self._note(path, self._line(path), found, allowed, near)
        return INVALID

    def _note(self, path: Steps, line: int, found: str, allowed: str, near: str | None = None) -> None:
        self.problems.append(Problem(self._source, line, _dotted(path), found, allowed, near))

    def _line(self, path: Steps) -> int:
        return _line(self.lines, path)


def _line(lines: Mapping[Steps, int], path: Steps) -> int:
    """The line of a path, or of what holds it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _is_sane(value: object) -> bool:
    """Whether a number is finite and not larger than every reader of it can hold."""
    if isinstance(value, int):
        return abs(value) <= MAX_WHOLE
    return not isinstance(value, float) or math.isfinite(value)


def _sorted(data: Any) -> Any:
    """The same data, its lists as lists, its keys in order: their order in the file tells nothing apart."""
    if isinstance(data, dict):
        return {key: _sorted(data[key]) for key in sorted(data)}
    return [_sorted(item) for item in data] if isinstance(data, list | tuple) else data


def _dotted(path: Steps) -> str:
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += ("." if text else "") + (key if re.fullmatch(r"[\w.<-]+", key) else quoted(key))
    return text
