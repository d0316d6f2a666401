"""A model's files and what is wanted of them: what every task of the transformers engine loads from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from engine.backends.artifacts import read_json
from engine.backends.base import LoadError
from engine.backends.encoders import Encoder, PaddedEncoder, is_plain_bert, load_bert, load_model, repack
from engine.backends.tokenisers import Tokeniser, load_tokenizer
from engine.messages import LaunchSpec

DEFAULT_MAX_TOKENS = 512
"""Most tokens of an input where neither the spec nor the model's files say."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`engine_args` of this engine. `encoder`: `transformers` keeps a model off `BertEncoder`.

    golden: the file of known answers (`engine.reference`). kv_cache_bytes: most memory for keys and values.
    """

    encoder: Literal["auto", "transformers"] = "auto"
    golden: str | None = None
    kv_cache_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files and what is wanted of them, for tasks to load from. `served`: its name in answers."""

    folder: Path
    spec: LaunchSpec
    options: Options
    device: torch.device
    dtype: torch.dtype
    served: str

    @property
    def is_plain_cpu(self) -> bool:
        """Whether it will compute in float32 on a CPU, for which weights are laid out another way."""
        return self.device.type == "cpu" and self.dtype == torch.float32

    def encoder(self, folder: Path) -> Encoder:
        """The encoder in a folder of the model, on the CPU."""
        config = read_json(folder / "config.json")
        fitting = self.device.type == "cpu" and self.dtype in (torch.float32, torch.bfloat16)
        lean = fitting and self.options.encoder == "auto" and is_plain_bert(config)
        if lean and (bert := load_bert(folder, config, self.dtype)) is not None:
            return bert
        model = load_model(folder, self.dtype, trust_remote_code=self.spec.trust_remote_code)
        if self.is_plain_cpu:
            repack(model)
        return PaddedEncoder(model)

    def tokeniser(self, folder: Path, *, limit: int, prompt: str, lower_case: bool) -> Tokeniser:
        """The tokeniser in a folder of the model. Raises LoadError."""
        tokenizer = load_tokenizer(folder, trust_remote_code=self.spec.trust_remote_code)
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
