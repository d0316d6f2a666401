"""Whether two answers are the same to the last bit, in every field (spec 9).

`==` does not do: it takes 0.0 for -0.0, and a NaN for no NaN at all. Numbers are compared by their bytes, containers
and objects part by part.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


def same_bits(one: Any, other: Any) -> bool:
    """Whether two outputs of a forward are the same, types, shapes and bits."""
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return struct.pack("<d", one) == struct.pack("<d", other)
        case complex():
            return same_bits(one.real, other.real) and same_bits(one.imag, other.imag)
        case str() | bytes() | bytearray():
            return bool(one == other)
        case Mapping():
            return one.keys() == other.keys() and all(same_bits(value, other[key]) for key, value in one.items())
        case Sequence():
            return len(one) == len(other) and all(map(same_bits, one, other))
    if hasattr(one, "detach"):  # a tensor of torch; neither that nor numpy is imported to tell
        return _same_tensors(one, other)
    if hasattr(one, "tobytes") and hasattr(one, "dtype"):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    names = _fields(one)
    if names:
        return all(same_bits(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def _same_tensors(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    pair = [tensor.detach().cpu().contiguous().flatten() for tensor in (one, other)]
    import torch

    raw = [tensor.view(dtype=torch.uint8).numpy() for tensor in pair]
    return bool(raw[0].tobytes() == raw[1].tobytes())


def _fields(one: Any) -> Sequence[str]:
    """Names of what an object is made of."""
    if dataclasses.is_dataclass(one):
        return [field.name for field in dataclasses.fields(one)]
    if isinstance(one, msgspec.Struct):
        return one.__struct_fields__
    return list(getattr(one, "__dict__", ()))
