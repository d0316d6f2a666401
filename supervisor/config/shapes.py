"""What may be written as one value of the document, and how errors and docs/config.md describe it."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Annotated, ClassVar, NamedTuple
from urllib.parse import urlsplit

import msgspec
import msgspec.inspect as mi
from msgspec import Meta

HOUR_MS = 3_600_000
"""The longest ejection there is (spec 3), in milliseconds."""
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Duration = Annotated[float, Meta(ge=0)]
DrainSeconds = Annotated[float, Meta(ge=0, le=3600)]
EjectionMs = Annotated[int, Meta(ge=1, le=HOUR_MS)]
Percent = Annotated[int, Meta(ge=0, le=100)]

STUB = "stub"
"""The artifact of the stand-in engine, which loads nothing."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")
_REVISION = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IDENTIFIERS = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_CLASS = re.compile(rf"{_IDENTIFIERS}:[A-Za-z_][A-Za-z0-9_]*")
_PACKAGE = re.compile(rf"pkg:{_IDENTIFIERS}(/[^/]+)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ArtifactKind(Enum):
    """The forms that an artifact's text may take (spec 3, 10)."""

    HUB = "owner/name on the hub"
    PATH = "a path that starts with /, ./, ../ or ~"
    PACKAGE = "pkg:NAME/path inside an installed package"
    CLASS = "package.module:Class"
    STUB = "stub"


def artifact_kind(text: str) -> ArtifactKind | None:
    """Which form an artifact's text has; None where it has none of them."""
    if not text or text != text.strip() or _CONTROL.search(text):
        return None
    if text == STUB:
        return ArtifactKind.STUB
    if text.startswith(("/", "./", "../", "~")):
        return ArtifactKind.PATH
    if text.startswith("pkg:"):
        stays_inside = _PACKAGE.fullmatch(text) and not {".", ".."} & set(text.split("/"))
        return ArtifactKind.PACKAGE if stays_inside else None
    if _HUB_ID.fullmatch(text):
        return ArtifactKind.HUB
    return ArtifactKind.CLASS if _CLASS.fullmatch(text) else None


def is_deployment_name(text: str) -> bool:
    """Whether a deployment may have this name; its replicas are called `name/0`, `name/1`, …"""
    return _NAME.fullmatch(text) is not None


def is_device(text: str) -> bool:
    """Whether the text has a device's shape (spec 3); whether it exists is another room's question."""
    return _DEVICE.fullmatch(text) is not None


def is_endpoint(text: str) -> bool:
    """`http(s)://host…` or `unix:///abs`, without user information, query or fragment."""
    if text != text.strip() or _CONTROL.search(text) or " " in text:
        return False
    try:
        parts = urlsplit(text)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        return False
    if parts.query or parts.fragment or "@" in parts.netloc:
        return False
    if parts.scheme == "unix":
        return _is_socket_url(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port_fits


def is_listen(text: str) -> bool:
    """`host:port` (port 0: any free one; an IPv6 host stands in brackets) or `unix:///abs`."""
    if text.startswith("unix:"):
        return _is_socket_url(text) and not _CONTROL.search(text)
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or re.search(r"[\s/@\[\]]", bare) or (":" in bare and bare == host):
        return False
    return re.fullmatch(r"[0-9]{1,5}", port) is not None and int(port) < 65536


def same_endpoint(text: str) -> str:
    """The form in which two endpoints that mean the same server are equal."""
    scheme, separator, rest = text.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    return scheme.lower() + separator + host.lower() + slash + path


def _is_socket_url(text: str) -> bool:
    return re.fullmatch(r"unix:///[^?#]*[^?#/]", text) is not None


def _is_model(text: str) -> bool:
    return bool(text) and text == text.strip() and not _CONTROL.search(text)


def _is_line(text: str) -> bool:
    return bool(text.strip()) and "\0" not in text


class Words(NamedTuple):
    """What a text field accepts: a check, how to say it, and whether a refused value must not be repeated."""

    check: Callable[[str], object]
    allowed: str
    secret: bool = False


def about(sentence: str, words: Words | None = None) -> Meta:
    return Meta(description=sentence, extra={"words": words} if words else None)


def wording(kind: mi.Type) -> str:
    """What a type accepts, in words: for problems and for the reference page."""
    match kind:
        case mi.Metadata(type=inner, extra=extra):
            words = (extra or {}).get("words")
            return words.allowed if words else wording(inner)
        case mi.UnionType(types=types):
            return ", or ".join("null" if isinstance(each, mi.NoneType) else wording(each) for each in types)
        case mi.IntType(ge=least, le=most):
            return "a whole number" + _bounds(least, most)
        case mi.FloatType(ge=least, le=most):
            return "a number" + _bounds(least, most)
        case mi.LiteralType(values=values):
            return " or ".join(filter(None, (", ".join(map(str, values[:-1])), str(values[-1]))))
        case mi.VarTupleType(item_type=item):
            return f"a list of {_PLURALS[type(item)]}"
    return _PLAIN_WORDING[type(kind)]


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f", {most} at most"
    return f", {least} or more" if most is None else f" from {least} to {most}"


_PLURALS = {mi.StrType: "texts", mi.StructType: "mappings"}
_PLAIN_WORDING = {
    mi.StrType: "text",
    mi.BoolType: "true or false",
    mi.AnyType: "any value",
    mi.StructType: "a mapping",
    mi.DictType: "a mapping",
}

NAME = Words(is_deployment_name, "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit")
DEVICE = Words(is_device, "auto, or an accelerator's name with an optional index, such as cpu, cuda:0 or rocm:1")
ENDPOINT = Words(is_endpoint, "http(s)://host[:port][/path] or unix:///absolute/path, without a password", secret=True)
MODEL = Words(_is_model, "a model's name without surrounding blanks or control characters")
ARTIFACT = Words(artifact_kind, ", ".join(kind.value for kind in ArtifactKind))
REVISION = Words(_REVISION.fullmatch, "40 lower-case hexadecimal digits (a commit)")
LISTEN = Words(is_listen, 'host:port ("[::1]:8100" for IPv6) or unix:///absolute/path')
VARIABLE = Words(_VARIABLE.fullmatch, "the name of an environment variable", secret=True)
LINE = Words(_is_line, "text that is not empty")
URL_PATH = Words(re.compile(r"/[!-~]*").fullmatch, "a URL's path that starts with /")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Any mapping of the document.

    `router_keys` belong to the vLLM Semantic Router: accepted, ignored. `open_ended`: further keys are read
    elsewhere, as engine arguments are, which depend on the engine.
    """

    router_keys: ClassVar[frozenset[str]] = frozenset()
    open_ended: ClassVar[bool] = False
