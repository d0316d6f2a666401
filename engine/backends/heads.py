"""Models with a head for a whole text or a pair of texts: what `classify` and `rerank` share.

They run on transformers' own class, rows padded at their end to the longest and masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tokenizers
import torch

from engine.backends.base import LoadError, RequestError, Row
from engine.backends.encoders import padded, repack
from engine.backends.library import be_single_threaded, calm
from engine.backends.tokenisers import beginnings, key_of, load_tokenizer, splits_words

if TYPE_CHECKING:
    from engine.backends.checkpoint import Checkpoint

Pair = tuple[str, str | None]
"""A text, or two that are read as one."""


class SequenceHead:
    """A sequence-classification model. `labels`: their names, in the order of its logits.

    with_kinds: it is told of each token which of two texts it is of, as its tokeniser's `model_input_names` say.
    """

    def __init__(self, model: Any, *, with_kinds: bool) -> None:
        config = model.config
        self.labels = [str(config.id2label[index]) for index in range(config.num_labels)]
        self.problem_type: str | None = config.problem_type
        self._model = model
        self._device = torch.device("cpu")
        self._padding = int(config.pad_token_id or 0)
        self._with_kinds = with_kinds

    def logits(self, rows: Sequence[Row]) -> torch.Tensor:
        """(rows, labels) in float32, on the CPU. A row's data: its token ids, and for each which text it is of."""
        ids = [row.data[0] for row in rows]
        inputs = {
            "input_ids": padded(ids, self._padding),
            "attention_mask": padded([[1] * len(row) for row in ids], 0),
        }
        if self._with_kinds:
            inputs["token_type_ids"] = padded([row.data[1] for row in rows], 0)
        read: torch.Tensor = self._model(**{name: one.to(self._device) for name, one in inputs.items()}).logits
        return read.float().cpu()

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""
        self._model.to(device)
        self._device = device


class HeadTokeniser:
    """Texts and pairs to rows of at most `limit` tokens; of a pair the longer text is cut.

    Special tokens and cuts are made here and not by the tokeniser, to the same ids: what it cuts off a pair it keeps,
    in all combinations of the two texts. 40 KB on both sides took it 4 s, and ten times as much takes 100 times that.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, limit: int) -> None:
        self.limit = limit
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._by_word = splits_words(tokenizer)
        self._alone, self._paired = _Frame(tokenizer.encode("a")), _Frame(tokenizer.encode("a", "a"))

    def rows(self, pairs: Sequence[Pair], param: str) -> list[Row]:
        """A row a pair. Raises RequestError."""
        firsts = {text: self._ids(text) for text, _ in pairs}  # a query is the first text of all its pairs
        rows = []
        for index, (text, other) in enumerate(pairs):
            ids, kinds = self._framed(firsts[text], other)
            if not ids:
                raise RequestError(f"{param}[{index}]: no tokens in this text", param=f"{param}[{index}]")
            rows.append(Row(len(ids), (ids, kinds), (key_of(ids), key_of(kinds))))
        return rows

    def _framed(self, first: list[int], other: str | None) -> tuple[list[int], list[int]]:
        """The token ids of a text and perhaps another one, as the model reads them, and of each which text it is of."""
        if other is None:
            return self._alone.around([first[: max(0, self.limit - self._alone.special)]])
        second = self._ids(other)
        room = max(0, self.limit - self._paired.special)
        one, two = longest_cut(len(first), len(second), room)
        return self._paired.around([first[:one], second[:two]])

    def _ids(self, text: str) -> list[int]:
        """The tokens of a text: all, or `limit` at least where the rest need not be read."""
        ids: list[int] = []
        for beginning in beginnings(text, self.limit) if self._by_word else (text,):
            ids = self._tokenizer.encode(beginning, add_special_tokens=False).ids
            if len(ids) >= self.limit:
                break
        return ids


class _Frame:
    """Where texts stand among the special tokens of a model. probe: a text or a pair as its tokeniser puts it."""

    def __init__(self, probe: tokenizers.Encoding) -> None:
        self._parts: list[tuple[int | None, int, int]] = []
        for token, kind, text in zip(probe.ids, probe.type_ids, probe.sequence_ids, strict=True):
            if text is None or not self._parts or self._parts[-1][0] != text:
                self._parts.append((text, token, kind))
        self.special = sum(text is None for text, _, _ in self._parts)

    def around(self, texts: Sequence[list[int]]) -> tuple[list[int], list[int]]:
        """The ids of these texts with the special tokens, and the kind of each."""
        ids: list[int] = []
        kinds: list[int] = []
        for text, token, kind in self._parts:
            part = [token] if text is None else texts[text]
            ids += part
            kinds += [kind] * len(part)
        return ids, kinds


def longest_cut(first: int, second: int, room: int) -> tuple[int, int]:
    """How much is left of two texts where the longer one is cut until both fit, as tokenisers do it (longest first)."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)


def load_head(checkpoint: Checkpoint) -> tuple[SequenceHead, HeadTokeniser]:
    """The model of a checkpoint and its tokeniser. Raises LoadError."""
    with calm():
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

    be_single_threaded()
    folder, trust = checkpoint.folder, checkpoint.spec.trust_remote_code
    model, info = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=checkpoint.dtype, trust_remote_code=trust, output_loading_info=True
    )
    if missing := sorted(info["missing_keys"]):
        raise LoadError(f"{folder}: the checkpoint lacks {len(missing)} weights, the first is {missing[0]}", final=True)
    model.eval()
    model.config.use_cache = False
    if checkpoint.is_plain_cpu:
        repack(model)
    inputs = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust).model_input_names
    tokeniser = HeadTokeniser(load_tokenizer(folder, trust_remote_code=trust), checkpoint.max_tokens(folder, None))
    return SequenceHead(model, with_kinds="token_type_ids" in inputs), tokeniser
