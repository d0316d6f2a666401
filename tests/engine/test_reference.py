"""Known answers in a file: a replica gives them, or is never ready (spec 5, the golden check's reference)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import golden, reference, reference_writer
from engine.backends.artifacts import resolve, weights_digest
from engine.backends.base import LoadError
from engine.backends.transformers import TransformersBackend
from tests.engine.conftest import MINILM, launch
from tests.engine.test_generate import llama, loaded
from tests.engine.test_heads import build

__all__ = ["llama"]

Change = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def known(minilm: TransformersBackend) -> list[dict[str, Any]]:
    """What `stoker golden` writes of MiniLM, in this process."""
    bodies = minilm.golden()
    answers = golden.answers(minilm, bodies)
    return [{"request": json.loads(body), "answer": answer} for body, answer in zip(bodies, answers, strict=True)]


def written(file: Path, lines: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture
def checked(
    minilm: TransformersBackend, known: list[dict[str, Any]], tmp_path: Path
) -> Iterator[Callable[[Change], str]]:
    """The verdict over MiniLM with its known answers changed; read as `load` reads them."""

    def verdict(change: Change) -> str:
        lines: list[dict[str, Any]] = json.loads(json.dumps(known))
        change(lines)
        minilm._known = reference.read(written(tmp_path / "golden.jsonl", lines))
        return golden.check(minilm)

    yield verdict
    minilm._known = ()


def shift(by: float) -> Change:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[0]["answer"]["data"][1]["embedding"][7] += by

    return change


def test_minilm_with_its_known_answers_is_verified(checked: Callable[[Change], str]) -> None:
    assert checked(lambda lines: None) == "verified"
    assert checked(shift(5e-4)) == "verified", "within 1e-3"


def test_a_changed_number_is_final_and_says_where(checked: Callable[[Change], str]) -> None:
    with pytest.raises(LoadError, match=r"not the known ones: answers\[0\]\.data\[1\].embedding: .* 0.002") as caught:
        checked(shift(2e-3))
    assert caught.value.final


def test_another_host_may_call_the_deployment_otherwise_and_ask_what_it_likes(checked: Callable[[Change], str]) -> None:
    def other(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["answer"]["model"] = "elsewhere"
        del lines[0]

    assert checked(other) == "verified"


def test_a_request_that_the_model_cannot_answer_is_final(checked: Callable[[Change], str]) -> None:
    with pytest.raises(LoadError, match=r"golden check: RequestError: .*input") as caught:
        checked(lambda lines: lines[0].update(request={"query": "none"}))
    assert caught.value.final


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found an empty file; write one with: stoker golden"),
        ("\n\n", "found an empty file"),
        ('{"request": {}, "answer": {}}\n{"request": {}\n', "line 2: expected {"),
        ('\n{"request": {}}\n', "line 2: expected {.*missing required field `answer`"),
        ('{"request": {}, "answer": []}\n', "line 1: .*Expected `object`, got `array`"),
        ('{"request": {}, "answer": {}, "more": 1}\n', "line 1: .*unknown field `more`"),
        ("\udcff\n", "line 1: expected"),
    ],
)
def test_a_bad_file_is_refused_for_good_with_its_name_and_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "golden.jsonl"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(LoadError, match=says) as caught:
        reference.read(file)
    assert caught.value.final and str(file) in str(caught.value)


def test_the_file_lies_beside_the_artifact_or_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("")
    assert reference.find(tmp_path, None) is None is reference.find(tmp_path / "model.gguf", None)
    (tmp_path / "stoker-golden.jsonl").write_text("")
    (tmp_path / "model.gguf.stoker-golden.jsonl").write_text("")
    (tmp_path / "other.jsonl").write_text("")
    assert reference.find(tmp_path, None) == tmp_path / "stoker-golden.jsonl"
    assert reference.find(tmp_path / "model.gguf", None) == tmp_path / "model.gguf.stoker-golden.jsonl"
    assert reference.find(tmp_path, str(tmp_path / "other.jsonl")) == tmp_path / "other.jsonl"
    assert reference.find(tmp_path, "none") is None
    with pytest.raises(LoadError, match=r"engine_args.golden: expected a file, found none at /") as caught:
        reference.find(tmp_path, "gone.jsonl")
    assert caught.value.final


def test_what_is_written_of_a_small_classifier_verifies_it_and_not_another_one(tmp_path: Path) -> None:
    folder = build(tmp_path / "model", "bert", ["x", "y"])
    before = weights_digest(folder)
    file = folder / "stoker-golden.jsonl"
    file.write_text("not looked at while a new one is written\n")
    file.write_bytes(b"".join(reference_writer.lines_of(launch(artifact=str(folder)))))
    assert weights_digest(folder) == before, "it is no part of the model"
    backend = loaded(folder)
    assert golden.check(backend) == "verified"
    other = build(tmp_path / "other", "bert", ["x", "y"], initializer_range=1.0, layer_norm_eps=0.5)
    backend = loaded(other, options={"golden": str(file)})
    with pytest.raises(LoadError, match="not the known ones"):
        golden.check(backend)


def test_a_model_that_writes_is_verified_too_with_one_forward_after_the_rehearsal(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list(reference_writer.lines_of(launch(artifact=str(llama))))
    file = tmp_path / "golden.jsonl"
    file.write_bytes(b"".join(lines))
    backend = loaded(llama, options={"golden": str(file)})
    steps: list[int] = []
    step = backend.step
    monkeypatch.setattr(backend, "step", lambda generations: (steps.append(1), step(generations)))
    assert golden.check(backend) == "verified" and len(steps) == 1
    example = json.loads(lines[0])
    example["answer"]["choices"][0]["text"] += "!"
    backend = loaded(llama, options={"golden": str(written(file, [example]))})
    with pytest.raises(LoadError, match=r"not the known ones: answers\[0\]\.choices\[0\]\.text"):
        golden.check(backend)
    example["request"] = {"prompt": [10**6]}
    with pytest.raises(LoadError, match=r"golden check: prompt.*token ids under 259"):
        loaded(llama, options={"golden": str(written(file, [example]))})


def test_an_engine_without_known_answers_says_so() -> None:
    with pytest.raises(LoadError, match="engine stub takes no known answers"):
        next(reference_writer.lines_of(launch(engine="stub", artifact="stub")))


def test_the_models_own_files_are_never_written_to() -> None:
    assert not (resolve(MINILM).path / reference.BESIDE).exists()
