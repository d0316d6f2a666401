"""Small models with random and fixed weights, saved by transformers, for tasks that no package ships a model for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save_model(folder: Path, model_class: Any, config: Any) -> Path:
    """A model of that class with weights that depend on nothing but its shape."""
    torch.manual_seed(11)
    model = model_class(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.25)
    model.save_pretrained(folder)
    return folder


def save_byte_tokenizer(folder: Path) -> Tokenizer:
    """Bytes as tokens, so that every character beyond ASCII is several; 256 `<s>`, 257 `</s>`, 258 `<pad>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<s>", "</s>", "<pad>"]
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *specials])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=512
    )
    wrapped.chat_template = CHAT
    wrapped.save_pretrained(folder)
    return tokenizer


def save_pair_tokenizer(folder: Path, *inputs: str) -> None:
    """The same bytes, with `<s> a </s> b </s>` around texts and pairs, the second one of kind 1.

    inputs: what a model is given beside ids and mask.
    """
    tokenizer = save_byte_tokenizer(folder)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 256), ("</s>", 257)],
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask", *inputs],
    )
    wrapped.save_pretrained(folder)


def small(**more: Any) -> dict[str, Any]:
    """What configs of two thin layers have in common."""
    return {
        "vocab_size": 259,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "pad_token_id": 258,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "max_position_embeddings": 128,
    } | more
