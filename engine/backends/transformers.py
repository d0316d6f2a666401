"""The engine `transformers`: models of the transformers library, one task a file (spec 10).

    load    files to weights on the CPU, on one thread    once a deployment: it may run in a template that is forked
    warm    threads, device, first forward                once a replica, on the thread that runs the forwards
    forward rows of any requests together

`load` never runs a parallel region (spec 5): OpenMP's threads do not survive a fork, and a child of a process that
has them hangs in its first parallel forward. So torch is set to one thread before the first tensor is touched,
transformers loads its weights without its thread pool, and tqdm's watcher thread is never started.

Two encoders stand behind the tasks. Plain BERT on a CPU in float32 runs on `BertEncoder`, a few lines of torch that
need no import of transformers (1.2 s of a cold start instead of 3.1 s), pad nothing and keep weights in the layout
that the matrix product wants. Everything else runs on transformers' own class (`PaddedEncoder`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
import torch
from safetensors import safe_open
from torch.nn import functional

from engine.backends.artifacts import Artifact, read_json, resolve, weights_digest
from engine.backends.base import Backend, Generation, Job, LoadError, RequestError, Row
from engine.messages import Card, LaunchSpec, Route

log = logging.getLogger(__name__)

CPU_SEQS, CPU_TOKENS = 32, 512
"""Limits of a forward on a CPU where none are set."""

GPU_SEQS, GPU_TOKENS = 256, 16384
"""The same on a GPU."""

REPACK_LIMIT_BYTES = 1024 * 1024 * 1024
"""Weights beyond this stay memory-mapped as they are: a second layout of them is not worth the memory."""

DEFAULT_MAX_TOKENS = 512
"""Most tokens of an input where neither the spec nor the model's files say."""

_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


# ---------------------------------------------------------------------------------------------------- encoders


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Some rows of a forward: `rows` are their places in it, `hidden` is (rows, tokens, width).

    mask: (rows, tokens) of 1 and 0 in float32; None where nothing is padding.
    """

    rows: Sequence[int]
    hidden: torch.Tensor
    mask: torch.Tensor | None


class Encoder(Protocol):
    """Token ids to hidden states. `width`: length of one; `vocabulary`: ids are under it."""

    width: int
    vocabulary: int

    def encode(self, rows: Sequence[list[int]]) -> list[Group]:
        """The last hidden states of all rows, each row in one group."""

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""


Linear = tuple[torch.Tensor, torch.Tensor]
"""Bias (out,) and weight (in, out), as `torch.addmm` takes them."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Norm:
    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    query: Linear
    key: Linear
    value: Linear
    attended: Linear
    attended_norm: _Norm
    grown: Linear
    shrunk: Linear
    shrunk_norm: _Norm


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """Rows of one length that lie side by side in the packed tokens, from `start` to `end`."""

    rows: Sequence[int]
    tokens: int
    start: int
    end: int


class BertEncoder:
    """BERT on packed tokens: the rows' tokens lie end to end in one (tokens, width) matrix, and none is padding.

    Linear layers and norms do not know where a row ends, so they run over all tokens at once; attention runs over
    each run of rows of equal length. No mask is ever made. Measured against transformers' BertModel on one thread
    (MiniLM, AVX512): 30 % less time for a single text of 16 to 64 tokens, 5 to 8 % less for batches without
    padding, and what padding would have cost on top.
    """

    def __init__(
        self, config: dict[str, Any], words: torch.Tensor, places: torch.Tensor, norm: _Norm, layers: list[_Layer]
    ) -> None:
        self.width = words.shape[1]
        self.vocabulary = words.shape[0]
        self._heads = int(config["num_attention_heads"])
        self._words = words
        self._places = places
        self._norm = norm
        self._layers = layers

    def encode(self, rows: Sequence[list[int]]) -> list[Group]:
        """See Encoder."""
        spans = list(_spans(rows))
        ids = torch.tensor([token for span in spans for row in span.rows for token in rows[row]])
        hidden = functional.embedding(ids, self._words)
        for span in spans:
            self._unpack(hidden, span).add_(self._places[: span.tokens])
        hidden = self._norm(hidden)
        for layer in self._layers:
            hidden = self._through(layer, hidden, spans)
        return [Group(span.rows, self._unpack(hidden, span), None) for span in spans]

    def to(self, device: torch.device) -> None:
        """This encoder is for the CPU, where it is already."""

    def _through(self, layer: _Layer, hidden: torch.Tensor, spans: Sequence[_Span]) -> torch.Tensor:
        attended = self._attend(layer, hidden, spans)
        hidden = layer.attended_norm(_linear(attended, layer.attended).add_(hidden))
        grown = functional.gelu(_linear(hidden, layer.grown))
        return layer.shrunk_norm(_linear(grown, layer.shrunk).add_(hidden))

    def _attend(self, layer: _Layer, hidden: torch.Tensor, spans: Sequence[_Span]) -> torch.Tensor:
        projected = [_linear(hidden, linear) for linear in (layer.query, layer.key, layer.value)]
        parts = []
        for span in spans:
            query, key, value = (self._by_head(self._unpack(one, span)) for one in projected)
            mixed = functional.scaled_dot_product_attention(query, key, value)
            parts.append(mixed.transpose(1, 2).reshape(span.end - span.start, self.width))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, tokens, width) to (rows, heads, tokens, width of a head)."""
        return x.view(*x.shape[:2], self._heads, -1).transpose(1, 2)

    def _unpack(self, packed: torch.Tensor, span: _Span) -> torch.Tensor:
        """A view of a span's part of the packed tokens, as (rows, tokens, width)."""
        return packed[span.start : span.end].view(len(span.rows), span.tokens, self.width)


def _linear(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    return torch.addmm(linear[0], x, linear[1])


def _spans(rows: Sequence[list[int]]) -> Iterator[_Span]:
    """The rows in order of length, and where each run of equal ones will lie."""
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    start = 0
    for tokens, same in itertools.groupby(order, key=lambda row: len(rows[row])):
        places = list(same)
        end = start + tokens * len(places)
        yield _Span(places, tokens, start, end)
        start = end


def is_plain_bert(config: dict[str, Any]) -> bool:
    """Whether `BertEncoder` computes what transformers computes for this config."""
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder")
        and not config.get("add_cross_attention")
        and not config.get("quantization_config")
        and not config.get("auto_map")
        and int(config.get("hidden_size", 0)) % int(config.get("num_attention_heads", 1)) == 0
    )


def load_bert(folder: Path, config: dict[str, Any]) -> BertEncoder | None:
    """Plain BERT from its safetensors file, in float32; None where the file is not what plain BERT has.

    The word embeddings stay memory-mapped: a forward touches only the rows that it needs. The weights of linear
    layers are copied, turned once into the layout (in, out) that the matrix product reads without reordering.
    """
    file = folder / "model.safetensors"
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as handle:
            weights = _BertWeights(handle, float(config.get("layer_norm_eps", 1e-12)))
            layers = [weights.layer(index) for index in range(int(config["num_hidden_layers"]))]
            places, norm = weights.places(), weights.norm("embeddings.LayerNorm")
        with safe_open(file, framework="pt") as handle:  # a mapping of its own: the first one goes, with its pages
            words = _BertWeights(handle, 0.0).tensor("embeddings.word_embeddings.weight")
    except KeyError as error:
        log.warning("%s has no %s: transformers' own class is used", file, error)
        return None
    return BertEncoder(config, words, places, norm, layers)


class _BertWeights:
    """Names and layouts of a BERT checkpoint, with or without the `bert.` of a model that had a head."""

    def __init__(self, handle: Any, epsilon: float) -> None:
        self._handle = handle
        self._names = frozenset(handle.keys())
        self._prefix = "bert." if "bert.embeddings.word_embeddings.weight" in self._names else ""
        self._epsilon = epsilon

    def tensor(self, name: str) -> torch.Tensor:
        """A weight in float32, memory-mapped where it is stored so. Raises KeyError."""
        full = self._prefix + name
        if full not in self._names:  # names from before 2019
            full = full.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        if full not in self._names:
            raise KeyError(name)
        found: torch.Tensor = self._handle.get_tensor(full)
        return found.float()

    def places(self) -> torch.Tensor:
        """Position embeddings with the embedding of the first (and only) segment added: (positions, width)."""
        segments = self.tensor("embeddings.token_type_embeddings.weight")
        return self.tensor("embeddings.position_embeddings.weight") + segments[0]

    def norm(self, name: str) -> _Norm:
        weight, bias = self.tensor(f"{name}.weight").clone(), self.tensor(f"{name}.bias").clone()
        return _Norm(weight, bias, self._epsilon)

    def linear(self, name: str) -> Linear:
        bias, weight = self.tensor(f"{name}.bias").clone(), self.tensor(f"{name}.weight")
        return bias, weight.t().contiguous()

    def layer(self, index: int) -> _Layer:
        at = f"encoder.layer.{index}"
        return _Layer(
            query=self.linear(f"{at}.attention.self.query"),
            key=self.linear(f"{at}.attention.self.key"),
            value=self.linear(f"{at}.attention.self.value"),
            attended=self.linear(f"{at}.attention.output.dense"),
            attended_norm=self.norm(f"{at}.attention.output.LayerNorm"),
            grown=self.linear(f"{at}.intermediate.dense"),
            shrunk=self.linear(f"{at}.output.dense"),
            shrunk_norm=self.norm(f"{at}.output.LayerNorm"),
        )


class PaddedEncoder:
    """Any encoder of transformers: rows are padded at their end to the longest and masked."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device = torch.device("cpu")
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        self.width = int(model.config.hidden_size)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])

    def encode(self, rows: Sequence[list[int]]) -> list[Group]:
        """See Encoder."""
        longest = max(map(len, rows))
        ids = np.full((len(rows), longest), self._padding, dtype=np.int64)
        mask = np.zeros((len(rows), longest), dtype=np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
            mask[place, : len(row)] = 1
        masked = torch.from_numpy(mask).to(self._device)
        inputs = torch.from_numpy(ids).to(self._device)
        hidden = self._model(input_ids=inputs, attention_mask=masked).last_hidden_state
        padded = bool((mask == 0).any())
        return [Group(range(len(rows)), hidden, masked.float() if padded else None)]

    def to(self, device: torch.device) -> None:
        """See Encoder."""
        self._model.to(device)
        self._device = device


def load_padded(folder: Path, dtype: torch.dtype, *, trust_remote_code: bool) -> PaddedEncoder:
    """A model through transformers, on the CPU. Raises LoadError where the checkpoint lacks weights.

    Attention is sdpa: as fast as eager for short inputs on a CPU, a tenth to a third faster from 128 tokens on, and
    what GPUs want. A model that has no sdpa gets eager from transformers itself.
    """
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # weights one after the other: no thread may exist before a fork
    with _no_collection():
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
        from transformers.utils import logging as library

    library.disable_progress_bar()  # tqdm starts a watcher thread
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    of_text = AutoModelForTextEncoding if getattr(config, "is_encoder_decoder", False) else AutoModel
    model, info = of_text.from_pretrained(
        folder, dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True
    )
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
    if missing:
        raise LoadError(f"{folder}: the checkpoint lacks {len(missing)} weights, the first is {missing[0]}", final=True)
    model.eval()
    model.config.use_cache = False
    return PaddedEncoder(model)


def repack(model: torch.nn.Module) -> None:
    """Turn the weights of a CPU model's linear layers into the layout that the matrix product wants.

    The same numbers under the same shape, stored column by column: 10 to 20 % less time for forwards of 24 to 128
    tokens (MiniLM, one thread, AVX512), nothing lost elsewhere. Costs a copy of the weights, so not for large ones.
    """
    layers = [module for module in model.modules() if type(module) is torch.nn.Linear]
    if sum(layer.weight.nbytes for layer in layers) > REPACK_LIMIT_BYTES:
        return
    shared = {id(weight) for weight in _shared_weights(model)}
    for layer in layers:
        if id(layer.weight) not in shared:
            turned = layer.weight.detach().t().contiguous().t()
            layer.weight = torch.nn.Parameter(turned, requires_grad=False)
