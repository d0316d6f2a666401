"""Tokenisers: texts to the token ids that an encoder reads."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers

from engine.backends.artifacts import read_json
from engine.backends.base import LoadError
from engine.backends.library import calm


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
        self._by_word = splits_words(tokenizer)

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
        ids: list[int] = []
        for beginning in beginnings(text, self.limit):
            ids = self._tokenizer.encode(beginning).ids
            if len(ids) == self.limit:
                break
        return ids

    def _of_ids(self, ids: list[int]) -> list[int]:
        """The ids between the model's special tokens, which they may carry already."""
        front, back = self._front, self._back
        around = len(front) + len(back)
        if around and len(ids) >= around and ids[: len(front)] == front and ids[len(ids) - len(back) :] == back:
            ids = ids[len(front) : len(ids) - len(back)]
        return [*front, *ids[: self.limit - around], *back]


def splits_words(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether it splits each word for itself, so that the rest of a text cannot matter to its first tokens."""
    return isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)


def beginnings(text: str, limit: int) -> Iterator[str]:
    """More and more of a text, whole words, and all of it at last: to stop at when there are `limit` tokens.

    A text of 64 MiB would else hold up everyone for a minute, to have all but its first page thrown away.
    """
    size = 16 * limit
    while size < len(text):
        yield text[: max(text.rfind(" ", 0, size), 0)]
        size *= 4
    yield text


def key_of(ids: Sequence[int]) -> bytes:
    """Token ids as a row's key: four bytes each, where a tuple of them would hold forty."""
    return array("I", ids).tobytes()


def _special_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokeniser puts before and after every text."""
    probe = tokenizer.encode("a")
    special = probe.special_tokens_mask
    front = list(itertools.takewhile(lambda place: special[place], range(len(special))))
    back = list(itertools.takewhile(lambda place: special[place], reversed(range(len(front), len(special)))))
    return [probe.ids[place] for place in front], [probe.ids[place] for place in reversed(back)]


def load_tokenizer(folder: Path, *, trust_remote_code: bool) -> tokenizers.Tokenizer:
    """The fast tokeniser of a model. Raises LoadError where there is none."""
    if _is_plain_tokenizer(folder):
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    with calm():
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
