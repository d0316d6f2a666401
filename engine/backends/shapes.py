"""The shapes of requests and answers: OpenAI's, and vLLM's for classify and rerank (spec 11).

Every backend reads bodies and writes answers here, so that two backends cannot differ in what they accept.
Light on purpose (msgspec and the standard library): the stub uses it, too.

Reading: `parse_*` take the bytes as the caller sent them and return a checked structure. Whatever is wrong
with a body becomes a `RequestError` with status 400 and the field at fault in `param`, never another error. A
field that would change the answer and that Stoker does not have (`logprobs`, `tools`, `n` > 1) is refused by
name; one that would not change it (anything unknown) is ignored, as OpenAI-compatible servers do. Of a
repeated key the last wins.

Writing: `*_answer` return JSON as bytes; `CompletionWriter` and `ChatWriter` write the unary and the streamed
form of one answer. The `model` of an answer is the name that the caller used, else the served name. A number
that is not finite has no JSON: it raises `OutputError`, the engine's fault (500) and not the caller's.
"""

from __future__ import annotations

import binascii
import math
import secrets
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Protocol, TypeVar

import msgspec
from msgspec import Meta

from engine import bodies
from engine.backends.base import RequestError
from engine.errors import StokerError

MAX_INPUTS = 2048
"""Most inputs of one embeddings, classify or rerank request, as at OpenAI."""

MAX_STOP = 4
"""Most stop strings of one completion, as at OpenAI."""

DONE = b"data: [DONE]\n\n"
"""The last event of every streamed answer."""

Text = str | list[int]
"""One input: a text, or its token ids."""

FinishReason = Literal["stop", "length"]


class OutputError(StokerError):
    """What a backend computed is no answer (NaN, infinity, a wrong count): the engine's fault, 500."""


class NotFiniteError(OutputError):
    """What a backend computed has no JSON: NaN or infinity. Counted as `nan_outputs`."""


# --------------------------------------------------------------------------------------------- what was asked


class EmbeddingsRequest(msgspec.Struct, frozen=True):
    """`inputs` holds 1 to `MAX_INPUTS` texts, or as many lists of token ids, each id >= 0."""

    inputs: list[str] | list[list[int]]
    model: str | None = None
    base64: bool = False
    dimensions: int | None = None


class Sampling(msgspec.Struct, frozen=True):
    """How to pick tokens. `max_tokens` None: as many as there is room for; `temperature` 0: the likeliest."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None


class CompletionRequest(msgspec.Struct, frozen=True):
    """One prompt, as text or token ids."""

    prompt: Text
    sampling: Sampling
    model: str | None = None
    stream: bool = False
    include_usage: bool = False


class ChatMessage(msgspec.Struct, frozen=True):
    """One message; the parts of a content that came in parts are joined by a line break, as vLLM does."""

    role: str
    content: str


class ChatRequest(msgspec.Struct, frozen=True):
    """At least one message, oldest first."""

    messages: tuple[ChatMessage, ...]
    sampling: Sampling
    model: str | None = None
    stream: bool = False
    include_usage: bool = False


class ClassifyRequest(msgspec.Struct, frozen=True):
    """`inputs` holds 1 to `MAX_INPUTS` texts."""

    inputs: list[str]
    model: str | None = None


class RerankRequest(msgspec.Struct, frozen=True):
    """`top_n` None: all documents come back; else the best `top_n` (at least 1)."""

    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = True


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, completion: int) -> Usage:
        """Usage of `prompt` tokens read and `completion` tokens written."""
        return cls(prompt, completion, prompt + completion)


# ---------------------------------------------------------------------------------------- bodies as they come

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Refused = Any
"""A field that is read only to be refused where it is set (see `_refuse`)."""


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    user: str | None = None


class _EmbeddingsBody(_Body, kw_only=True):
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: _Positive | None = None


class _ClassifyBody(_Body, kw_only=True):
    input: str | list[str]


class _DocumentBody(msgspec.Struct):
    text: str


class _RerankBody(_Body, kw_only=True):
    query: str
    documents: list[str | _DocumentBody]
    top_n: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    return_documents: bool | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _GenerateBody(_Body, kw_only=True):
    max_tokens: _Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: str | list[str] | None = None
    seed: _Int64 | None = None
    n: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logit_bias: _Refused = None
    presence_penalty: _Refused = None
    frequency_penalty: _Refused = None
    logprobs: _Refused = None

    refused: ClassVar[tuple[str, ...]] = ("logprobs", "logit_bias", "presence_penalty", "frequency_penalty")


class _CompletionBody(_GenerateBody, kw_only=True):
    prompt: str | list[str | int | list[int]]
    suffix: _Refused = None
    echo: _Refused = None

    refused: ClassVar[tuple[str, ...]] = (*_GenerateBody.refused, "suffix", "echo")


class _PartBody(msgspec.Struct):
    type: str
    text: str | None = None


class _MessageBody(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_PartBody] | None = None


class _ChatBody(_GenerateBody, kw_only=True):
    messages: list[_MessageBody]
    max_completion_tokens: _Positive | None = None
    top_logprobs: _Refused = None
    tools: _Refused = None
    functions: _Refused = None
    response_format: _Refused = None

    refused: ClassVar[tuple[str, ...]] = (*_GenerateBody.refused, "top_logprobs", "tools", "functions")


_embeddings = msgspec.json.Decoder(_EmbeddingsBody)
_classify = msgspec.json.Decoder(_ClassifyBody)
_rerank = msgspec.json.Decoder(_RerankBody)
_completion = msgspec.json.Decoder(_CompletionBody)
_chat = msgspec.json.Decoder(_ChatBody)

Body = TypeVar("Body", bound=_Body)


# ---------------------------------------------------------------------------------------------------- reading


def parse_embeddings(body: bytes) -> EmbeddingsRequest:
    """Read `POST /v1/embeddings`. Raises RequestError."""
    asked = _decode(_embeddings, body)
    return EmbeddingsRequest(
        inputs=_inputs(asked.input, "input"),
        model=asked.model,
        base64=asked.encoding_format == "base64",
        dimensions=asked.dimensions,
    )


def parse_classify(body: bytes) -> ClassifyRequest:
    """Read `POST /v1/classify`. Raises RequestError."""
    asked = _decode(_classify, body)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    _require_count(texts, "input")
    return ClassifyRequest(inputs=texts, model=asked.model)


def parse_rerank(body: bytes) -> RerankRequest:
    """Read `POST /v1/rerank`; `top_n` 0 means all, as at vLLM. Raises RequestError."""
    asked = _decode(_rerank, body)
    _require_count(asked.documents, "documents")
    return RerankRequest(
        query=asked.query,
        documents=[item if isinstance(item, str) else item.text for item in asked.documents],
        model=asked.model,
        top_n=asked.top_n or None,
        return_documents=asked.return_documents is not False,
    )


def parse_completion(body: bytes) -> CompletionRequest:
    """Read `POST /v1/completions`. One prompt a request: several are refused. Raises RequestError."""
    asked = _decode(_completion, body)
    _refuse(asked, asked.refused)
    prompts = _inputs(asked.prompt, "prompt")
    if len(prompts) > 1:
        _fail(f"expected one prompt a request, found {len(prompts)}; send one request each", "prompt")
    return CompletionRequest(
        prompt=prompts[0],
        sampling=_sampling(asked, asked.max_tokens),
        model=asked.model,
        stream=bool(asked.stream),
        include_usage=_include_usage(asked),
    )


def parse_chat(body: bytes) -> ChatRequest:
    """Read `POST /v1/chat/completions`. Raises RequestError."""
    asked = _decode(_chat, body)
    _refuse(asked, asked.refused)
    _refuse_format(asked.response_format)
    if not asked.messages:
        _fail("expected at least one message, found an empty list", "messages")
    return ChatRequest(
        messages=tuple(_message(message, index) for index, message in enumerate(asked.messages)),
        sampling=_sampling(asked, asked.max_completion_tokens or asked.max_tokens),
        model=asked.model,
        stream=bool(asked.stream),
        include_usage=_include_usage(asked),
    )


def require_vocabulary(inputs: Sequence[Text], size: int, param: str) -> None:
    """Token ids must be under `size`, the model's vocabulary. Raises RequestError."""
    for index, ids in enumerate(inputs):
        if not isinstance(ids, str) and max(ids) >= size:
            _fail(f"expected token ids under {size}, found {max(ids)}", f"{param}[{index}]")


def _inputs(found: str | list[str | int | list[int]], param: str) -> list[str] | list[list[int]]:
    """One of the four ways to give inputs, as a list of texts or a list of token lists."""
    if isinstance(found, str):
        return [found]
    if not found:
        _fail("expected a text or token ids, found an empty list", param)
    kind = type(found[0])
    if not all(type(item) is kind for item in found):
        _fail("expected items of one kind (texts, token ids, or lists of token ids), found a mixture", param)
    if kind is int:
        return [_token_ids(found, param)]
    _require_count(found, param)
    if kind is str:
        return found  # type: ignore[return-value]
    return [_token_ids(ids, f"{param}[{index}]") for index, ids in enumerate(found)]


def _token_ids(ids: Any, param: str) -> list[int]:
    checked: list[int] = ids
    if not checked:
        _fail("expected token ids, found an empty list", param)
    if min(checked) < 0 or max(checked) >= 2**31:
        _fail(f"expected token ids from 0 to 2147483647, found {min(checked)} to {max(checked)}", param)
    return checked


def _require_count(items: Sequence[object], param: str) -> None:
    if not 1 <= len(items) <= MAX_INPUTS:
        _fail(f"expected 1 to {MAX_INPUTS} items, found {len(items)}", param)


def _sampling(asked: _GenerateBody, max_tokens: int | None) -> Sampling:
    for param, value in (("n", asked.n), ("best_of", asked.best_of)):
        if value not in (None, 1):
            _fail(f"expected 1, found {value}; one answer a request is what is supported", param)
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if len(stop) > MAX_STOP:
        _fail(f"expected at most {MAX_STOP} stop strings, found {len(stop)}", "stop")
    return Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        stop=tuple(text for text in stop if text),
        seed=asked.seed,
    )


def _include_usage(asked: _GenerateBody) -> bool:
    return asked.stream_options is not None and bool(asked.stream_options.include_usage)


def _message(message: _MessageBody, index: int) -> ChatMessage:
    content = message.content
    if content is None:
        if message.role != "assistant":
            _fail(f"expected a text for the role {message.role}, found null", f"messages[{index}].content")
        content = ""
    if isinstance(content, str):
        return ChatMessage(message.role, content)
    texts = []
    for number, part in enumerate(content):
        if part.type != "text" or part.text is None:
            where = f"messages[{index}].content[{number}]"
            _fail(f"expected a part of type text with its text, found type {part.type!r}", where)
        texts.append(part.text)
    return ChatMessage(message.role, "\n".join(texts))


def _refuse(asked: _GenerateBody, fields: Sequence[str]) -> None:
    """Refuse what would change the answer and is not supported; null, false, 0 and empty ask for nothing.

    But for `logprobs` 0: it asks for the probability of the token that was picked.
    """
    for field in fields:
        value = getattr(asked, field)
        if value or (field == "logprobs" and value is not None and value is not False):
            _fail(f"{field} is not supported", field)


def _refuse_format(found: Any) -> None:
    if found is not None and found != {"type": "text"}:
        _fail('only {"type": "text"} is supported', "response_format")


# ------------------------------------------------------------------------------------------- faults of a body


def _decode(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    try:
        return bodies.decode(decoder, body)
    except bodies.BadBody as error:
        raise RequestError(error.fault.sentence, param=error.fault.param) from error


def _fail(message: str, param: str) -> NoReturn:
    fault = bodies.about(param, message)
    raise RequestError(fault.sentence, param=fault.param)


# ---------------------------------------------------------------------------------------------------- writing

_encode = msgspec.json.Encoder().encode


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
    document: _DocumentBody | None = None


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
    texts = [_DocumentBody(text) for text in asked.documents] if asked.return_documents else None
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
