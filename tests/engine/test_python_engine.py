"""The backend of a user's class: which route it answers, what outputs become, and that its errors stay its own."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from engine import golden
from engine.backends import answers
from engine.backends.base import Generation, Job, LoadError, RequestError, error_body
from engine.backends.python import PythonBackend, UserCodeError
from engine.calibration import Pass
from engine.errors import words_of
from engine.messages import LaunchSpec, Route

MODULE = "a_users_module"


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that the user's class is imported from."""
    made = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, made)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return made


def backend(kind: type, task: str = "auto", **options: Any) -> PythonBackend:
    sys.modules[MODULE].Users = kind  # type: ignore[attr-defined]
    spec = LaunchSpec(
        endpoint="",
        identity=b"",
        supervisor_pid=0,
        replica="users/0",
        incarnation=1,
        artifact=f"{MODULE}:Users",
        device="cpu",
        threads=2,
        engine="python",
        task=task,
        options=options,
    )
    made = PythonBackend(spec)
    made.load()
    made.warm()
    return made


def ask(model: PythonBackend, route: Route, **body: Any) -> Any:
    """The answer of one request, computed alone."""
    made = model.prepare(route, json.dumps(body).encode(), False)
    if isinstance(made, Job):
        return json.loads(made.answer(model.forward(made.rows)))
    run_to_its_end(model, made)
    return json.loads(made.answer())


def run_to_its_end(model: PythonBackend, made: Generation) -> bytes:
    """What it streamed. Raises what the class raised."""
    data = b""
    while not made.done:
        model.step([made])
        data += made.take() or b""
    model.release(made)
    if made.error is not None:
        raise made.error
    return data


def events(model: PythonBackend, **body: Any) -> list[Any]:
    """The data of all events of a streamed completion."""
    made = model.prepare(Route.COMPLETIONS, json.dumps({"prompt": "x", **body}).encode(), True)
    assert isinstance(made, Generation)
    data = run_to_its_end(model, made)
    return [part.removeprefix("data: ") for part in data.decode().split("\n\n") if part]


def text_of(parts: list[Any]) -> str:
    return "".join(json.loads(part)["choices"][0]["text"] for part in parts[:-1])


class Lengths:
    task = "embed"

    def load(self, args: dict[str, Any]) -> None:
        self.args = args

    def forward(self, rows: list[Any]) -> list[list[float]]:
        return [[float(len(row)), 1.0] for row in rows]


class Words:
    def stream(self, row: dict[str, Any]) -> Iterator[str]:
        for word in row["prompt"].split():
            if word == "bad":
                raise ValueError("a bad word")
            yield word + " "


def test_where_no_limits_are_set_the_defaults_hold_and_are_not_called_calibrated() -> None:
    model = backend(Lengths)
    model.calibrate([Pass(40, 1.0)])
    card = model.card()
    assert (card.max_num_seqs, card.max_num_batched_tokens, card.calibrated) == (32, 8192, [])


def test_load_gets_the_engine_arguments_and_where_to_compute() -> None:
    model = backend(Lengths, size=3, forkable=True)
    assert model._user.args == {"device": "cpu", "threads": 2, "size": 3}


def test_embeddings_are_lists_of_numbers_arrays_too() -> None:
    numpy = pytest.importorskip("numpy")

    class Arrays(Lengths):
        def forward(self, rows: list[Any]) -> Any:
            return numpy.array(super().forward(rows), dtype=numpy.float32)

    class Scalars(Lengths):
        def forward(self, rows: list[Any]) -> Any:
            return [[numpy.float32(number) for number in row] for row in super().forward(rows)]

    for kind in (Lengths, Arrays, Scalars):
        answer = ask(backend(kind), Route.EMBEDDINGS, input=["a", "abc", "ab"])
        assert [item["embedding"] for item in answer["data"]] == [[1.0, 1.0], [3.0, 1.0], [2.0, 1.0]]
        assert answer["model"] == "users"


def test_classes_are_a_dict_of_probabilities_or_a_list_with_labels() -> None:
    class ByName:
        task = "classify"

        def forward(self, rows: list[str]) -> list[dict[str, float]]:
            return [{"no": 0.4, "yes": 0.6} if row == "a" else {"yes": 0.1, "no": 0.9} for row in rows]

    class InOrder(ByName):
        labels = ("no", "yes")

        def forward(self, rows: list[str]) -> Any:
            return [[0.4, 0.6] if row == "a" else [0.9, 0.1] for row in rows]

    for kind in (ByName, InOrder):
        data = ask(backend(kind), Route.CLASSIFY, input=["a", "b"])["data"]
        assert [(item["label"], item["probs"]) for item in data] == [("yes", [0.4, 0.6]), ("no", [0.9, 0.1])]


def test_rerank_rows_are_pairs_and_outputs_scores() -> None:
    class Overlap:
        task = "rerank"

        def forward(self, rows: list[dict[str, str]]) -> list[float]:
            return [float(len(set(row["query"]) & set(row["document"]))) for row in rows]

    results = ask(backend(Overlap), Route.RERANK, query="abc", documents=["x", "abc", "ab"])["results"]
    assert [(item["index"], item["relevance_score"]) for item in results] == [(1, 3.0), (2, 2.0), (0, 0.0)]


def test_what_is_streamed_joined_is_the_unstreamed_text() -> None:
    model = backend(Words)
    parts = events(model, prompt="ein größeres 🙂 日本")
    assert parts[-1] == "[DONE]" and text_of(parts) == "ein größeres 🙂 日本 "
    whole = ask(model, Route.COMPLETIONS, prompt="ein größeres 🙂 日本")["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == (text_of(parts), "stop")


def test_chat_gives_its_last_message_as_the_prompt_and_all_of_them_as_messages() -> None:
    class Counts:
        task = "generate"

        def forward(self, rows: list[dict[str, Any]]) -> list[str]:
            return [f"{row['prompt']} after {len(row['messages'])}, {row['max_tokens']} at most" for row in rows]

    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = ask(backend(Counts), Route.CHAT, messages=messages, max_tokens=9)
    assert answer["choices"][0]["message"]["content"] == "hi after 2, 9 at most"
    assert text_of(events(backend(Counts), prompt="p")) == "p after 1, None at most"


@pytest.mark.parametrize(
    ("limits", "text", "reason"),
    [
        ({"max_tokens": 2}, "one two ", "length"),
        ({"stop": "o thr"}, "one tw", "stop"),
        ({"stop": ["four", "e f"]}, "one two thre", "stop"),
        ({"stop": "nowhere"}, "one two three four ", "stop"),
    ],
)
def test_max_tokens_and_stop_cut_the_text_also_across_pieces(limits: dict[str, Any], text: str, reason: str) -> None:
    model = backend(Words)
    parts = events(model, prompt="one two three four", **limits)
    whole = ask(model, Route.COMPLETIONS, prompt="one two three four", **limits)["choices"][0]
    assert text_of(parts) == whole["text"] == text
    assert json.loads(parts[-2])["choices"][0]["finish_reason"] == whole["finish_reason"] == reason


def test_a_generator_that_fails_takes_no_other_along() -> None:
    model = backend(Words)
    made = [model.prepare(Route.COMPLETIONS, json.dumps({"prompt": p}).encode(), False) for p in ("a b", "a bad", "c")]
    running = [one for one in made if isinstance(one, Generation)]
    while not all(one.done for one in running):
        model.step([one for one in running if not one.done])
    assert [str(one.error) for one in running] == ["None", "a bad word", "None"]
    texts = [json.loads(one.answer())["choices"][0]["text"] for one in running if one.error is None]
    assert texts == ["a b ", "c "]


def test_a_caller_that_leaves_closes_the_generator() -> None:
    closed = []

    class Endless:
        def stream(self, row: dict[str, Any]) -> Iterator[str]:
            try:
                while True:
                    yield "on "
            finally:
                closed.append(row["prompt"])

    model = backend(Endless)
    made = model.prepare(Route.COMPLETIONS, b'{"prompt": "x"}', True)
    assert isinstance(made, Generation)
    model.step([made])
    model.release(made)
    assert closed == ["x"]
    assert ask(model, Route.COMPLETIONS, prompt="y", max_tokens=3)["choices"][0]["text"] == "on on on "
    assert closed == ["x", "y"]


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        (None, "expected forward to return a list of 1 outputs, one a row; found NoneType"),
        ([[1.0], [2.0]], "found 2 outputs"),
        (["text"], "expected an embedding: a list of numbers; found 'text'"),
        ([[]], "expected an embedding: a list of numbers; found \\[\\]"),
        ([[10**400]], "too large to convert to float"),
        ([[1.0, "x"]], "expected an embedding"),
        ([[float("nan")]], "the model gave NaN or infinity"),
        ([[float("inf"), 1.0]], "the model gave NaN or infinity"),
    ],
)
def test_outputs_that_are_none_are_an_error_that_says_so(outputs: Any, sentence: str) -> None:
    class Wrong(Lengths):
        def forward(self, rows: list[Any]) -> Any:
            return outputs

    with pytest.raises((UserCodeError, answers.OutputError, OverflowError), match=sentence):
        ask(backend(Wrong), Route.EMBEDDINGS, input="x")


@pytest.mark.parametrize("output", [{}, [], 3, None, "text"])
def test_classes_that_are_none_are_an_error_that_says_so(output: Any) -> None:
    class Wrong:
        task = "classify"

        def forward(self, rows: list[Any]) -> Any:
            return [output]

    with pytest.raises(UserCodeError, match="expected a probability of each label, at least one; found"):
        ask(backend(Wrong), Route.CLASSIFY, input="x")


class Rude(BaseException):
    """Wants to get past `except Exception`."""


@pytest.mark.parametrize("error", [SystemExit("enough"), KeyboardInterrupt("enough"), Rude("enough")])
def test_leaving_the_process_is_an_error_like_any_other(error: BaseException) -> None:
    class Leaves(Lengths):
        def forward(self, rows: list[Any]) -> Any:
            raise error

    class LeavesLate:
        def stream(self, row: dict[str, Any]) -> Iterator[str]:
            yield "a "
            raise error

    with pytest.raises(UserCodeError, match=f"the class raised {type(error).__name__}: enough"):
        ask(backend(Leaves), Route.EMBEDDINGS, input="x")
    with pytest.raises(UserCodeError, match=f"the class raised {type(error).__name__}: enough"):
        ask(backend(LeavesLate), Route.COMPLETIONS, prompt="x")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("a reason"), "ValueError: a reason"),
        (MemoryError(), "MemoryError"),
        (ValueError("half \ud800 a pair"), "ValueError: half ? a pair"),
        (Unspeakable(), "Unspeakable: (its message cannot be had: ValueError)"),
        (ValueError("x" * 10_000_000), "ValueError: " + "x" * 1988 + "…"),
    ],
)
def test_any_error_has_words_that_can_be_sent(error: Exception, words: str) -> None:
    assert words_of(error) == words
    assert json.loads(error_body(words_of(error), kind="k", code="c"))["error"]["message"] == words


def test_a_route_of_another_task_is_404_and_named() -> None:
    with pytest.raises(RequestError, match="task is embed: it answers /v1/embeddings") as caught:
        backend(Lengths).prepare(Route.CHAT, b"{}", False)
    assert caught.value.status == 404


def test_what_cannot_be_served_is_said_at_the_start() -> None:
    class NoTask:
        def forward(self, rows: list[Any]) -> Any:
            """Says not what it is for."""

    class NoMethod:
        task = "embed"

    for kind, sentence in ((NoTask, "`task` to be one of embed, classify"), (NoMethod, "a method forward")):
        with pytest.raises(LoadError, match=sentence) as caught:
            backend(kind)
        assert caught.value.final
    assert backend(NoTask, task="embed").card().task == "embed"


def test_a_class_that_is_not_there_is_said_at_the_start() -> None:
    spec = LaunchSpec(
        endpoint="",
        identity=b"",
        supervisor_pid=0,
        replica="users/0",
        incarnation=1,
        artifact="no_such_module_of_yours:Users",
        device="cpu",
        threads=1,
    )
    with pytest.raises(LoadError, match="cannot be imported: ModuleNotFoundError") as caught:
        PythonBackend(spec).load()
    assert caught.value.final


@pytest.mark.parametrize("steady", [True, False])
def test_the_example_is_the_golden_input(steady: bool) -> None:
    class Noisy(Lengths):
        example = "hello"
        calls = 0

        def forward(self, rows: list[Any]) -> Any:
            self.calls += not steady
            return [[float(self.calls)] for _ in rows]

    if steady:
        assert golden.check(backend(Noisy)) == "unverified"
    else:
        with pytest.raises(LoadError, match="two runs over the same inputs disagree"):
            golden.check(backend(Noisy))
