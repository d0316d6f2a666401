"""Decoders: tokens of any sequences to the logits of what comes next, in one forward without padding.

The tokens of all sequences lie end to end in one row: one token of each that is being written, a piece of each prompt
that is being read. Linear layers and norms do not know where a sequence ends; attention runs sequence by sequence
over its own keys and values (`Memory`). So sequences join and leave between forwards, nothing is padded or masked
because of a neighbour, and attention computes the same for a sequence whoever is beside it.

transformers' own continuous batching (5.x) does the same over pages of a shared cache, and was not taken: it owns a
thread and a queue where a step is wanted here, samples all requests with one `GenerationConfig`, and sizes its pages
by the free memory of a GPU. What it builds on is used here: any model that takes its attention from transformers'
interface runs on ours. Whether a model really does is tested where it is loaded (`PackedDecoder.require_sound`): a
model with another kind of memory (recurrent, ALiBi, sinks, soft caps) is refused, never served wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from engine.backends.base import LoadError
from engine.backends.library import be_single_threaded, calm

INTERFACE = "stoker_packed"
"""The name of `_attend` in transformers' registry of attention functions."""

ROOM = 64
"""Tokens that a sequence's memory has room for at first; it doubles when that is used up."""

_NOT_BUILT = ("softcap", "s_aux", "position_bias", "head_mask")
"""What some models ask of their attention and this one does not do."""

SOUND = 2e-3
"""How far the logits of a packed forward may be from the plain ones, as a share of the largest."""


class Memory:
    """Keys and values of one sequence, layer by layer, for `tokens` tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """What it holds, in bytes."""
        return sum(key.nbytes + value.nbytes for key, value in self._layers.values())

    def extend(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of a layer, (heads, tokens, width), with the new ones at their end."""
        end = self.tokens + key.shape[1]
        kept = self._layers.get(layer)
        if kept is None or kept[0].shape[1] < end:
            kept = self._layers[layer] = (_grown(kept, 0, key, end), _grown(kept, 1, value, end))
        keys, values = kept
        keys[:, self.tokens : end] = key
        values[:, self.tokens : end] = value
        return keys[:, :end], values[:, :end]


def capacity(tokens: int) -> int:
    """Tokens that a memory has room for when it holds so many."""
    return max(ROOM, 1 << (tokens - 1).bit_length())


def _grown(kept: tuple[torch.Tensor, torch.Tensor] | None, which: int, like: torch.Tensor, end: int) -> torch.Tensor:
    old = None if kept is None else kept[which]
    grown = like.new_empty((like.shape[0], capacity(end), like.shape[2]))
    if old is not None:
        grown[:, : old.shape[1]] = old
    return grown


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """The next tokens of one sequence: at least one."""

    memory: Memory
    tokens: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """Where a part lies in the packed tokens. `mask`: (tokens, all tokens) for a piece with others before it."""

    memory: Memory
    start: int
    end: int
    mask: torch.Tensor | None


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    spans: Sequence[_Span] = (),
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: (1, heads, tokens, width) each, to (1, tokens, heads, width)."""
    if unknown := [name for name in _NOT_BUILT if more.get(name) is not None]:
        raise ValueError(f"attention with {', '.join(unknown)}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    mixed = []
    for span in spans:
        piece = slice(span.start, span.end)
        keys, values = span.memory.extend(layer, key[0, :, piece], value[0, :, piece])
        mixed.append(_mix(query[:, :, piece], keys, values, span.mask, scaling, sliding_window))
    return (mixed[0] if len(mixed) == 1 else torch.cat(mixed, 1)), None


def _mix(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """One sequence: query (1, heads, tokens, width) over keys (fewer heads, all tokens, width)."""
    tokens, every = query.shape[2], keys.shape[1]
    if tokens == 1:
        if window is not None and every > window:
            keys, values = keys[:, -window:], values[:, -window:]
        grouped = query.view(1, keys.shape[0], -1, query.shape[3])  # the heads that share keys, as rows of one product
        mixed = functional.scaled_dot_product_attention(grouped, keys[None], values[None], scale=scaling)
        return mixed.reshape(1, 1, query.shape[1], -1)
    if window is not None and every > window:
        mask = _causal(tokens, every, keys.device).triu(every - tokens - window + 1)
    shared = query.shape[1] != keys.shape[0]
    mixed = functional.scaled_dot_product_attention(
        query, keys[None], values[None], mask, is_causal=mask is None, scale=scaling, enable_gqa=shared
    )
    return mixed.transpose(1, 2)


def _causal(tokens: int, every: int, device: torch.device) -> torch.Tensor:
    """Which of all tokens each of the last `tokens` may look at: itself and what is before it."""
    return torch.ones((tokens, every), dtype=torch.bool, device=device).tril(every - tokens)


class PackedDecoder:
    """A causal language model of transformers on packed tokens. `vocabulary`: ids are under it.

    token_bytes: keys and values of one token, once `require_sound` has seen some.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = torch.device("cpu")
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self.token_bytes = 0

    def forward(self, parts: Sequence[Part]) -> torch.Tensor:
        """The logits after the last token of each part, (parts, vocabulary) in float32; memories grow by it."""
        spans: list[_Span] = []
        tokens: list[int] = []
        places: list[int] = []
        for part in parts:
            before, new = part.memory.tokens, len(part.tokens)
            mask = _causal(new, before + new, self._device) if new > 1 and before else None
            spans.append(_Span(part.memory, len(tokens), len(tokens) + new, mask))
            tokens += part.tokens
            places += range(before, before + new)
        last = torch.tensor([span.end - 1 for span in spans], device=self._device)
        with torch.inference_mode():
            logits = self._model(
                input_ids=torch.tensor([tokens], device=self._device),
                position_ids=torch.tensor([places], device=self._device),
                logits_to_keep=last,
                use_cache=False,
                spans=spans,
            ).logits[0]
        for part in parts:
            part.memory.tokens += len(part.tokens)
        read: torch.Tensor = logits.float()
        return read

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""
        if device != self._device:
            self._model.to(device)
            self._device = device

    def require_sound(self, where: Path) -> None:
        """Refuse a model that packed tokens are not the same for. Raises LoadError."""
        tokens = [index % self.vocabulary for index in range(3, 12)]
        one, other = Memory(), Memory()
        try:
            self.forward([Part(one, tokens[:4]), Part(other, tokens[:2])])
            self.forward([Part(other, tokens[2:5]), Part(one, tokens[4:8])])
            packed = self.forward([Part(one, tokens[8:]), Part(other, tokens[5:])])
            plain = self._plain(tokens)
        except (TypeError, ValueError, AttributeError, RuntimeError, KeyError) as error:
            raise self._refusal(where, f"{type(error).__name__}: {error}") from error
        self.token_bytes = max(1, one.nbytes // capacity(one.tokens))
        difference = float((packed - plain).abs().max() / plain.abs().max())
        if not difference <= SOUND:
            raise self._refusal(where, f"packed tokens change its logits by {difference:.2g}")

    def _plain(self, tokens: list[int]) -> torch.Tensor:
        """The logits after these tokens as transformers computes them by itself."""
        self._model.set_attn_implementation("eager")
        try:
            with torch.inference_mode():
                logits: torch.Tensor = self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1:]
                return logits.float()
        finally:
            self._model.set_attn_implementation(INTERFACE)

    def _refusal(self, where: Path, why: str) -> LoadError:
        kind = type(self._model).__name__
        return LoadError(f"{where}: {kind} cannot be served by this engine ({why}); see engine: command", final=True)


def load_decoder(folder: Path, dtype: torch.dtype, *, trust_remote_code: bool) -> PackedDecoder:
    """The causal language model in a folder, on the CPU, its weights mapped from the file. Raises LoadError."""
    with calm():
        from transformers import AttentionInterface, AutoModelForCausalLM

    be_single_threaded()
    AttentionInterface.register(INTERFACE, _attend)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        attn_implementation=INTERFACE,
        output_loading_info=True,
    )
    if missing := sorted(info["missing_keys"]):
        raise LoadError(f"{folder}: the checkpoint lacks {len(missing)} weights, the first is {missing[0]}", final=True)
    model.eval()
    decoder = PackedDecoder(model)
    decoder.require_sound(folder)
    return decoder
