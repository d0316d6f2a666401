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
from engine.backends.tokenisers import key_of, load_tokenizer

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
    """Texts and pairs to rows of at most `limit` tokens; of a pair the longer text is cut."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, limit: int) -> None:
        self.limit = limit
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length=limit)

    def rows(self, pairs: Sequence[Pair], param: str) -> list[Row]:
        """A row a pair. Raises RequestError."""
        rows = []
        for index, (text, other) in enumerate(pairs):
            read = self._tokenizer.encode(text, other)
            if not read.ids:
                raise RequestError(f"{param}[{index}]: no tokens in this text", param=f"{param}[{index}]")
            rows.append(Row(len(read.ids), (read.ids, read.type_ids), (key_of(read.ids), key_of(read.type_ids))))
        return rows


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
