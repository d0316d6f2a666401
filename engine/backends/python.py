"""The engine `python`: a class of the user's own, called by the engine's one device thread (spec 10).

    artifact: package.module:Class      load(args), then forward(rows) -> outputs, or stream(row) -> pieces of text

The class sees plain values only: rows in, one output a row back, or pieces of text one after another. Which route it
answers is its `task`, said in the config or by the class, so a wrong route is a 404 and no guess. Whatever its code
raises, also `SystemExit`, is an answer of 500 with the message and a traceback in the replica's log.

A row that fails must not take its neighbours along. The device thread sees to that for `forward`, by trying the
requests of a failed forward one by one; a generator keeps its own error (`Generation.error`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine.backends import answers, requests
from engine.backends.base import Backend, Generation, Job, LoadError, RequestError, Row
from engine.errors import StokerError, log_traceback, words_of
from engine.messages import Card, LaunchSpec, Route

DEFAULT_SEQS = 32
DEFAULT_TOKENS = 8192
CHARACTERS_A_TOKEN = 4
"""A user's class has no tokeniser that we know of; lengths are estimated as English has them."""

TASKS: dict[str, tuple[Route, ...]] = {
    "embed": (Route.EMBEDDINGS,),
    "classify": (Route.CLASSIFY,),
    "rerank": (Route.RERANK,),
    "generate": (Route.COMPLETIONS, Route.CHAT),
}
"""What a class of each task answers; the first route is the one that its `example` is sent to."""

PATHS = {
    Route.EMBEDDINGS: "/v1/embeddings",
    Route.CLASSIFY: "/v1/classify",
    Route.RERANK: "/v1/rerank",
    Route.COMPLETIONS: "/v1/completions",
    Route.CHAT: "/v1/chat/completions",
}
FORKABLE = "forkable"
"""The one engine argument that is Stoker's own, and so no part of `args`: see docs/engines.md."""


class UserCodeError(StokerError):
    """The class did what it must not: left the process, or gave outputs that are none."""


class PythonBackend(Backend):
    """Loads the user's class and turns requests into its rows, and its outputs into answers."""

    _user: Any
    _task: str
    _deterministic: bool

    def __init__(self, spec: LaunchSpec) -> None:
        self.adopt(spec)

    def adopt(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self.max_num_seqs = spec.max_num_seqs or DEFAULT_SEQS
        self.max_num_batched_tokens = spec.max_num_batched_tokens or DEFAULT_TOKENS

    def load(self) -> None:
        kind = _import_class(self._spec.artifact)
        self._task = _task_of(kind, self._spec)
        with _no_way_out():
            self._user = kind()
            if hasattr(self._user, "load"):
                self._user.load(self._args())
        self._deterministic = self._task != "generate" and getattr(self._user, "deterministic", False) is True

    def warm(self) -> None:
        """In the replica's own process: the class may have a `warm()`, for what must not happen before a fork."""
        if hasattr(self._user, "warm"):
            with _no_way_out():
                self._user.warm()

    def card(self) -> Card:
        return Card(
            artifact=self._spec.artifact,
            engine="python",
            task=self._task,
            device=self._spec.device,
            dtype=self._spec.dtype,
            threads=self._spec.threads,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            deterministic=self._deterministic,
        )

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        prepared = self._read(route, body, stream)
        if self._deterministic and isinstance(prepared, Job):
            for row in prepared.rows:
                row.key = _key_of(row.data)
        return prepared

    def _read(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        if route not in TASKS[self._task]:
            there = " and ".join(PATHS[own] for own in TASKS[self._task])
            raise RequestError(f"this deployment's task is {self._task}: it answers {there}", status=404)
        served = self._spec.replica.partition("/")[0]
        match route:
            case Route.EMBEDDINGS:
                return _EmbedJob(requests.parse_embeddings(body), served)
            case Route.CLASSIFY:
                return _ClassifyJob(requests.parse_classify(body), served, getattr(self._user, "labels", None))
            case Route.RERANK:
                return _RerankJob(requests.parse_rerank(body), served)
            case Route.COMPLETIONS:
                asked = requests.parse_completion(body)
                writer = answers.CompletionWriter(asked.model or served, include_usage=asked.include_usage)
                messages = [{"role": "user", "content": asked.prompt}]
                return self._speech(_prompt_row(asked.prompt, messages, asked.sampling), asked.sampling, writer, stream)
            case Route.CHAT:
                chat = requests.parse_chat(body)
                writing = answers.ChatWriter(chat.model or served, include_usage=chat.include_usage)
                messages = [msgspec.structs.asdict(message) for message in chat.messages]
                row = _prompt_row(chat.messages[-1].content, messages, chat.sampling)
                return self._speech(row, chat.sampling, writing, stream)

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        return self._outputs([row.data for row in rows])

    def step(self, generations: Sequence[Generation]) -> None:
        for generation in generations:
            assert isinstance(generation, _Speech)
            generation.advance()

    def release(self, generation: Generation) -> None:
        assert isinstance(generation, _Speech)
        generation.close()

    def golden(self) -> Sequence[bytes]:
        """The class's `example`, an input as callers send it; a class without one is not checked."""
        example = getattr(self._user, "example", None)
        if example is None:
            return ()
        fields = example if isinstance(example, Mapping) else {_INPUT_FIELDS[self._task]: example}
        return (msgspec.json.encode(fields),)

    def golden_route(self) -> Route:
        return TASKS[self._task][0]

    def _args(self) -> dict[str, Any]:
        """The engine arguments of the config, and where to compute: a GPU replica sees its own card alone."""
        kind = self._spec.device.partition(":")[0]
        device = "cpu" if self._spec.simulated or kind == "cpu" else kind
        given = {name: value for name, value in self._spec.options.items() if name != FORKABLE}
        return {"device": device, "threads": self._spec.threads, **given}

    def _outputs(self, rows: list[Any]) -> Sequence[Any]:
        with _no_way_out():
            outputs = _plain(self._user.forward(rows))
        if not isinstance(outputs, list | tuple) or len(outputs) != len(rows):
            found = f"{len(outputs)} outputs" if isinstance(outputs, list | tuple) else type(outputs).__name__
            raise UserCodeError(f"expected forward to return a list of {len(rows)} outputs, one a row; found {found}")
        return [_plain(output) for output in outputs] if self._deterministic else outputs

    def _speech(
        self, row: dict[str, Any], sampling: requests.Sampling, writer: answers.Writer, stream: bool
    ) -> Job | Generation:
        """How a text is made: by steps where the class or the caller streams, else in a forward with others."""
        tokens = _length(row["prompt"])
        if hasattr(self._user, "stream"):
            return _Speech(writer, tokens, _Pieces(self._streamed(row), sampling))
        if stream:
            return _Speech(writer, tokens, _Pieces(self._at_once(row), sampling))
        return _SpeechJob(Row(tokens, row), sampling, writer)

    def _streamed(self, row: dict[str, Any]) -> Iterator[Any]:
        """The class's own pieces; its generator begins with the first that is asked for."""
        yield from self._user.stream(row)

    def _at_once(self, row: dict[str, Any]) -> Iterator[Any]:
        """The one piece of a class that has only `forward`."""
        yield from self._outputs([row])


_INPUT_FIELDS = {"embed": "input", "classify": "input", "rerank": "query", "generate": "prompt"}


# ------------------------------------------------------------------------------------------------ the user's class


def _import_class(artifact: str) -> Any:
    """The class that `package.module:Class` names, looked for in the working directory last. Raises LoadError."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, name = artifact.partition(":")
    try:
        with _no_way_out():
            return getattr(importlib.import_module(module), name)
    except Exception as error:
        log_traceback(error)
        raise LoadError(f"{artifact} cannot be imported: {words_of(error)}", final=True) from error


def _task_of(kind: Any, spec: LaunchSpec) -> str:
    """What the class is for: by the config, by itself, or because it streams. Raises LoadError."""
    task = spec.task if spec.task != "auto" else getattr(kind, "task", None)
    if task is None and hasattr(kind, "stream"):
        task = "generate"
    if task not in TASKS:
        allowed = ", ".join(TASKS)
        raise LoadError(f"{spec.artifact}: expected `task` to be one of {allowed}; found {task!r}", final=True)
    if not hasattr(kind, "forward") and not (task == "generate" and hasattr(kind, "stream")):
        method = "forward(rows) or stream(row)" if task == "generate" else "forward(rows)"
        raise LoadError(f"{spec.artifact}: expected a method {method} for task {task}, found none", final=True)
    return str(task)


@contextlib.contextmanager
def _no_way_out() -> Iterator[None]:
    """The user's code may raise, and may not end the thread that calls it."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise UserCodeError(f"the class raised {words_of(error)}") from error


def _plain(value: Any) -> Any:
    """An array or tensor as lists of numbers, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _key_of(data: Any) -> Hashable:
    """A row's key where the class is deterministic: all of it, as something that does not change."""
    if isinstance(data, dict):
        return tuple(data.values())
    return tuple(data) if isinstance(data, list) else str(data)


def _length(data: Any) -> int:
    return max(1, len(data) // CHARACTERS_A_TOKEN if isinstance(data, str) else len(data))


def _prompt_row(prompt: requests.Text, messages: list[dict[str, Any]], sampling: requests.Sampling) -> dict[str, Any]:
    """A row of `generate`: `prompt` (of a chat: its last message), all `messages`, and each field of `Sampling`."""
    return {"prompt": prompt, "messages": messages, **msgspec.structs.asdict(sampling)}


# ------------------------------------------------------------------------------------------------ answers of forward


class _EmbedJob(Job):
    """Outputs are vectors."""

    def __init__(self, asked: requests.EmbeddingsRequest, served: str) -> None:
        self.rows = [Row(_length(one), one) for one in asked.inputs]
        self._asked = asked
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        vectors = [_numbers(output, "an embedding: a list of numbers") for output in outputs]
        tokens = sum(row.tokens for row in self.rows)
        return answers.embeddings_answer(self._asked, vectors, tokens, self._served)


class _ClassifyJob(Job):
    """Outputs map label to probability, or list the probabilities of the class's `labels`."""

    def __init__(self, asked: requests.ClassifyRequest, served: str, labels: Sequence[str] | None) -> None:
        self.rows = [Row(_length(one), one) for one in asked.inputs]
        self._asked = asked
        self._served = served
        self._labels = labels

    def answer(self, outputs: Sequence[Any]) -> bytes:
        plain = [self._classes(output) for output in outputs]
        labels = self._labels_of(plain[0])
        probs = [_numbers(self._in_order(output, labels), "a probability of each label") for output in plain]
        tokens = sum(row.tokens for row in self.rows)
        return answers.classify_answer(self._asked, probs, labels, tokens, self._served)

    @staticmethod
    def _classes(output: Any) -> Any:
        """An output as a dict by label, or as a list."""
        plain = _plain(output)
        if not isinstance(plain, Mapping | list | tuple) or not plain:
            raise UserCodeError(f"expected a probability of each label, at least one; found {plain!r:.100}")
        return {str(label): value for label, value in plain.items()} if isinstance(plain, Mapping) else plain

    def _labels_of(self, output: Any) -> Sequence[str]:
        if isinstance(output, Mapping):
            return list(output)
        return self._labels or [f"LABEL_{index}" for index in range(len(output))]

    @staticmethod
    def _in_order(output: Any, labels: Sequence[str]) -> Any:
        if not isinstance(output, Mapping):
            return output
        if set(output) != set(labels):
            raise UserCodeError(f"expected the labels {sorted(labels)} for every row, found {sorted(output)}")
        return [output[label] for label in labels]


class _RerankJob(Job):
    """Rows are `{"query", "document"}`, outputs one score each."""

    def __init__(self, asked: requests.RerankRequest, served: str) -> None:
        self.rows = [
            Row(_length(asked.query + one), {"query": asked.query, "document": one}) for one in asked.documents
        ]
        self._asked = asked
        self._served = served

    def answer(self, outputs: Sequence[Any]) -> bytes:
        scores = _numbers([_plain(output) for output in outputs], "a score: one number a row")
        tokens = sum(row.tokens for row in self.rows)
        return answers.rerank_answer(self._asked, scores, tokens, self._served)


def _numbers(output: Any, expected: str) -> list[float]:
    values = _plain(output)
    if isinstance(values, list | tuple) and values:
        if not _are_numbers(values):
            values = [_plain(value) for value in values]  # numbers of an array, taken out of it one by one
        if _are_numbers(values):
            return [float(value) for value in values]
    raise UserCodeError(f"expected {expected}; found {values!r:.100}")


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


# ------------------------------------------------------------------------------------------------ generated text


class _Pieces:
    """The text of one answer as it is made: cut at `max_tokens` pieces and before the first stop string.

    count: pieces taken so far, which is what stands for tokens. reason: why it ended; None: it goes on.
    """

    def __init__(self, source: Iterator[Any], sampling: requests.Sampling) -> None:
        self.count = 0
        self.reason: answers.FinishReason | None = None
        self.text = ""
        self._source = source
        self._sampling = sampling
        self._said = 0
        self._holds = max((len(stop) - 1 for stop in sampling.stop), default=0)

    def next(self) -> str:
        """The text of one more piece that may be shown; what could still become a stop string is held back."""
        with _no_way_out():
            piece = next(self._source, None)
        if piece is None:
            self.reason = "stop"
        elif not isinstance(piece, str):
            raise UserCodeError(f"expected a piece of text, found {piece!r:.100}")
        else:
            self.count += 1
            self.text += piece
            self._look_for_end()
        return self._show()

    def close(self) -> None:
        """Nobody reads on: let the generator clean up."""
        if hasattr(self._source, "close"):
            with _no_way_out():
                self._source.close()

    def _look_for_end(self) -> None:
        places = [at for stop in self._sampling.stop if (at := self.text.find(stop, self._said)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.reason = "stop"
        elif self._sampling.max_tokens is not None and self.count >= self._sampling.max_tokens:
            self.reason = "length"

    def _show(self) -> str:
        end = len(self.text) if self.reason is not None else max(self._said, len(self.text) - self._holds)
        shown, self._said = self.text[self._said : end], end
        return shown


class _SpeechJob(Job):
    """A generated answer of a class that has only `forward`, not asked for as a stream: one row, one text."""

    def __init__(self, row: Row, sampling: requests.Sampling, writer: answers.Writer) -> None:
        self.rows = [row]
        self._sampling = sampling
        self._writer = writer

    def answer(self, outputs: Sequence[Any]) -> bytes:
        pieces = _Pieces(iter(outputs), self._sampling)
        while pieces.reason is None:
            pieces.next()
        return self._writer.whole(pieces.text, pieces.reason, answers.Usage.of(self.rows[0].tokens, pieces.count))


class _Speech(Generation):
    """A generated answer that is made piece by piece."""

    def __init__(self, writer: answers.Writer, prompt_tokens: int, pieces: _Pieces) -> None:
        self.tokens = prompt_tokens
        self._writer = writer
        self._pieces = pieces
        self._news: list[bytes] = []
        self._begun = False

    def advance(self) -> None:
        """The next piece. What the class raises ends this answer alone."""
        try:
            self._say(self._pieces.next())
        except BaseException as error:
            self.error = error
            self.done = True

    def close(self) -> None:
        """It ended, or its caller left: the class's generator may clean up."""
        try:
            self._pieces.close()
        except BaseException as error:
            log_traceback(error)

    def take(self) -> bytes | None:
        news = b"".join(self._news)
        self._news.clear()
        return news or None

    def answer(self) -> bytes:
        if self.error is not None:
            raise self.error
        return self._writer.whole(self._pieces.text, self._pieces.reason or "stop", self._usage())

    def _say(self, text: str) -> None:
        if not self._begun:
            self._begun = True
            self._news.append(self._writer.first())
        if text:
            self._news.append(self._writer.piece(text))
        if self._pieces.reason is not None:
            self._news.append(self._writer.last(self._pieces.reason, self._usage()))
            self.done = True

    def _usage(self) -> answers.Usage:
        return answers.Usage.of(self.tokens, self._pieces.count)
