"""The stand-in engine (spec 10): answers every route after a set time, with no model behind it, and breaks on request.

It is a product feature, not a test double: with it anyone can see each rule of dispatch, ejection and drain at work
on a laptop. Answers are a function of the input alone, so that two stubs agree. Its faults are
`engine.messages.Faults`.
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

from engine.backends import answers, requests
from engine.backends.base import Backend, Generation, Job, LoadError, RequestError, Row
from engine.messages import Card, Faults, LaunchSpec, Route

DEFAULT_SEQS = 32
DEFAULT_TOKENS = 8192


class StubOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`engine_args` of a stub. Times in milliseconds; dim: length of an embedding; tokens: of a generation."""

    latency_ms: float = 0.0
    tokens: int = 16
    token_ms: float = 10.0
    dim: int = 8
    load_ms: float = 0.0
    faults: Faults = Faults()


class StubBackend(Backend):
    """Sleeps where others compute."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._changed = threading.Condition()
        self._noise = 0
        self.adopt(spec)

    def adopt(self, spec: LaunchSpec) -> None:
        try:
            self._options = msgspec.convert(spec.options, StubOptions)
        except msgspec.ValidationError as error:
            raise LoadError(f"stub: {error}", final=True) from None
        self._faults = self._options.faults
        self._spec = spec
        wrong = 1 if self._faults.wrong_card else 0
        self._dimensions = self._options.dim + wrong
        beyond = 1 if self._faults.wrong_card or self._faults.wrong_limits else 0
        self.max_num_seqs = (spec.max_num_seqs or DEFAULT_SEQS) + beyond
        self.max_num_batched_tokens = (spec.max_num_batched_tokens or DEFAULT_TOKENS) + beyond

    def load(self) -> None:
        time.sleep(self._options.load_ms / 1000)

    def warm(self) -> None:
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
            dimensions=self._dimensions,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        if self._faults.refuse:
            raise RequestError("the stub refuses, as asked")
        if self._faults.fail:
            raise RuntimeError("the stub fails, as asked")
        served = self._spec.replica.partition("/")[0]
        match route:
            case Route.EMBEDDINGS:
                return _EmbedJob(requests.parse_embeddings(body), served)
            case Route.CLASSIFY:
                return _ClassifyJob(requests.parse_classify(body), served)
            case Route.RERANK:
                return _RerankJob(requests.parse_rerank(body), served)
            case Route.COMPLETIONS:
                asked = requests.parse_completion(body)
                writer = answers.CompletionWriter(asked.model or served, include_usage=asked.include_usage)
                return self._generation(asked.prompt, asked.sampling, writer)
            case Route.CHAT:
                chat = requests.parse_chat(body)
                writing = answers.ChatWriter(chat.model or served, include_usage=chat.include_usage)
                return self._generation(chat.messages[-1].content, chat.sampling, writing)

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        self._pause(self._options.latency_ms)
        return [self._vector(row.data) for row in rows]

    def step(self, generations: Sequence[Generation]) -> None:
        self._pause(self._options.token_ms)
        for generation in generations:
            assert isinstance(generation, _StubGeneration)
            generation.advance()

    def golden(self) -> Sequence[bytes]:
        return (b'{"input":"golden"}', b'{"input":["one","two"]}')

    def set_faults(self, faults: Faults) -> None:
        with self._changed:
            self._faults = faults
            self._changed.notify_all()

    def _generation(self, prompt: requests.Text, sampling: requests.Sampling, writer: answers.Writer) -> Generation:
        most = sampling.max_tokens if sampling.max_tokens is not None else self._options.tokens
        return _StubGeneration(writer, _length(prompt), min(most, self._options.tokens), most)

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
        # SHA-256 has instructions of its own on most CPUs: of a text of megabytes, a third of blake2b's time.
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
        raw = [digest[index % 32] - 127.5 for index in range(self._dimensions)]
        norm = math.sqrt(sum(value * value for value in raw))
        return [value / norm for value in raw]


class _EmbedJob(Job):
    def __init__(self, asked: requests.EmbeddingsRequest, served: str) -> None:
        self.rows = [Row(_length(one), str(one)) for one in asked.inputs]
        self._asked = asked
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        tokens = sum(row.tokens for row in self.rows)
        return answers.embeddings_answer(self._asked, outputs, tokens, self._served)


class _ClassifyJob(Job):
    """Two classes; the probability of the first is read off the stub's vector."""

    def __init__(self, asked: requests.ClassifyRequest, served: str) -> None:
        self.rows = [Row(_length(one), one) for one in asked.inputs]
        self._asked = asked
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        probabilities = [(share, 1.0 - share) for share in (0.5 + vector[0] / 2 for vector in outputs)]
        tokens = sum(row.tokens for row in self.rows)
        return answers.classify_answer(self._asked, probabilities, ["yes", "no"], tokens, self._served)


class _RerankJob(Job):
    """Scores are the cosines between the stub's vectors of query and document."""

    def __init__(self, asked: requests.RerankRequest, served: str) -> None:
        self.rows = [Row(_length(one), one) for one in (asked.query, *asked.documents)]
        self._asked = asked
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        query, *documents = outputs
        scores = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
        tokens = sum(row.tokens for row in self.rows)
        return answers.rerank_answer(self._asked, scores, tokens, self._served)


class _StubGeneration(Generation):
    """Says `token 0 token 1 …` until its length is reached."""

    def __init__(self, writer: answers.Writer, prompt_tokens: int, length: int, most: int) -> None:
        self.tokens = prompt_tokens
        self._writer = writer
        self._length = length
        self._reason: answers.FinishReason = "length" if length == most else "stop"
        self._said: list[str] = []
        self._news: list[bytes] = []

    def advance(self) -> None:
        """One decode step."""
        if not self._said:
            self._news.append(self._writer.first())
        if len(self._said) < self._length:
            self._said.append(f"token {len(self._said)} ")
            self._news.append(self._writer.piece(self._said[-1]))
        if len(self._said) >= self._length:
            self.done = True
            self._news.append(self._writer.last(self._reason, self._usage()))

    def take(self) -> bytes | None:
        news = b"".join(self._news)
        self._news.clear()
        return news or None

    def answer(self) -> bytes:
        return self._writer.whole("".join(self._said), self._reason, self._usage())

    def _usage(self) -> answers.Usage:
        return answers.Usage.of(self.tokens, len(self._said))


def _length(text: requests.Text) -> int:
    """About four characters a token, as English has; ids are tokens already."""
    return max(1, len(text) // 4 if isinstance(text, str) else len(text))


def _hold_gil(seconds: float) -> None:
    """Keep every other thread of this process from running: C calls that do not give the interpreter up."""
    deadline = time.monotonic() + seconds
    interval = sys.getswitchinterval()
    sys.setswitchinterval(seconds + 1)
    try:
        while time.monotonic() < deadline:
            sum(range(2_000_000))
    finally:
        sys.setswitchinterval(interval)
