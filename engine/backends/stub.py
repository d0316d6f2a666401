"""The stand-in engine (spec 10): answers every route after a set time, with no model behind it, and breaks on request.

It is a product feature, not a test double: with it anyone can see each rule of dispatch, ejection and drain at work on a
laptop. Answers are a function of the input alone, so that two stubs agree. Its faults are `engine.messages.Faults`.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.backends.base import Backend, Generation, Job, LoadError, RequestError, Row
from engine.messages import Card, Faults, LaunchSpec, Route

DEFAULT_SEQS = 32
DEFAULT_TOKENS = 8192


class StubOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`engine_args` of a stub. Times in milliseconds; `dim`: length of an embedding; `tokens`: length of a generation."""

    latency_ms: float = 0.0
    tokens: int = 16
    token_ms: float = 10.0
    dim: int = 8
    load_ms: float = 0.0
    faults: Faults = Faults()


class StubBackend(Backend):
    """Sleeps where others compute."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._changed = threading.Condition()
        self._noise = 0
        try:
            self._options = msgspec.convert(spec.options, StubOptions)
        except msgspec.ValidationError as error:
            raise LoadError(f"stub: {error}", final=True) from None
        self._faults = self._options.faults
        wrong = 1 if self._faults.wrong_card else 0
        self.max_num_seqs = (spec.max_num_seqs or DEFAULT_SEQS) + wrong
        self.max_num_batched_tokens = (spec.max_num_batched_tokens or DEFAULT_TOKENS) + wrong

    def load(self) -> None:
        time.sleep(self._options.load_ms / 1000)
        if self._faults.exit_while_loading:
            print("stub: exiting while loading, as asked", file=sys.stderr, flush=True)
            os._exit(7)

    def card(self) -> Card:
        return Card(
            artifact=self._spec.artifact,
            revision=self._spec.revision,
            engine="stub",
            task="any",
            device=self._spec.device,
            dtype="none",
            threads=self._spec.threads,
            dimensions=self._options.dim + (1 if self._faults.wrong_card else 0),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        if self._faults.refuse:
            raise RequestError("the stub refuses, as asked")
        if self._faults.fail:
            raise RuntimeError("the stub fails, as asked")
        request = _decode(body)
        inputs = request.input if isinstance(request.input, list) else [request.input]
        return _EmbedJob(request.model or self._spec.artifact, [Row(1, str(one)) for one in inputs])

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        self._pause(self._options.latency_ms)
        return [self._vector(row.data) for row in rows]

    def golden(self) -> Sequence[bytes]:
        return (b'{"input":"golden"}', b'{"input":["one","two"]}')

    def set_faults(self, faults: Faults) -> None:
        with self._changed:
            self._faults = faults
            self._changed.notify_all()

    def _pause(self, milliseconds: float) -> None:
        """Take as long as a forward would, or as the faults say."""
        faults = self._faults
        if faults.hold_gil_ms:
            _hold_gil(faults.hold_gil_ms / 1000)
        if milliseconds or faults.slow_ms:
            time.sleep((milliseconds + faults.slow_ms) / 1000)
        if faults.hang:
            with self._changed:
                self._changed.wait_for(lambda: not self._faults.hang)

    def _vector(self, text: str) -> list[float]:
        """A unit vector that depends on the input alone."""
        if self._faults.noise:
            self._noise += 1
            text += str(self._noise)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        raw = [digest[index % 32] - 127.5 for index in range(self._options.dim)]
        norm = math.sqrt(sum(value * value for value in raw))
        return [value / norm for value in raw]


class _Request(msgspec.Struct):
    input: str | list[str]
    model: str | None = None


_decode = msgspec.json.Decoder(_Request).decode
_encode = msgspec.json.Encoder().encode


class _EmbedJob(Job):
    def __init__(self, model: str, rows: list[Row]) -> None:
        self.rows = rows
        self._model = model

    def answer(self, outputs: Sequence[Any]) -> bytes:
        data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(outputs)]
        usage = {"prompt_tokens": len(outputs), "total_tokens": len(outputs)}
        return _encode({"object": "list", "data": data, "model": self._model, "usage": usage})


def _hold_gil(seconds: float) -> None:
    """Keep every other thread of this process from running: one C call that never gives the interpreter up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        sum(range(2_000_000))
