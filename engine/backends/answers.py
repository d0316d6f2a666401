"""What is answered: JSON in the shapes of OpenAI's API, and of vLLM's for classify and rerank (spec 11).

Every backend writes its answers here. Light on purpose (msgspec and the standard library): the stub uses it, too. What
is asked is in `engine.backends.requests`.

`*_answer` return JSON as bytes; `CompletionWriter` and `ChatWriter` write the unary and the streamed form of one
answer. The `model` of an answer is the name that the caller used, else the served name. A number that is not finite has
no JSON: it raises `OutputError`, the engine's fault (500) and not the caller's.
"""

from __future__ import annotations

import binascii
import math
import secrets
import sys
import time
from array import array
from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

import msgspec

from engine.backends.requests import ClassifyRequest, Document, EmbeddingsRequest, RerankRequest
from engine.errors import StokerError

DONE = b"data: [DONE]\n\n"
"""The last event of every streamed answer."""

FinishReason = Literal["stop", "length"]

_encode = msgspec.json.Encoder().encode


class OutputError(StokerError):
    """What a backend computed is no answer (NaN, infinity, a wrong count): the engine's fault, 500."""


class NotFiniteError(OutputError):
    """What a backend computed has no JSON: NaN or infinity. Counted as `nan_outputs`."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, completion: int) -> Usage:
        """Usage of `prompt` tokens read and `completion` tokens written."""
        return cls(prompt, completion, prompt + completion)


class Head(msgspec.Struct, frozen=True):
    """What identifies one answer: an id, the wall-clock second it was created in, and the model's name."""

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, model: str) -> Head:
        """A head of its own, as `cmpl-3f…`."""
        return cls(f"{prefix}-{secrets.token_hex(16)}", int(time.time()), model)


class _InputUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class _Embedding(msgspec.Struct, kw_only=True):
    object: str = "embedding"
    index: int
    embedding: Sequence[float] | str


class _EmbeddingsAnswer(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[_Embedding]
    model: str
    usage: _InputUsage


def embeddings_answer(
    asked: EmbeddingsRequest, vectors: Sequence[Sequence[float]], prompt_tokens: int, served: str
) -> bytes:
    """The answer of `/v1/embeddings`.

    vectors: one an input, in order, as Python floats that hold float32 values. A float32 that was widened
    prints as 0.10000000149011612: give a short decimal that is still the same float32 where size matters.
    Raises OutputError where a number is not finite or the count is wrong.
    """
    _require_outputs(len(vectors), len(asked.inputs))
    for vector in vectors:
        _require_finite(vector)
    data = [
        _Embedding(index=index, embedding=base64_float32(vector) if asked.base64 else vector)
        for index, vector in enumerate(vectors)
    ]
    usage = _InputUsage(prompt_tokens, prompt_tokens)
    return _encode(_EmbeddingsAnswer(data=data, model=asked.model or served, usage=usage))


def base64_float32(vector: Sequence[float]) -> str:
    """A vector as OpenAI's base64 form: its little-endian float32 bytes."""
    packed = array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return binascii.b2a_base64(packed.tobytes(), newline=False).decode("ascii")


class _Class(msgspec.Struct):
    index: int
    label: str
    probs: Sequence[float]
    num_classes: int


class _ClassifyAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[_Class]
    usage: Usage


def classify_answer(
    asked: ClassifyRequest,
    probs: Sequence[Sequence[float]],
    labels: Sequence[str],
    prompt_tokens: int,
    served: str,
) -> bytes:
    """The answer of `/v1/classify`; probs: one row an input with one number a label. Raises OutputError."""
    _require_outputs(len(probs), len(asked.inputs))
    data = []
    for index, row in enumerate(probs):
        _require_finite(row)
        _require_outputs(len(row), len(labels))
        best = max(range(len(row)), key=row.__getitem__)
        data.append(_Class(index, labels[best], row, len(row)))
    head = Head.new("classify", asked.model or served)
    usage = Usage.of(prompt_tokens, 0)
    answer = _ClassifyAnswer(id=head.id, created=head.created, model=head.model, data=data, usage=usage)
    return _encode(answer)


class _RerankUsage(msgspec.Struct):
    total_tokens: int


class _Ranked(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: Document | None = None


class _RerankAnswer(msgspec.Struct):
    id: str
    model: str
    usage: _RerankUsage
    results: list[_Ranked]


def rerank_answer(asked: RerankRequest, scores: Sequence[float], total_tokens: int, served: str) -> bytes:
    """The answer of `/v1/rerank`: best score first, equal ones in their own order. Raises OutputError."""
    _require_outputs(len(scores), len(asked.documents))
    _require_finite(scores)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    texts = [Document(text) for text in asked.documents] if asked.return_documents else None
    results = [_Ranked(index, scores[index], texts[index] if texts else None) for index in order]
    head = Head.new("rerank", asked.model or served)
    return _encode(_RerankAnswer(head.id, head.model, _RerankUsage(total_tokens), results))


def _require_outputs(found: int, expected: int) -> None:
    if found != expected:
        raise OutputError(f"the model gave {found} outputs where {expected} were expected")


def _require_finite(vector: Sequence[float]) -> None:
    # One sum first instead of a test a number: NaN and infinity stay in it.
    if not math.isfinite(sum(vector)) and not all(map(math.isfinite, vector)):
        raise NotFiniteError("the model gave NaN or infinity")


# -------------------------------------------------------------------------------------- completions, streamed


class Writer(Protocol):
    """Writes one generated answer: whole, or as server-sent events in the order first, piece…, last."""

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """The unary answer."""

    def first(self) -> bytes:
        """What a stream opens with; empty where the shape has no such event."""

    def piece(self, text: str) -> bytes:
        """The event of more text."""

    def last(self, reason: FinishReason, usage: Usage) -> bytes:
        """All that ends a stream: the finish reason, the usage where it was asked for, and `[DONE]`."""


class _CompletionChoice(msgspec.Struct):
    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class _ChatReply(msgspec.Struct):
    content: str
    role: str = "assistant"


class _ChatChoice(msgspec.Struct):
    message: _ChatReply
    finish_reason: str | None
    index: int = 0
    logprobs: None = None


class _ChatDelta(msgspec.Struct):
    delta: dict[str, str]
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class _Generated(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: Sequence[_CompletionChoice | _ChatChoice | _ChatDelta]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class _WriterBase:
    """What both writers share. `include_usage`: every event has `usage`, null except in the last."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    event_object: ClassVar[str]

    def __init__(self, model: str, *, include_usage: bool = False) -> None:
        self._head = Head.new(self.prefix, model)
        self._include_usage = include_usage

    def _whole(self, choice: _CompletionChoice | _ChatChoice, usage: Usage) -> bytes:
        head = self._head
        return _encode(_Generated(head.id, self.whole_object, head.created, head.model, [choice], usage))

    def _event(self, choices: Sequence[_CompletionChoice | _ChatDelta], usage: Usage | None = None) -> bytes:
        head = self._head
        shown = usage if self._include_usage else msgspec.UNSET
        return _sse(_Generated(head.id, self.event_object, head.created, head.model, choices, shown))

    def _ending(self, choice: _CompletionChoice | _ChatDelta, usage: Usage) -> bytes:
        counted = self._event([], usage) if self._include_usage else b""
        return self._event([choice]) + counted + DONE


class CompletionWriter(_WriterBase):
    """Answers of `/v1/completions`."""

    prefix = "cmpl"
    whole_object = "text_completion"
    event_object = "text_completion"

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """See Writer."""
        return self._whole(_CompletionChoice(text, reason), usage)

    def first(self) -> bytes:
        """See Writer; this shape opens with its first piece."""
        return b""

    def piece(self, text: str) -> bytes:
        """See Writer."""
        return self._event([_CompletionChoice(text)])

    def last(self, reason: FinishReason, usage: Usage) -> bytes:
        """See Writer."""
        return self._ending(_CompletionChoice("", reason), usage)


class ChatWriter(_WriterBase):
    """Answers of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """See Writer."""
        return self._whole(_ChatChoice(_ChatReply(text), reason), usage)

    def first(self) -> bytes:
        """See Writer: the delta that names the role."""
        return self._event([_ChatDelta({"role": "assistant", "content": ""})])

    def piece(self, text: str) -> bytes:
        """See Writer."""
        return self._event([_ChatDelta({"content": text})])

    def last(self, reason: FinishReason, usage: Usage) -> bytes:
        """See Writer."""
        return self._ending(_ChatDelta({}, reason), usage)


def _sse(message: msgspec.Struct) -> bytes:
    return b"data: " + _encode(message) + b"\n\n"
