"""The task `generate`: completions and chats of a causal language model, many at once, token by token (spec 10).

Each step is one forward over all sequences under way: one token of each that is being written, and pieces of the
prompts that are still being read, oldest first. A long prompt is read in pieces, so it delays the others by a
forward of bounded length and no more. A sequence that is done or was left is gone from the next step.

Rules that no file gives:
- A prompt that leaves no room for an answer is refused (400); `max_tokens` beyond the room is cut to it, and the answer
  then ends with `finish_reason: length`. Without `max_tokens` a completion has 16 tokens, as at OpenAI and vLLM, and a
  chat as many as there is room for.
- The memory of all texts under way is bounded. Where it does not suffice, those that came last give theirs back and
  wait, first come first served; a text that goes on reads again what it had, and its tokens stay the same.
- `usage.completion_tokens` counts the tokens that were computed, the end-of-text one included, as vLLM does.
- A stop string and what follows it are not part of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tokenizers
import torch

from engine.backends import answers, requests
from engine.backends.artifacts import read_json
from engine.backends.base import Generation, RequestError, Row
from engine.backends.decoders import ROOM, Memory, PackedDecoder, Part, capacity, load_decoder
from engine.backends.detokenise import Detokeniser, StopWatch
from engine.backends.gguf_files import as_checkpoint, find_gguf
from engine.backends.library import calm
from engine.backends.sampling import Sampler, pick_all
from engine.backends.tokenisers import load_tokenizer
from engine.calibration import power_of_two
from engine.messages import Route

if TYPE_CHECKING:
    from engine.backends.checkpoint import Checkpoint

COMPLETION_TOKENS = 16
"""Tokens of a completion that does not say how many it wants."""

CPU_PIECE, GPU_PIECE = 128, 2048
"""Most tokens of prompts in a step in which others are being written. 128 tokens take SmolLM2-135M a third of a second
on one thread, where a step of eight sequences takes 0.15 s; smaller pieces would read long prompts twice as slowly."""


class TextGeneration(Generation):
    """One prompt and what follows it. `tokens`: of the prompt; `most`: of the answer."""

    def __init__(
        self,
        prompt: Sequence[int],
        most: int,
        sampling: requests.Sampling,
        writer: answers.Writer,
        detokeniser: Detokeniser,
        endings: frozenset[int],
    ) -> None:
        self.tokens = len(prompt)
        self.memory = Memory()
        self.sampler = Sampler(sampling)
        self.pending: Sequence[int] = prompt
        self._all = list(prompt)
        self._most = most
        self._written = 0
        self._writer = writer
        self._detokeniser = detokeniser
        self._stop = StopWatch(sampling.stop)
        self._endings = endings
        self._pieces: list[str] = []
        self._news: list[bytes] = []
        self._reason: answers.FinishReason = "length"

    @property
    def reads(self) -> bool:
        """Whether its prompt is still being read, or after `park` all that it had."""
        return not self._written or len(self.pending) > 1

    @property
    def room(self) -> int:
        """Tokens that its memory needs room for, once it holds all that there is of it."""
        return capacity(len(self._all))

    def park(self) -> None:
        """Give its memory back; all of its tokens are to be read again."""
        self.memory = Memory()
        self.pending = tuple(self._all)

    def write(self, token: int) -> None:
        """The next token of the answer."""
        if not self._written:
            self._news.append(self._writer.first())
        self._written += 1
        self._all.append(token)
        self.pending = (token,)
        if token in self._endings:
            self._end("stop", self._stop.push(self._detokeniser.flush()))
            return
        self._say(self._stop.push(self._detokeniser.push(token)))
        if self._stop.found:
            self._end("stop", "")
        elif self._written >= self._most:
            self._end("length", self._stop.push(self._detokeniser.flush()))

    def take(self) -> bytes | None:
        """See Generation."""
        news = b"".join(self._news)
        self._news.clear()
        return news or None

    def answer(self) -> bytes:
        """See Generation."""
        return self._writer.whole("".join(self._pieces), self._reason, self._usage())

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._news.append(self._writer.piece(text))

    def _end(self, reason: answers.FinishReason, rest: str) -> None:
        """`rest`: what the detokeniser still had; a stop string in it ends the answer after all."""
        self._say(rest)
        if self._stop.found:
            reason = "stop"
        else:
            self._say(self._stop.flush())
        self.done = True
        self._reason = reason
        self._news.append(self._writer.last(reason, self._usage()))

    def _usage(self) -> answers.Usage:
        return answers.Usage.of(self.tokens, self._written)


class GenerateTask:
    """Completions and chats of one model. `endings`: the tokens that end a text."""

    name = "generate"
    routes = frozenset({Route.COMPLETIONS, Route.CHAT})
    dimensions = None
    normalised = False
    scoring = None

    def __init__(
        self,
        decoder: PackedDecoder,
        tokenizer: tokenizers.Tokenizer,
        chats: Chats,
        endings: frozenset[int],
        max_model_len: int,
        served: str,
    ) -> None:
        self.max_model_len = max_model_len
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._chats = chats
        self._endings = endings
        self._served = served
        self._piece = CPU_PIECE
        self._room: int | None = None
        self._longest = max(map(len, tokenizer.get_vocab()), default=1)

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""
        self._decoder.to(device)
        self._piece = CPU_PIECE if device.type == "cpu" else GPU_PIECE

    def prepare(self, route: Route, body: bytes, stream: bool) -> Generation:
        """Read and tokenise a request. Raises RequestError."""
        if route is Route.CHAT:
            chat = requests.parse_chat(body)
            ids = self._ids(self._chats.text(chat.messages), "messages", special=False)
            writer: answers.Writer = answers.ChatWriter(chat.model or self._served, include_usage=chat.include_usage)
            return self._generation(ids, chat.sampling, self.max_model_len, writer, "messages")
        asked = requests.parse_completion(body)
        requests.require_vocabulary([asked.prompt], self._decoder.vocabulary, "prompt")
        ids = self._ids(asked.prompt, "prompt", special=True) if isinstance(asked.prompt, str) else asked.prompt
        writer = answers.CompletionWriter(asked.model or self._served, include_usage=asked.include_usage)
        return self._generation(ids, asked.sampling, COMPLETION_TOKENS, writer, "prompt")

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See Backend; this task has generations only."""
        raise NotImplementedError

    def step(self, generations: Sequence[Generation], budget: int) -> None:
        """See Backend. budget: most tokens of a forward, as far as prompts are concerned."""
        running = [one for one in generations if isinstance(one, TextGeneration) and not one.done]
        running = within(running, self._room)
        chosen = plan(running, budget, self._piece)
        if not chosen:
            return
        logits = self._decoder.forward([Part(one.memory, one.pending[:count]) for one, count in chosen])
        finite: list[bool] = logits.isfinite().all(-1).tolist()
        ready = []
        for place, (one, count) in enumerate(chosen):
            one.pending = one.pending[count:]
            if not finite[place]:
                one.error = answers.NotFiniteError("the model gave NaN or infinity")
            elif not one.pending:
                ready.append(place)
        if not ready:
            return
        writing = [chosen[place][0] for place in ready]
        for one, token in zip(writing, pick_all([one.sampler for one in writing], logits[ready]), strict=True):
            one.write(token)

    def release(self, generation: Generation) -> None:
        """See Backend: its keys and values."""
        assert isinstance(generation, TextGeneration)
        generation.memory = Memory()

    def bound(self, memory_bytes: int) -> int:
        """See Generating. A text that would not fit alone is refused, so the longest may become shorter by this."""
        self._room = max(memory_bytes // self._decoder.token_bytes, ROOM)
        longest = power_of_two(self._room)
        if longest < self.max_model_len:
            print(f"{memory_bytes >> 20} MiB for keys and values: texts of {longest} tokens at most", flush=True)
            self.max_model_len = longest
        return self._room

    def golden(self) -> Sequence[bytes]:
        """One greedy token: a step reads all weights, and is part of every start; `require_sound` looks deeper."""
        return [msgspec.json.encode({"prompt": [1, 2], "max_tokens": 1, "temperature": 0})]

    def _generation(
        self, ids: Sequence[int], sampling: requests.Sampling, default: int, writer: answers.Writer, param: str
    ) -> TextGeneration:
        room = self.max_model_len - len(ids)
        if room < 1:
            raise _too_long(self.max_model_len, f"found {len(ids)}", param)
        most = min(sampling.max_tokens or default, room)
        return TextGeneration(ids, most, sampling, writer, Detokeniser(self._tokenizer, ids), self._endings)

    def _ids(self, text: str, param: str, *, special: bool) -> list[int]:
        """The tokens of a text. One that cannot fit is refused before a minute is spent on its tokens."""
        if len(text) > self.max_model_len * self._longest:
            raise _too_long(self.max_model_len, f"found {len(text)} characters", param)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        if not ids:
            raise RequestError(f"{param}: no tokens in this text", param=param)
        return ids


def _too_long(limit: int, found: str, param: str) -> RequestError:
    message = f"{param}: expected at most {limit - 1} tokens ({limit} with the answer's first), {found}"
    return RequestError(message, param=param)


def within(running: Sequence[TextGeneration], room: int | None) -> list[TextGeneration]:
    """Those whose memory fits into room for so many tokens, oldest first; the others are parked. The first always fits.

    None is passed over for a smaller one that came later, so each gets its turn.
    """
    if room is None:
        return list(running)
    chosen: list[TextGeneration] = []
    for one in running:
        room -= one.room
        if chosen and room < 0:
            break
        chosen.append(one)
    for one in running[len(chosen) :]:
        if one.memory.tokens:
            one.park()
    return chosen


def plan(running: Sequence[TextGeneration], budget: int, piece: int) -> list[tuple[TextGeneration, int]]:
    """Who takes part in the next forward, and with how many tokens.

    All that are being written, with one token each. Prompts that are being read share what is left of `budget`, oldest
    first; where others are being written, no more than `piece`.
    """
    writing = [(one, 1) for one in running if not one.reads]
    left = budget - len(writing)
    if writing:
        left = min(left, piece)
    left = max(left, 1)
    reading = []
    for one in running:
        if one.reads and left > 0:
            count = min(len(one.pending), left)
            reading.append((one, count))
            left -= count
    return writing + reading


class Chats:
    """A model's own chat template. It is Jinja, run in transformers' sandbox."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, messages: Sequence[requests.ChatMessage]) -> str:
        """The prompt of a conversation, up to where the assistant speaks. Raises RequestError."""
        if not self._tokenizer.chat_template:
            raise RequestError("this model has no chat template; use /v1/completions", param="messages")
        from jinja2 import TemplateError

        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:  # what a template raises about roles and their order
            raise RequestError(f"messages: {error}", param="messages") from error
        return text


def load(checkpoint: Checkpoint) -> GenerateTask:
    """The task of a checkpoint, its weights on the CPU. Raises LoadError."""
    file = find_gguf(checkpoint.folder)
    folder = checkpoint.folder if file is None else as_checkpoint(file, checkpoint.dtype)
    trust = checkpoint.spec.trust_remote_code
    decoder = load_decoder(folder, checkpoint.dtype, trust_remote_code=trust)
    with calm():
        from transformers import AutoTokenizer
    chats = Chats(AutoTokenizer.from_pretrained(folder, trust_remote_code=trust))
    tokenizer = load_tokenizer(folder, trust_remote_code=trust)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    limit = checkpoint.max_tokens(folder, None)
    return GenerateTask(decoder, tokenizer, chats, _endings(folder), limit, checkpoint.served)


def _endings(folder: Path) -> frozenset[int]:
    """The tokens that end a text, as the model's files say: generation_config.json before config.json."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists() and (ids := read_json(folder / name).get("eos_token_id")) is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()
