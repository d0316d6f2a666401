"""SmolLM2 from its GGUF file: the tokens of plain transformers code, in any company, and a fork that computes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.backends.artifacts import resolve
from engine.backends.gguf_files import as_checkpoint
from engine.backends.transformers import TransformersBackend
from engine.messages import Route
from tests.engine.conftest import SMOLLM2, launch
from tests.engine.test_generate import ask, finish, texts

pytestmark = pytest.mark.timeout(300)
"""The first load on a machine converts the model."""

PROMPTS = ["The capital of France is", "东京是", "🎉🌍🎉🌍", "Once upon a time, in a land far, far away, there lived"]

SCRIPT = """
import os, json
from engine.backends.transformers import TransformersBackend
from tests.engine.conftest import SMOLLM2, launch
from tests.engine.test_generate import ask, finish, texts

backend = TransformersBackend(launch(artifact=SMOLLM2))
backend.load()
threads = len(os.listdir("/proc/self/task"))
reader, writer = os.pipe()
if os.fork() == 0:
    backend.adopt(launch(artifact=SMOLLM2, threads=2, replica="primary/1"))
    backend.warm()
    (text,) = texts(finish(backend, ask(backend, prompt="The capital of France is", max_tokens=3)))
    os.write(writer, text.encode())
    os._exit(0)
os.close(writer)
with open(reader, "rb") as pipe:
    print(threads, pipe.read().decode().split())
"""


@pytest.fixture(scope="module")
def smollm2() -> TransformersBackend:
    backend = TransformersBackend(launch(artifact=SMOLLM2))
    backend.load()
    return backend


def plainly(prompts: list[str], count: int) -> list[str]:
    """The greedy texts of transformers' own `generate`, each prompt alone."""
    folder = as_checkpoint(resolve(SMOLLM2).path, torch.float32)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    made = []
    for prompt in prompts:
        read = tokenizer(prompt, return_tensors="pt")
        tokens = model.generate(**read, max_new_tokens=count, do_sample=False)[0, read["input_ids"].shape[1] :]
        made.append(tokenizer.decode(tokens, skip_special_tokens=True).rstrip("\ufffd"))
    return made


def test_greedy_texts_are_those_of_plain_transformers_code_alone_and_together(smollm2: TransformersBackend) -> None:
    expected = plainly(PROMPTS, 10)
    assert expected[0].startswith(" Paris")
    together = finish(smollm2, *(ask(smollm2, prompt=prompt, max_tokens=10) for prompt in PROMPTS))
    alone = [finish(smollm2, ask(smollm2, prompt=prompt, max_tokens=10))[0] for prompt in PROMPTS]
    assert texts(together) == expected
    assert texts(alone) == expected


def test_a_chat_uses_the_models_template_and_ends_by_itself(smollm2: TransformersBackend) -> None:
    chat = ask(smollm2, Route.CHAT, messages=[{"role": "user", "content": "Answer with one word: yes or no?"}])
    prompt = smollm2._task._tokenizer.decode(list(chat.pending), skip_special_tokens=False)  # type: ignore[attr-defined]
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert prompt.endswith("or no?<|im_end|>\n<|im_start|>assistant\n")


def test_the_card_says_what_was_loaded(smollm2: TransformersBackend) -> None:
    card = smollm2.card()
    assert (card.task, card.max_model_len, card.dtype) == ("generate", 8192, "float32")


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_fork_of_the_loaded_model_generates_with_two_threads() -> None:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=250, env=environ)
    assert done.stdout.startswith("1 ['Paris"), done.stderr
