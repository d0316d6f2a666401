"""What is asked: the requests of OpenAI's API, and of vLLM's for classify and rerank, read and checked (spec 11).

Every backend reads bodies here, so that two backends cannot differ in what they accept. Light on purpose (msgspec and
the standard library): the stub uses it, too. What is answered is in `engine.backends.answers`.

`parse_*` take the bytes as the caller sent them and return a checked structure. Whatever is wrong with a body becomes a
`RequestError` with status 400 and the field at fault in `param`, never another error. A field that would change the
answer and that Stoker does not have (`logprobs`, `tools`, `n` > 1) is refused by name; one that would not change it
(anything unknown) is ignored, as OpenAI-compatible servers do. Of a repeated key the last wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from engine import bodies
from engine.backends.base import RequestError

MAX_INPUTS = 2048
"""Most inputs of one embeddings, classify or rerank request, as at OpenAI."""

MAX_STOP = 4
"""Most stop strings of one completion, as at OpenAI."""

Text = str | list[int]
"""One input: a text, or its token ids."""


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


class Document(msgspec.Struct):
    text: str


class _RerankBody(_Body, kw_only=True):
    query: str
    documents: list[str | Document]
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
