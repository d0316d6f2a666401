"""Generation with a small model: the tokens of plain transformers code, however sequences are batched, read and cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from engine import golden
from engine.backends.answers import NotFiniteError
from engine.backends.base import LoadError, RequestError
from engine.backends.generate import TextGeneration, plan
from engine.backends.tasks import task_of
from engine.backends.transformers import TransformersBackend
from engine.messages import Route
from tests.engine.conftest import launch
from tests.engine.small import save_byte_tokenizer, save_model, small

PROMPTS = [[72, 101, 108], [5], list(range(60, 100)), [200, 3, 200, 3], [17] * 9]


def build(folder: Path, model_class: Any, config: Any) -> Path:
    save_byte_tokenizer(folder)
    return save_model(folder, model_class, config)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("llama"), LlamaForCausalLM, LlamaConfig(**small(num_key_value_heads=2)))


@pytest.fixture(scope="module")
def backend(llama: Path) -> TransformersBackend:
    return loaded(llama)


def loaded(folder: Path, **changes: Any) -> TransformersBackend:
    backend = TransformersBackend(launch(artifact=str(folder), **changes))
    backend.load()
    return backend


def ask(backend: TransformersBackend, route: Route = Route.COMPLETIONS, **body: Any) -> TextGeneration:
    body = {"temperature": 0, "max_tokens": 12} | body
    generation = backend.prepare(route, json.dumps(body).encode(), bool(body.get("stream")))
    assert isinstance(generation, TextGeneration)
    return generation


def finish(backend: TransformersBackend, *generations: TextGeneration) -> list[dict[str, Any]]:
    """Step all together until all are done; the answers."""
    while not all(one.done for one in generations):
        backend.step([one for one in generations if not one.done])
    return [json.loads(one.answer()) for one in generations]


def texts(answers: list[dict[str, Any]]) -> list[str]:
    return [answer["choices"][0]["text"] for answer in answers]


def plainly(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The greedy tokens of transformers' own `generate`."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    read = torch.tensor([prompt])
    made = model.generate(read, attention_mask=torch.ones_like(read), max_new_tokens=count, do_sample=False)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


def said(backend: TransformersBackend, tokens: list[int]) -> str:
    text: str = backend._task._tokenizer.decode(tokens, skip_special_tokens=True)  # type: ignore[attr-defined]
    return text.rstrip("\ufffd")


FAMILIES = {
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=256, eos_token_id=257),
    ),
    "mistral, a window of 8": (MistralForCausalLM, MistralConfig(**small(num_key_value_heads=1, sliding_window=8))),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**small(num_key_value_heads=2))),
    "llama": (LlamaForCausalLM, LlamaConfig(**small(num_key_value_heads=2))),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_plain_transformers_code_in_any_company(family: str, tmp_path: Path) -> None:
    folder = build(tmp_path, *FAMILIES[family])
    backend = loaded(folder, max_num_batched_tokens=16)  # long prompts are read in pieces
    expected = [said(backend, plainly(folder, prompt, 12)) for prompt in PROMPTS]
    alone = [texts(finish(backend, ask(backend, prompt=prompt)))[0] for prompt in PROMPTS]
    together = texts(finish(backend, *(ask(backend, prompt=prompt) for prompt in PROMPTS)))
    assert alone == expected
    assert together == expected


def test_sequences_join_and_leave_between_steps(backend: TransformersBackend) -> None:
    expected = [texts(finish(backend, ask(backend, prompt=prompt)))[0] for prompt in PROMPTS]
    waiting = [ask(backend, prompt=prompt) for prompt in PROMPTS]
    everyone, running = list(waiting), [waiting.pop(0)]
    while running:
        backend.step(running)
        running = [one for one in running if not one.done]
        if waiting:
            running.append(waiting.pop(0))
    assert texts([json.loads(one.answer()) for one in everyone]) == expected


def test_one_that_leaves_changes_nothing_for_the_others_and_frees_its_memory(backend: TransformersBackend) -> None:
    expected = texts(finish(backend, ask(backend, prompt=PROMPTS[0])))
    stays, leaves = ask(backend, prompt=PROMPTS[0]), ask(backend, prompt=PROMPTS[2])
    backend.step([stays, leaves])
    assert leaves.memory.tokens == len(PROMPTS[2])
    backend.release(leaves)
    assert leaves.memory.tokens == 0
    assert texts(finish(backend, stays)) == expected


def test_a_stream_joined_is_the_unstreamed_text(backend: TransformersBackend) -> None:
    generation = ask(backend, prompt=PROMPTS[2], max_tokens=60, stream=True)
    events = b""
    while not generation.done:
        backend.step([generation])
        events += generation.take() or b""
    lines = [line.removeprefix("data: ") for line in events.decode().splitlines() if line]
    assert lines[-1] == "[DONE]"
    joined = "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])
    assert joined == texts(finish(backend, ask(backend, prompt=PROMPTS[2], max_tokens=60)))[0]


def test_a_stop_string_ends_the_answer_before_it(backend: TransformersBackend) -> None:
    (whole,) = texts(finish(backend, ask(backend, prompt=PROMPTS[0], max_tokens=40)))
    stop = whole[3:6]  # bytes are tokens here, so it lies across a border
    (answer,) = finish(backend, ask(backend, prompt=PROMPTS[0], max_tokens=40, stop=["never there", stop]))
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")


def test_usage_counts_and_the_finish_reason_tells(backend: TransformersBackend) -> None:
    (answer,) = finish(backend, ask(backend, prompt=PROMPTS[3], max_tokens=5))
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["model"] == "primary"


def test_max_tokens_is_cut_to_what_the_model_has_room_for(backend: TransformersBackend) -> None:
    (answer,) = finish(backend, ask(backend, prompt=[3] * 120, max_tokens=1000))
    assert answer["usage"]["total_tokens"] <= 128
    choice = answer["choices"][0]
    assert choice["finish_reason"] == ("length" if answer["usage"]["total_tokens"] == 128 else "stop")


def test_without_max_tokens_a_completion_has_16_and_a_chat_all_the_room(backend: TransformersBackend) -> None:
    assert ask(backend, prompt=[1], max_tokens=None)._most == 16
    chat = ask(backend, Route.CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=None)
    assert chat._most == 128 - chat.tokens


def test_the_chat_template_is_the_models_own(backend: TransformersBackend) -> None:
    chat = ask(backend, Route.CHAT, messages=[{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}])
    assert said(backend, list(chat.pending)) == "<system>be<user>hi<assistant>"
    (answer,) = finish(backend, chat)
    assert answer["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("route", "body", "what"),
    [
        (Route.COMPLETIONS, {"prompt": [3] * 128}, "prompt: expected at most 127 tokens"),
        (Route.COMPLETIONS, {"prompt": "x" * 4000}, "prompt: expected at most 127 tokens"),
        (Route.COMPLETIONS, {"prompt": ""}, "no tokens"),
        (Route.COMPLETIONS, {"prompt": [259]}, "token ids under 259"),
        (Route.CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "no tools here"),
        (Route.CHAT, {"messages": [{"role": "user", "content": "y" * 200}]}, "messages: expected at most 127 tokens"),
    ],
)
def test_what_cannot_be_read_is_a_400_that_says_why(
    backend: TransformersBackend, route: Route, body: dict[str, Any], what: str
) -> None:
    with pytest.raises(RequestError, match=what) as caught:
        ask(backend, route, **body)
    assert caught.value.status == 400 and caught.value.param


def test_a_seed_repeats_an_answer_in_any_company(backend: TransformersBackend) -> None:
    def sampled(seed: int) -> TextGeneration:
        return ask(backend, prompt=[1, 2, 3], temperature=1.3, top_p=0.9, seed=seed, max_tokens=20)

    alone = finish(backend, sampled(7))
    crowd = finish(backend, sampled(8), sampled(7), ask(backend, prompt=PROMPTS[2]))
    assert texts([crowd[1]]) == texts(alone) != texts([crowd[0]])


def test_nan_fails_the_sequence_and_not_its_neighbour(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, well = ask(backend, prompt=[1]), ask(backend, prompt=PROMPTS[0])
    decoder = backend._task._decoder  # type: ignore[attr-defined]
    forward = decoder.forward

    def poisoned(parts: Any) -> torch.Tensor:
        logits: torch.Tensor = forward(parts)
        logits[0, 5] = torch.nan
        return logits

    monkeypatch.setattr(decoder, "forward", poisoned)
    backend.step([sick, well])
    assert isinstance(sick.error, NotFiniteError) and not sick.done
    monkeypatch.undo()
    assert texts(finish(backend, well)) == texts(finish(backend, ask(backend, prompt=PROMPTS[0])))


def test_long_prompts_are_read_in_pieces_beside_those_that_write(backend: TransformersBackend) -> None:
    writing, long, late = ask(backend, prompt=[1]), ask(backend, prompt=[2] * 100), ask(backend, prompt=[3] * 30)
    backend.step([writing])
    assert [count for _, count in plan([writing, long, late], budget=512, piece=64)] == [1, 64]
    assert [count for _, count in plan([long, late], budget=512, piece=64)] == [100, 30]
    assert [count for _, count in plan([writing, long, late], budget=1, piece=64)] == [1, 1]


def test_the_golden_check_passes_and_needs_one_forward_after_the_rehearsal(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = backend.step
    monkeypatch.setattr(backend, "step", lambda generations: (steps.append(1), step(generations)))
    assert golden.check(backend) == "unverified"
    assert len(steps) == 1
    monkeypatch.setattr(backend, "_rehearsal", [b'{"choices":[{"text":"another answer"}]}'])
    assert golden.check(backend) == "unverified"
    assert len(steps) == 3


def test_auto_finds_the_task(llama: Path, backend: TransformersBackend) -> None:
    assert task_of(llama) == "generate"
    card = backend.card()
    assert (card.task, card.max_model_len, card.dimensions) == ("generate", 128, None)
    with pytest.raises(RequestError) as caught:
        backend.prepare(Route.EMBEDDINGS, b"{}", False)
    assert caught.value.status == 404


def test_a_model_whose_attention_is_another_is_refused_by_name(tmp_path: Path) -> None:
    folder = build(tmp_path, Gemma2ForCausalLM, Gemma2Config(**small(num_key_value_heads=2, head_dim=8)))
    with pytest.raises(LoadError, match=r"Gemma2ForCausalLM cannot be served .* softcap") as caught:
        loaded(folder)
    assert caught.value.final


def test_a_model_with_another_kind_of_memory_is_refused(tmp_path: Path) -> None:
    config = transformers.BloomConfig(vocab_size=259, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(LoadError, match="BloomForCausalLM cannot be served"):
        loaded(build(tmp_path, transformers.BloomForCausalLM, config))
