"""The engine `transformers`: models of the transformers library, one task a file (spec 10).

- `load`: files to weights on the CPU, on one thread. Once a deployment: a template may do it, and be forked.
- `warm`: threads, device, a first forward. Once a replica, on the thread that runs the forwards.
- `forward`: rows of any requests together.

`load` never runs a parallel region (spec 5): OpenMP's threads do not survive a fork, and a child of a process
that has them hangs in its first parallel forward. So torch is set to one thread before the first tensor is
touched, transformers loads its weights without its thread pool, and tqdm's watcher thread is never started.

Two encoders stand behind the tasks. Plain BERT on a CPU in float32 runs on `BertEncoder`, a few lines of
torch that need no import of transformers (a cold start of 1.8 s and 300 MB instead of 5.3 s and 460 MB), pad
nothing and keep weights in the layout that the matrix product wants. Everything else runs on transformers' own
class (`PaddedEncoder`).
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
from typing import Any, Literal, Protocol

import msgspec
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
"""Limits of a forward on a CPU where none are set: MiniLM's tokens/s on one thread rise up to forwards of 256 to
512 tokens (5600/s for texts of 16), and fall by a seventh up to 2048, while each row waits four times as long."""

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


# --------------------------------------------------------------------------------------------------- encoders


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


@dataclasses.dataclass(frozen=True, slots=True)
class _Linear:
    """Bias (out,) and weight (in, out), as `torch.addmm` takes them."""

    bias: torch.Tensor
    weight: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)

    def to(self, device: torch.device) -> _Linear:
        return _Linear(self.bias.to(device), self.weight.to(device))


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
    query: _Linear
    key: _Linear
    value: _Linear
    attended: _Linear
    attended_norm: _Norm
    grown: _Linear
    shrunk: _Linear
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
    over each run of rows of equal length. No mask is ever made. Measured against a bare loop over transformers'
    BertModel on one thread (MiniLM, AVX512): 23 to 28 % less time for a single text of 8 to 64 tokens, 7 % less
    for 16 rows of 32 tokens, 20 % less where their lengths are 24 to 32, 58 % less where they are 4 to 64.
    """

    def __init__(
        self,
        config: dict[str, Any],
        words: torch.Tensor,
        places: torch.Tensor,
        norm: _Norm,
        layers: list[_Layer],
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
        packed = [token for span in spans for row in span.rows for token in rows[row]]
        ids = torch.tensor(packed, device=self._words.device)
        hidden = functional.embedding(ids, self._words)
        for span in spans:
            self._unpack(hidden, span).add_(self._places[: span.tokens])
        hidden = self._norm(hidden)
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
        grown = functional.gelu(layer.grown(hidden))
        return layer.shrunk_norm(layer.shrunk(grown).add_(hidden))

    def _attend(self, layer: _Layer, hidden: torch.Tensor, spans: Sequence[_Span]) -> torch.Tensor:
        projected = [project(hidden) for project in (layer.query, layer.key, layer.value)]
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

    The word embeddings stay memory-mapped: a forward touches only the rows that it needs. The weights of
    linear layers are copied, turned once into the layout (in, out) that the matrix product reads without
    reordering.
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
        """Position embeddings plus the embedding of the first, and only, segment: (positions, width)."""
        segments = self.tensor("embeddings.token_type_embeddings.weight")
        return self.tensor("embeddings.position_embeddings.weight") + segments[0]

    def norm(self, name: str) -> _Norm:
        weight, bias = self.tensor(f"{name}.weight").clone(), self.tensor(f"{name}.bias").clone()
        return _Norm(weight, bias, self._epsilon)

    def linear(self, name: str) -> _Linear:
        bias, weight = self.tensor(f"{name}.bias").clone(), self.tensor(f"{name}.weight")
        return _Linear(bias, weight.t().contiguous())

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

    def repack(self) -> None:
        """Turn the weights of a CPU model's linear layers into the layout that the matrix product wants.

        The same numbers under the same shape, stored column by column: up to 15 % less time for forwards of 24 to
        128 tokens (MiniLM, one thread, AVX512), nothing lost elsewhere. It costs a copy of the weights, so large
        ones stay as they are, and so do weights that are tied to embeddings.
        """
        modules = list(self._model.modules())
        tied = {id(module.weight) for module in modules if isinstance(module, torch.nn.Embedding)}
        layers = [one for one in modules if type(one) is torch.nn.Linear and id(one.weight) not in tied]
        if sum(layer.weight.nbytes for layer in layers) > REPACK_LIMIT_BYTES:
            return
        for layer in layers:
            turned = layer.weight.detach().t().contiguous().t()
            layer.weight = torch.nn.Parameter(turned, requires_grad=False)


def load_padded(folder: Path, dtype: torch.dtype, *, trust_remote_code: bool) -> PaddedEncoder:
    """A model through transformers, on the CPU. Raises LoadError where the checkpoint lacks weights.

    Attention is sdpa: as fast as eager for short inputs on a CPU, a tenth to a quarter faster from 128 tokens
    on, and what GPUs want. A model that has no sdpa gets eager from transformers itself.
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


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Imports make many objects and no garbage: without the collector they take a fifth less time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# ------------------------------------------------------------------------------------------------- tokenisers


class Tokeniser:
    """Texts or token ids to what the model reads: special tokens added, cut to `limit` tokens in all."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, *, limit: int, prompt: str = "", lower_case: bool = False
    ) -> None:
        self.limit = limit
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._lower_case = lower_case
        tokenizer.no_padding()  # tokenizer.json may ask for both, in ways that are not the model's
        tokenizer.enable_truncation(max_length=limit)
        self._front, self._back = _special_tokens(tokenizer)
        self._by_word = isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)

    def encode(self, inputs: Sequence[str | list[int]]) -> list[list[int]]:
        """Token ids of each input, at most `limit`."""
        return [self._of_text(one) if isinstance(one, str) else self._of_ids(one) for one in inputs]

    def _of_text(self, text: str) -> list[int]:
        if self._lower_case:
            text = text.lower()
        text = self._prompt + text
        if self._by_word:
            return self._of_long_text(text)
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def _of_long_text(self, text: str) -> list[int]:
        """As much of a text as fills `limit` tokens: words are split each for itself, the rest cannot matter.

        A text of 64 MiB would else hold up everyone for a minute, to have all but its first page thrown away.
        """
        size = 16 * self.limit
        while size < len(text):
            end = text.rfind(" ", 0, size)
            ids: list[int] = self._tokenizer.encode(text[: max(end, 0)]).ids
            if len(ids) == self.limit:
                return ids
            size *= 4
        whole: list[int] = self._tokenizer.encode(text).ids
        return whole

    def _of_ids(self, ids: list[int]) -> list[int]:
        """The ids between the model's special tokens, which they may carry already."""
        front, back = self._front, self._back
        around = len(front) + len(back)
        if around and len(ids) >= around and ids[: len(front)] == front and ids[len(ids) - len(back) :] == back:
            ids = ids[len(front) : len(ids) - len(back)]
        return [*front, *ids[: self.limit - around], *back]


def _special_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokeniser puts before and after every text."""
    probe = tokenizer.encode("a")
    special = probe.special_tokens_mask
    front = list(itertools.takewhile(lambda place: special[place], range(len(special))))
    back = list(itertools.takewhile(lambda place: special[place], reversed(range(len(front), len(special)))))
    return [probe.ids[place] for place in front], [probe.ids[place] for place in reversed(back)]


def _load_tokenizer(folder: Path, *, trust_remote_code: bool) -> tokenizers.Tokenizer:
    """The fast tokeniser of a model. Raises LoadError where there is none."""
    if _is_plain_tokenizer(folder):
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    with _no_collection():
        from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise LoadError(f"{folder}: expected a fast tokeniser (tokenizer.json), found a slow one", final=True)
    return backend


def _is_plain_tokenizer(folder: Path) -> bool:
    """Whether tokenizer.json alone is BERT's tokeniser: tokenizer_config.json, which overrules it, agrees."""
    if not ((folder / "tokenizer.json").exists() and (folder / "tokenizer_config.json").exists()):
        return False
    config = read_json(folder / "tokenizer_config.json")
    normaliser = read_json(folder / "tokenizer.json").get("normalizer") or {}
    return (
        config.get("tokenizer_class") in ("BertTokenizer", "BertTokenizerFast")
        and normaliser.get("type") == "BertNormalizer"
        and normaliser.get("lowercase") == config.get("do_lower_case", True)
        and normaliser.get("strip_accents") == config.get("strip_accents")
        and normaliser.get("handle_chinese_chars") == config.get("tokenize_chinese_chars", True)
    )


# ------------------------------------------------------------------------------------------------------ tasks


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`engine_args` of this engine. `encoder`: `transformers` keeps a model off `BertEncoder`."""

    encoder: Literal["auto", "transformers"] = "auto"


class Task(Protocol):
    """One kind of model. A new one is a file with a `load(checkpoint)` and a line in `TASKS`."""

    name: str
    routes: frozenset[Route]
    dimensions: int
    max_model_len: int
    normalised: bool

    def to(self, device: torch.device) -> None:
        """Move the weights to a device."""

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        """See Backend."""

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See Backend."""

    def golden(self) -> Sequence[bytes]:
        """See Backend."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files and what is wanted of them, for tasks to load from. `served`: its name in answers."""

    folder: Path
    spec: LaunchSpec
    options: Options
    device: torch.device
    dtype: torch.dtype
    served: str

    def encoder(self, folder: Path) -> Encoder:
        """The encoder in a folder of the model, on the CPU."""
        config = read_json(folder / "config.json")
        plain_cpu = self.device.type == "cpu" and self.dtype == torch.float32
        lean = plain_cpu and self.options.encoder == "auto" and is_plain_bert(config)
        if lean and (bert := load_bert(folder, config)) is not None:
            return bert
        padded = load_padded(folder, self.dtype, trust_remote_code=self.spec.trust_remote_code)
        if plain_cpu:
            padded.repack()
        return padded

    def tokeniser(self, folder: Path, *, limit: int, prompt: str, lower_case: bool) -> Tokeniser:
        """The tokeniser in a folder of the model. Raises LoadError."""
        tokenizer = _load_tokenizer(folder, trust_remote_code=self.spec.trust_remote_code)
        return Tokeniser(tokenizer, limit=limit, prompt=prompt, lower_case=lower_case)

    def max_tokens(self, folder: Path, said: int | None) -> int:
        """Most tokens of an input: what the spec asks, else what the model says, within its positions."""
        config = read_json(folder / "config.json")
        positions = _positions(config)
        asked = self.spec.max_model_len
        if asked and positions and asked > positions:
            raise LoadError(f"max_model_len: expected at most {positions} for this model, found {asked}", final=True)
        file = folder / "tokenizer_config.json"
        by_tokeniser = read_json(file).get("model_max_length") if file.exists() else None
        limits = [positions, asked or said or by_tokeniser]
        return min((int(limit) for limit in limits if limit), default=DEFAULT_MAX_TOKENS)


_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "longformer")
"""Models that count positions from the padding id on, and so have fewer than their config says."""


def _positions(config: dict[str, Any]) -> int | None:
    positions = config.get("max_position_embeddings")
    if positions is None:
        return None
    if config.get("model_type") in _OFFSET_POSITIONS:
        positions -= int(config.get("pad_token_id") or 0) + 1
    return int(positions)


def _load_embed(checkpoint: Checkpoint) -> Task:
    from engine.backends import embed

    return embed.load(checkpoint)


TASKS = {"embed": _load_embed}
"""The tasks that there are, by name."""


def task_of(folder: Path) -> str:
    """What a model is for, as its own files say it (`task: auto`)."""
    if folder.is_file():
        return "generate"
    if (folder / "modules.json").exists():
        return "embed"
    config = read_json(folder / "config.json")
    architecture = str((config.get("architectures") or ["unknown"])[0])
    if architecture.endswith("ForSequenceClassification"):
        return "rerank" if len(config.get("id2label") or (0, 1)) == 1 else "classify"
    return "generate" if architecture.endswith(("ForCausalLM", "LMHeadModel")) else "embed"


# ---------------------------------------------------------------------------------------------------- backend


class TransformersBackend(Backend):
    """The model of a launch specification; its `options` are `Options`. Raises LoadError."""

    _artifact: Artifact
    _task: Task
    _digest: str

    def __init__(self, spec: LaunchSpec) -> None:
        try:
            self._options = msgspec.convert(spec.options, Options)
        except msgspec.ValidationError as error:
            raise LoadError(f"engine_args: {error}", final=True) from error
        self.adopt(spec)

    def load(self) -> None:
        """See Backend: weights on the CPU, one thread, no parallel region, so that a fork may follow."""
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are beyond the budget, and die in a fork
        self._artifact = resolve(self._spec.artifact, self._spec.revision)
        folder = self._artifact.path
        name = task_of(folder) if self._spec.task == "auto" else self._spec.task
        if name not in TASKS:
            known = ", ".join(TASKS)
            raise LoadError(f"task {name} of {self._spec.artifact} is not built yet; there are: {known}", final=True)
        self._dtype = _dtype(self._spec.dtype, self._device, folder)
        served = self._spec.replica.partition("/")[0]
        self._task = TASKS[name](Checkpoint(folder, self._spec, self._options, self._device, self._dtype, served))
        self._digest = weights_digest(folder)

    def adopt(self, spec: LaunchSpec) -> None:
        """See Backend: in a fork, the loaded weights become another replica's."""
        self._spec = spec
        self._device = _device(spec)
        self._warm = False
        self._set_limits()

    def warm(self) -> None:
        """See Backend. `forward` does it where nobody did."""
        self._warm = True
        torch.set_num_threads(max(1, self._spec.threads))
        if torch.get_num_interop_threads() != 1:
            with contextlib.suppress(RuntimeError):  # can be set once a process, and only before it is used
                torch.set_num_interop_threads(1)
        self._task.to(self._device)
        job = self.prepare(self.golden_route(), self._task.golden()[-1], False)
        assert isinstance(job, Job)
        self.forward(job.rows)

    def card(self) -> Card:
        """See Backend."""
        spec = self._spec
        return Card(
            artifact=spec.artifact,
            engine="transformers",
            task=self._task.name,
            device=spec.device,
            dtype=str(self._dtype).removeprefix("torch."),
            threads=spec.threads,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            revision=self._artifact.revision,
            dimensions=self._task.dimensions,
            max_model_len=self._task.max_model_len,
            weights_digest=self._digest,
            reproducible=os.environ.get("MKL_CBWR"),
            versions=_versions(),
        )

    @property
    def normalised(self) -> bool:
        """Whether the vectors have unit length, which the golden check then holds them to."""
        return self._task.normalised

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        """See Backend."""
        if route not in self._task.routes:
            does = ", ".join(route.name.lower() for route in self._task.routes)
            raise RequestError(f"this model answers {does}, not {route.name.lower()}", status=404)
        return self._task.prepare(route, body, stream)

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See Backend."""
        if not self._warm:
            self.warm()
        return self._task.forward(rows)

    def golden(self) -> Sequence[bytes]:
        """See Backend."""
        return self._task.golden()

    def golden_route(self) -> Route:
        """See Backend."""
        return min(self._task.routes)

    def gpu_bytes(self) -> int:
        """See Backend: what torch's allocator holds."""
        return torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0

    def _set_limits(self) -> None:
        seqs, tokens = (CPU_SEQS, CPU_TOKENS) if self._device.type == "cpu" else (GPU_SEQS, GPU_TOKENS)
        self.max_num_seqs = self._spec.max_num_seqs or seqs
        self.max_num_batched_tokens = self._spec.max_num_batched_tokens or tokens


def _device(spec: LaunchSpec) -> torch.device:
    """Where to compute. A GPU replica sees only its own card, so inside it is number 0 (spec 4)."""
    kind = "cpu" if spec.simulated else spec.device.partition(":")[0]
    match kind:
        case "cpu":
            return torch.device("cpu")
        case "cuda" | "rocm":
            return torch.device("cuda", 0)
        case "mps":
            return torch.device("mps")
    raise LoadError(f"device: expected cpu, cuda:N, rocm:N or mps, found {spec.device}", final=True)


def _dtype(wanted: str, device: torch.device, folder: Path) -> torch.dtype:
    """`auto`: float32 on a CPU; elsewhere what the checkpoint says it is stored as."""
    if wanted == "auto":
        config = {} if device.type == "cpu" else read_json(folder / "config.json")
        wanted = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if wanted not in _DTYPES:
        raise LoadError(f"dtype: expected auto or one of {', '.join(_DTYPES)}, found {wanted}", final=True)
    return _DTYPES[wanted]


def _versions() -> dict[str, str]:
    """Versions of what computes; transformers only where it was imported."""
    names = ("torch", "tokenizers", "transformers")
    return {name: version(name) for name in names if name in sys.modules}
