"""Makes docs/config.md from the types and sentences of `supervisor.config.schema`.

python docs/make_config_reference.py          write the page
tests/config/test_reference.py                fails while the page is not what the schema says
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as mi

from supervisor.config import engine_options, schema, shapes
from supervisor.core.placement import MOST_REPLICAS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "config.md"
EXAMPLE = ROOT / "sample-configs" / "full.yaml"
SPEC = re.compile(r" \(spec [0-9, ]+\)")
"""Where a rule comes from, which is of no use to a reader of the page."""

HEAD = """# Config reference

<!-- Made by docs/make_config_reference.py from supervisor/config/schema.py; do not edit. -->

One YAML document describes what Stoker serves. Flags and scale actions edit this document: there is no
second state. `stoker check FILE` names everything that is wrong with a file, each at its line, and exits with
2.

## The whole document

"""

RULES = f"""## Rules

- `replicas` excludes `device`, `endpoint` and `model` on the deployment itself. A deployment without any of
  them has one replica on `auto`; no `replicas` equals one explicit replica.
- 1 to {MOST_REPLICAS} replicas; a replica has a `device` or an `endpoint`; `model` only with
  `endpoint`; no two attached replicas with the same endpoint and model. The same device may be repeated.
- A managed replica needs an `artifact`; `revision` only where that is a hub id. A path starts with `/`, `./`,
  `../` or `~`: without one of them it would be read as a hub id.
- `max_ejection_ms` is never under `base_ejection_ms`.
- Keys of the vLLM Semantic Router that Stoker has no use for are ignored and named in one warning; any other
  unknown key is an error.
- Plain words are read by YAML 1.2: `off` is text where text is expected, whole numbers are decimal (`010` and
  `1:30` are errors), `"1"` is no number, and a plain `1` is the text `1` where text is expected.
- One document of at most 1 MiB, in UTF-8, each key once. Anchors, aliases and merge keys (`<<`) may be used.

Stoker's own edits (`stoker scale`, `stoker serve MODEL -dp N`) change only the lines they have to: comments,
order, quoting and line ends stay. Where a change would reach further, because of an anchor for instance, it
is not written and has to be made by hand; the action itself still takes effect.
"""


def page() -> str:
    """The text of docs/config.md."""
    tables = "\n".join(_tables())
    return f"{HEAD}```yaml\n{EXAMPLE.read_text()}```\n\n{tables}\n{RULES}"


def _tables() -> Iterator[str]:
    for path, kind in _sections("", mi.type_info(schema.Document)):
        yield from _table(f"`{path}`" if path else "The top level", kind)
        if kind.cls is engine_options.EngineSection:
            yield from _options(path)


def _sections(path: str, kind: mi.Type) -> Iterator[tuple[str, mi.StructType]]:
    """Every mapping of the document with the path that leads to it, from the top down."""
    match kind:
        case mi.Metadata(type=inner):
            yield from _sections(path, inner)
        case mi.UnionType(types=types):
            for each in types:
                yield from _sections(path, each)
        case mi.DictType(value_type=inner):
            yield from _sections(f"{path}.NAME", inner)
        case mi.VarTupleType(item_type=inner):
            yield from _sections(f"{path}[]", inner)
        case mi.StructType(fields=fields):
            yield path, kind
            for field in fields:
                yield from _sections(f"{path}.{field.encode_name}".lstrip("."), field.type)


def _options(path: str) -> Iterator[str]:
    for engine, options in engine_options.OPTIONS.items():
        if options is None:
            yield f"### `{path}`, further keys of `engine: {engine}`\n"
            yield "Any: they are handed to the user's `load(args)` as plain data.\n"
        elif options.__struct_fields__:
            kind = mi.type_info(options)
            assert isinstance(kind, mi.StructType)
            for below, part in _sections("", kind):
                where = f"`{path}.{below}`, with" if below else f"`{path}`, further keys of"
                yield from _table(f"{where} `engine: {engine}`", part)


def _table(title: str, kind: mi.StructType) -> Iterator[str]:
    yield f"### {title}\n"
    yield SPEC.sub("", (inspect.getdoc(kind.cls) or "").split("\n\n")[0]) + "\n"
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    beside = _sentences(kind.cls)
    for each in kind.fields:
        meaning = (getattr(each.type, "extra_json_schema", None) or {}).get("description") or beside[each.name]
        cells = (f"`{each.encode_name}`", shapes.wording(each.type), _default(each), meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _sentences(kind: type) -> dict[str, str]:
    """The strings below the fields of a structure that describes them in this way."""
    sentences = {}
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    for field, said in itertools.pairwise(definition.body):
        match field, said:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(sentence))):
                sentences[name] = sentence
    return sentences


def _default(field: mi.Field) -> str:
    default: Any = field.default
    if field.required:
        return "needed"
    if field.default_factory is not msgspec.NODEFAULT or isinstance(default, msgspec.Struct):
        return "`{}`"
    if default is None:
        return "unset"
    return "`" + re.sub(r"^'|'$", "", repr(default)).replace("True", "true").replace("False", "false") + "`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
