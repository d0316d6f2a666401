"""Limits that the config leaves open are found at the start; memory for texts is bounded (spec 5), on real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import golden
from engine.backends.base import LoadError, Row
from engine.backends.decoders import ROOM, capacity
from engine.backends.generate import within
from engine.backends.transformers import TransformersBackend
from engine.calibration import Pass, rows_for
from tests.engine.conftest import launch
from tests.engine.test_generate import PROMPTS, ask, backend, finish, llama, loaded, texts

__all__ = ["backend", "llama"]

MIB = 1024 * 1024


@pytest.fixture
def fresh(minilm: TransformersBackend) -> Iterator[TransformersBackend]:
    """The session's MiniLM as a replica that was forked just now, and again as it was for the other tests."""
    minilm.adopt(launch())
    minilm.warm()
    yield minilm
    minilm.adopt(launch())
    minilm.warm()


def calibrated(backend: TransformersBackend) -> list[Pass]:
    passes: list[Pass] = []
    golden.check(backend, passes.append)
    backend.calibrate(passes)
    return passes


def test_unset_limits_are_found_and_the_card_says_so(fresh: TransformersBackend) -> None:
    passes = calibrated(fresh)
    assert sum(one.tokens for one in passes) == 80 and all(one.cpu_s > 0 for one in passes)
    card = fresh.card()
    assert card.calibrated == ["max_num_batched_tokens", "max_num_seqs"]
    assert 64 <= card.max_num_batched_tokens <= 8192
    assert card.max_num_seqs == rows_for(card.max_num_batched_tokens)
    assert card.kv_cache_bytes is None


def test_set_limits_are_used_as_they_are(fresh: TransformersBackend) -> None:
    fresh.adopt(launch(max_num_seqs=3, max_num_batched_tokens=77))
    calibrated(fresh)
    card = fresh.card()
    assert (card.max_num_seqs, card.max_num_batched_tokens, card.calibrated) == (3, 77, [])
    fresh.adopt(launch(max_num_batched_tokens=8192))
    calibrated(fresh)
    card = fresh.card()
    assert (card.max_num_seqs, card.max_num_batched_tokens) == (256, 8192)
    assert card.calibrated == ["max_num_seqs"]


def test_a_slower_replica_finds_a_smaller_budget(fresh: TransformersBackend) -> None:
    fresh.calibrate([Pass(40, 0.01)])
    quick = fresh.max_num_batched_tokens
    fresh.calibrate([Pass(40, 0.05)])
    assert (quick, fresh.max_num_batched_tokens) == (512, 128)


def test_on_a_cpu_calibration_costs_no_forward_of_its_own(
    fresh: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_wanted(rows: Sequence[Row]) -> Sequence[Any]:
        raise AssertionError("a forked replica has 100 ms from command to ready")

    monkeypatch.setattr(fresh._task, "forward", none_wanted)
    fresh.calibrate([Pass(40, 0.01)])
    assert fresh.max_num_batched_tokens == 512


class Card:
    """A GPU's memory: a forward needs so many bytes a token, and what does not fit fails."""

    def __init__(self, free: int, a_token: int) -> None:
        self.free, self.a_token, self.tokens = free, a_token, 0
        self.seen: list[int] = []

    def free_bytes(self) -> int | None:
        return self.free

    def peak_bytes(self, run: Callable[[], None]) -> int | None:
        self.tokens = 0
        run()
        self.seen.append(self.tokens)
        needed = self.tokens * self.a_token
        return needed if needed <= self.free else None


def on_gpu(backend: TransformersBackend, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes on the CPU as before, and calibrates as for a GPU with that memory."""
    monkeypatch.setattr("engine.backends.transformers.meter_of", lambda _: card)
    monkeypatch.setattr(backend, "_device", torch.device("cuda", 0))


def test_on_a_gpu_the_largest_forward_that_fits_with_headroom_is_found(
    fresh: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(free=100 * MIB, a_token=10_000)  # half of it has room for 5242 tokens
    longest: set[int] = set()

    def forward(rows: Sequence[Row]) -> Sequence[Any]:
        card.tokens += sum(row.tokens for row in rows)
        longest.update(row.tokens for row in rows)
        return []

    on_gpu(fresh, card, monkeypatch)
    monkeypatch.setattr(fresh._task, "forward", forward)
    fresh.calibrate([])
    assert fresh.max_num_batched_tokens == 4096
    assert card.seen[-2:] == pytest.approx([4096, 8192], rel=0.01), "the first that does not fit ends the search"
    assert longest == {255} or longest == {256}, "rows as long as the model reads them"
    monkeypatch.setattr(fresh, "_spec", launch(sharing=2))
    fresh.calibrate([])
    assert fresh.max_num_batched_tokens == 2048, "two replicas on one card have half of it each"


def test_on_a_gpu_texts_share_what_a_forward_leaves(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = loaded(llama)
    card = Card(free=10 * MIB, a_token=1000)
    forward = backend._task._decoder.forward  # type: ignore[attr-defined]

    def counted(parts: Any) -> torch.Tensor:
        card.tokens += sum(len(part.tokens) for part in parts)
        logits: torch.Tensor = forward(parts)
        return logits

    on_gpu(backend, card, monkeypatch)
    monkeypatch.setattr(backend._task._decoder, "forward", counted)  # type: ignore[attr-defined]
    backend.calibrate([])
    tokens = backend.max_num_batched_tokens
    assert tokens == 4096  # 5242 would fit half of it
    kept = backend.card().kv_cache_bytes
    assert kept is not None and kept == pytest.approx(10 * MIB * 0.85 - tokens * 1000, rel=0.01)
    monkeypatch.setattr(backend, "_spec", launch(max_num_batched_tokens=16384))
    backend.max_num_batched_tokens = 16384
    with pytest.raises(LoadError, match="a forward of 16384 tokens does not fit the 10 MiB"):
        backend.calibrate([])


def test_on_a_cpu_texts_get_a_share_of_the_memory_that_is_available(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.backends.meters.available_bytes", lambda: 64 * MIB)
    backend = loaded(llama)
    calibrated(backend)
    assert backend.card().kv_cache_bytes == 32 * MIB
    assert 64 <= backend.max_num_batched_tokens <= 8192 and backend.max_num_seqs == 32
    backend.adopt(launch(artifact=str(llama), sharing=4))
    calibrated(backend)
    assert backend.card().kv_cache_bytes == 8 * MIB
    monkeypatch.setattr("engine.backends.meters.available_bytes", lambda: None)
    backend.adopt(launch(artifact=str(llama)))
    calibrated(backend)
    assert backend.card().kv_cache_bytes is None, "where nothing says what is free there is no bound"


def bounded(llama: Path, tokens: int) -> tuple[TransformersBackend, int]:
    """A backend with memory for so many tokens of all texts, and that in bytes."""
    a_token = loaded(llama)._task._decoder.token_bytes  # type: ignore[attr-defined]
    backend = loaded(llama, options={"kv_cache_bytes": tokens * a_token})
    backend.calibrate([])
    assert backend.card().kv_cache_bytes == tokens * a_token
    return backend, tokens * a_token


@pytest.mark.parametrize("room", [ROOM, 3 * ROOM])
def test_texts_that_do_not_fit_wait_and_their_tokens_stay_the_same(
    llama: Path, backend: TransformersBackend, room: int
) -> None:
    count = 12 if room == ROOM else 70  # then memories grow while others write, and some must give theirs back
    expected = [texts(finish(backend, ask(backend, prompt=prompt, max_tokens=count)))[0] for prompt in PROMPTS]
    backend, most = bounded(llama, room)
    asked = [ask(backend, prompt=prompt, max_tokens=count) for prompt in PROMPTS]
    running, together = list(asked), 0
    while running:
        backend.step(running)
        held = [one for one in running if one.memory.tokens]
        assert sum(one.memory.nbytes for one in held) <= most
        together = max(together, len(held))
        assert held and held[0] is running[0], "the oldest is never kept waiting"
        for one in running:
            if one.done:
                backend.release(one)
        running = [one for one in running if not one.done]
    assert together == min(room // ROOM, len(asked))
    assert texts(finish(backend, *asked)) == expected


def test_a_seeded_text_that_had_to_wait_is_the_same(llama: Path) -> None:
    backend, _ = bounded(llama, 2 * ROOM)

    def sampled() -> Any:
        return ask(backend, prompt=PROMPTS[0], temperature=1.2, seed=5, max_tokens=30)

    alone = texts(finish(backend, sampled()))
    older, parked = ask(backend, prompt=[9] * 50, temperature=1.0, seed=1, max_tokens=40), sampled()
    backend.step([older, parked])
    assert parked.memory.tokens
    while not older.done:
        backend.step([older, parked])
    assert older._written > 14 and not parked.memory.tokens, "the older one needed its memory"
    assert texts(finish(backend, parked)) == alone


def test_a_text_that_would_not_fit_alone_is_refused_and_the_card_says_how_long_one_may_be(llama: Path) -> None:
    backend, _ = bounded(llama, ROOM)
    assert backend.card().max_model_len == ROOM
    with pytest.raises(Exception, match=f"expected at most {ROOM - 1} tokens"):
        ask(backend, prompt=[3] * ROOM)


def test_nobody_is_passed_over_for_a_smaller_one(backend: TransformersBackend) -> None:
    large, small = ask(backend, prompt=[1] * 100), ask(backend, prompt=[1])
    assert (large.room, small.room) == (capacity(100), ROOM) == (128, 64)
    assert within([small, large, small], 130) == [small]
    assert within([large, small], 10) == [large], "one always goes on"
    assert within([large, small], None) == [large, small]
