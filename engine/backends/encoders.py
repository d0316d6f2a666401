"""Encoders: token ids to hidden states, for every task that reads a text whole.

Two stand behind the tasks. Plain BERT on a CPU runs on `BertEncoder`, a few lines of torch that need no import of
transformers (a cold start of 1.8 s and 300 MB instead of 5.3 s and 460 MB), pad nothing and keep weights in the layout
that the matrix product wants. Everything else runs on transformers' own class (`PaddedEncoder`).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from torch.nn import functional

from engine.backends.base import LoadError
from engine.backends.library import be_single_threaded, calm

log = logging.getLogger(__name__)

REPACK_LIMIT_BYTES = 1024 * 1024 * 1024
"""Weights beyond this stay memory-mapped as they are: a second layout of them is not worth the memory."""


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


class _Product(Protocol):
    """A linear layer over (tokens, in)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, out)."""

    def to(self, device: torch.device) -> _Product:
        """The same on a device."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Linear:
    """Bias (out,) and weight (in, out), as `torch.addmm` takes them."""

    bias: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def of(cls, bias: torch.Tensor, weight: torch.Tensor) -> _Linear:
        """weight: (out, in)."""
        return cls(bias, weight.t().contiguous())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)

    def to(self, device: torch.device) -> _Linear:
        return _Linear(self.bias.to(device), self.weight.to(device))


@dataclasses.dataclass(frozen=True, slots=True)
class _PackedLinear:
    """A linear layer whose weight MKL has packed once, instead of in every product.

    Under MKL's strict mode its bits are `_Linear`'s. GFLOP/s on one thread with AVX512 and weights that are in the
    cache, 163 being the most that was seen: 110 to 127 instead of 52 to 75 for 8 tokens, 138 to 153 instead of 102
    to 128 for 32, 153 to 159 instead of 140 to 153 for 128.

    packed: MKL's own form, the only copy that is kept. shape: a tensor of the shape (out, in) without numbers, as
    the operator wants to be told the sizes.
    """

    bias: torch.Tensor
    packed: torch.Tensor
    shape: torch.Tensor

    @classmethod
    def of(cls, bias: torch.Tensor, weight: torch.Tensor) -> _PackedLinear:
        """weight: (out, in)."""
        packed = torch.ops.mkl._mkl_reorder_linear_weight.default(weight, _PACKED_FOR)
        return cls(bias, packed, weight.new_zeros(1).expand(weight.shape))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # The last argument says that the weight was packed for as many tokens. It was packed for any: see `can_pack`.
        product: torch.Tensor = torch.ops.mkl._mkl_linear.default(x, self.packed, self.shape, self.bias, x.shape[0])
        return product

    def to(self, device: torch.device) -> _Linear:
        return _Linear(self.bias.to(device), self.unpacked().to(device))

    def unpacked(self) -> torch.Tensor:
        """The weight as (in, out), to the bit: its product with the identity."""
        zero = dataclasses.replace(self, bias=torch.zeros_like(self.bias))
        return zero(torch.eye(self.shape.shape[1]))


_ProductOf = Callable[[torch.Tensor, torch.Tensor], _Product]
"""A linear layer of a bias (out,) and a weight (out, in)."""

_PACKED_FOR = 256
"""Tokens that the packing routine is told. MKL's form is the same for any number."""


def can_pack() -> bool:
    """Whether this torch can pack weights with MKL, and a weight so packed serves any number of tokens.

    The operators are those of torch's own compiler, not of its public interface, and MKL's manual does not promise
    that the number of tokens may change. So both are tried at each load: about a millisecond.
    """
    if not hasattr(torch.ops.mkl, "_mkl_linear"):
        return False
    weight = torch.sin(torch.arange(96.0 * 80)).view(96, 80)
    bias = torch.cos(torch.arange(96.0))
    try:
        packed = _PackedLinear.of(bias, weight)
        for tokens in (1, 7, 64, 300):
            x = torch.sin(torch.arange(80.0 * tokens)).view(tokens, 80)
            if not torch.allclose(packed(x), functional.linear(x, weight, bias), atol=1e-4):
                raise RuntimeError(f"the product for {tokens} tokens is wrong")
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        log.warning("MKL's packed products are not used: %s", error)
        return False
    return True


def _product_of(dtype: torch.dtype) -> _ProductOf:
    """The quickest linear layer that there is here for weights of this kind."""
    return _PackedLinear.of if dtype == torch.float32 and can_pack() else _Linear.of


@dataclasses.dataclass(frozen=True, slots=True)
class _Norm:
    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)

    def to(self, device: torch.device) -> _Norm:
        return _Norm(self.weight.to(device), self.bias.to(device), self.epsilon)


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """looked: query, key and value side by side, in one product."""

    looked: _Product
    attended: _Product
    attended_norm: _Norm
    grown: _Product
    shrunk: _Product
    shrunk_norm: _Norm

    def to(self, device: torch.device) -> _Layer:
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _Layer(**{name: part.to(device) for name, part in parts.items()})


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """Rows of one length that lie side by side in the packed tokens, from `start` to `end`."""

    rows: Sequence[int]
    tokens: int
    start: int
    end: int


class BertEncoder:
    """BERT on packed tokens: the rows lie end to end in one (tokens, width) matrix, and no token is padding.

    Linear layers and norms do not know where a row ends, so they run over all tokens at once; attention runs
    over each run of rows of equal length. No mask is ever made. CPU time against a bare loop over transformers'
    BertModel on one thread, its batches split by length (MiniLM, AVX512): 23 to 36 % less for a single text of 8 to
    64 tokens, 14 to 20 % less for one of 128 or 256, 12 % less for 16 rows of 32, 19 % less for 8 of 60 to 68.
    """

    def __init__(
        self,
        config: dict[str, Any],
        words: torch.Tensor,
        places: torch.Tensor,
        norm: _Norm,
        layers: list[_Layer],
        dtype: torch.dtype,
    ) -> None:
        self.width = words.shape[1]
        self.vocabulary = words.shape[0]
        self._heads = int(config["num_attention_heads"])
        self._words = words
        self._places = places
        self._norm = norm
        self._layers = layers
        self._dtype = dtype

    def encode(self, rows: Sequence[list[int]]) -> list[Group]:
        """See Encoder."""
        spans = list(_spans(rows))
        packed = [token for span in spans for row in span.rows for token in rows[row]]
        ids = torch.tensor(packed, device=self._words.device)
        hidden = functional.embedding(ids, self._words)
        for span in spans:
            self._unpack(hidden, span).add_(self._places[: span.tokens])
        hidden = self._norm(hidden).to(self._dtype)
        for layer in self._layers:
            hidden = self._through(layer, hidden, spans)
        return [Group(span.rows, self._unpack(hidden, span), None) for span in spans]

    def to(self, device: torch.device) -> None:
        """See Encoder. It is made for CPUs, but a template may have loaded it before it became a GPU's."""
        if device == self._words.device:
            return
        self._words, self._places = self._words.to(device), self._places.to(device)
        self._norm = self._norm.to(device)
        self._layers = [layer.to(device) for layer in self._layers]

    def _through(self, layer: _Layer, hidden: torch.Tensor, spans: Sequence[_Span]) -> torch.Tensor:
        attended = self._attend(layer, hidden, spans)
        hidden = layer.attended_norm(layer.attended(attended).add_(hidden))
        grown = torch.ops.aten.gelu_.default(layer.grown(hidden))
        return layer.shrunk_norm(layer.shrunk(grown).add_(hidden))

    def _attend(self, layer: _Layer, hidden: torch.Tensor, spans: Sequence[_Span]) -> torch.Tensor:
        looked = layer.looked(hidden)
        parts = []
        for span in spans:
            by_head = looked[span.start : span.end].view(len(span.rows), span.tokens, 3, self._heads, -1)
            query, key, value = by_head.permute(2, 0, 3, 1, 4).unbind(0)  # each (rows, heads, tokens, width of a head)
            mixed = functional.scaled_dot_product_attention(query, key, value)
            parts.append(mixed.transpose(1, 2).reshape(span.end - span.start, self.width))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _unpack(self, packed: torch.Tensor, span: _Span) -> torch.Tensor:
        """A view of a span's part of the packed tokens, as (rows, tokens, width)."""
        return packed[span.start : span.end].view(len(span.rows), span.tokens, self.width)


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


def load_bert(folder: Path, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> BertEncoder | None:
    """Plain BERT from its safetensors file; None where the file is not what plain BERT has.

    dtype: of the layers, float32 or bfloat16; the embeddings before them are float32 in any case, and stay
    memory-mapped: a forward touches only the rows that it needs. The weights of linear layers are copied once
    into the layout that the matrix product reads without reordering.
    """
    file = folder / "model.safetensors"
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as handle:
            weights = _BertWeights(handle, float(config.get("layer_norm_eps", 1e-12)), dtype, _product_of(dtype))
            layers = [weights.layer(index) for index in range(int(config["num_hidden_layers"]))]
            places, norm = weights.places(), weights.norm("embeddings.LayerNorm", torch.float32)
        with safe_open(file, framework="pt") as handle:  # a mapping of its own: the first one goes, with its pages
            words = _BertWeights(handle, 0.0, dtype, _Linear.of).tensor("embeddings.word_embeddings.weight")
    except KeyError as error:
        log.warning("%s has no %s: transformers' own class is used", file, error)
        return None
    return BertEncoder(config, words, places, norm, layers, dtype)


class _BertWeights:
    """Names and layouts of a BERT checkpoint, with or without the `bert.` of a model that had a head."""

    def __init__(self, handle: Any, epsilon: float, dtype: torch.dtype, product_of: _ProductOf) -> None:
        self._handle = handle
        self._names = frozenset(handle.keys())
        self._prefix = "bert." if "bert.embeddings.word_embeddings.weight" in self._names else ""
        self._epsilon = epsilon
        self._dtype = dtype
        self._product_of = product_of

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
        """Position embeddings plus the embedding of the first, and only, segment: (positions, width)."""
        segments = self.tensor("embeddings.token_type_embeddings.weight")
        return self.tensor("embeddings.position_embeddings.weight") + segments[0]

    def norm(self, name: str, dtype: torch.dtype) -> _Norm:
        weight, bias = self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias")
        return _Norm(weight.to(dtype, copy=True), bias.to(dtype, copy=True), self._epsilon)

    def product(self, *names: str) -> _Product:
        """Linear layers of one input side by side."""
        bias = torch.cat([self.tensor(f"{name}.bias") for name in names]).to(self._dtype)
        weights = [self.tensor(f"{name}.weight") for name in names]
        weight = (weights[0] if len(weights) == 1 else torch.cat(weights)).to(self._dtype)
        return self._product_of(bias, weight)

    def layer(self, index: int) -> _Layer:
        at = f"encoder.layer.{index}"
        return _Layer(
            looked=self.product(*(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
            attended=self.product(f"{at}.attention.output.dense"),
            attended_norm=self.norm(f"{at}.attention.output.LayerNorm", self._dtype),
            grown=self.product(f"{at}.intermediate.dense"),
            shrunk=self.product(f"{at}.output.dense"),
            shrunk_norm=self.norm(f"{at}.output.LayerNorm", self._dtype),
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
        inputs = padded(rows, self._padding).to(self._device)
        mask = padded([[1] * len(row) for row in rows], 0).to(self._device)
        hidden = self._model(input_ids=inputs, attention_mask=mask).last_hidden_state
        even = len({len(row) for row in rows}) == 1
        return [Group(range(len(rows)), hidden, None if even else mask.float())]

    def to(self, device: torch.device) -> None:
        """See Encoder."""
        self._model.to(device)
        self._device = device


def padded(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    """Rows of numbers as one (rows, longest) matrix, filled up at their ends."""
    matrix = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for place, row in enumerate(rows):
        matrix[place, : len(row)] = row
    return torch.from_numpy(matrix)


def repack(model: Any) -> None:
    """Turn the weights of a CPU model's linear layers into the layout that the matrix product wants.

    The same numbers under the same shape, stored column by column: up to 15 % less time for forwards of 24 to
    128 tokens (MiniLM, one thread, AVX512), nothing lost elsewhere. It costs a copy of the weights, so large
    ones stay as they are, and so do weights that are tied to embeddings.
    """
    modules = list(model.modules())
    tied = {id(module.weight) for module in modules if isinstance(module, torch.nn.Embedding)}
    layers = [one for one in modules if type(one) is torch.nn.Linear and id(one.weight) not in tied]
    if sum(layer.weight.nbytes for layer in layers) > REPACK_LIMIT_BYTES:
        return
    for layer in layers:
        turned = layer.weight.detach().t().contiguous().t()
        layer.weight = torch.nn.Parameter(turned, requires_grad=False)


def load_model(folder: Path, dtype: torch.dtype, *, trust_remote_code: bool) -> Any:
    """A model through transformers, on the CPU. Raises LoadError where the checkpoint lacks weights.

    Attention is sdpa: as fast as eager for short inputs on a CPU, a tenth to a quarter faster from 128 tokens
    on, and what GPUs want. A model that has no sdpa gets eager from transformers itself.
    """
    with calm():
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

    be_single_threaded()
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
    return model
