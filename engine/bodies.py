"""Reading a JSON body: what is wrong with one, in a sentence and with the field at fault.

The gateway reads two fields of a body, a backend reads the rest; both say what is wrong in the same words. Light:
msgspec and the standard library.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple, TypeVar

import msgspec

Body = TypeVar("Body")

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"required field `(?P<name>[^`]+)`")
_LOOK_FOR_FIELD_BYTES = 1024 * 1024
"""Bodies beyond this are not read a second time to name a field."""


class Fault(NamedTuple):
    """What is wrong with a body, and the field it is in where that can be told."""

    sentence: str
    param: str | None


class BadBody(Exception):
    """A body that is not what was expected; turned into 400 by whoever read it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


def decode(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """The body as the decoder's type. Raises BadBody, and nothing else."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadBody(_invalid(error)) from error
    except RecursionError as error:
        raise BadBody(Fault("the body is nested too deeply", None)) from error
    except ValueError as error:  # MsgspecError and UnicodeDecodeError are ValueErrors
        raise BadBody(_malformed(body, error)) from error


def about(param: str, sentence: str) -> Fault:
    """A fault of one field."""
    return Fault(f"{param}: {sentence}" if param else sentence, param or None)


def _invalid(error: msgspec.ValidationError) -> Fault:
    """Well-formed JSON of the wrong shape: msgspec's sentence, and its path."""
    found = _PATH.match(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    missing = _FIELD.search(what)
    param = f"{path}.{missing['name']}" if missing else path
    return about(param.removeprefix("."), what)


def _malformed(body: bytes, error: ValueError) -> Fault:
    """No JSON at all; or what Python reads and JSON does not have, and then the field can be named."""
    param = _field_that_is_no_json(body)
    if param is None:
        return Fault(f"the body is not JSON: {error}", None)
    return about(param, "expected JSON, found NaN, Infinity or a lone surrogate")


def _field_that_is_no_json(body: bytes) -> str | None:
    """The first field with NaN, Infinity or a lone surrogate; None where that is not what is wrong."""
    if len(body) > _LOOK_FOR_FIELD_BYTES:
        return None
    try:
        read = json.loads(body)
        if not isinstance(read, dict):
            return None
        return next((name for name, value in read.items() if not _is_json(name) or not _is_json(value)), None)
    except (ValueError, RecursionError):
        return None


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True
