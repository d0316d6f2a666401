"""Names of models in foreign bodies, and foreign errors: by example and at random."""

from __future__ import annotations

import itertools
import json
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.links import rewrite
from supervisor.links.rewrite import EXCERPT_LENGTH, Broken, EventRenamer, error_body, to_caller, to_server

NAMES = st.text(min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["model", "input", "messages", "Model", "", "é"]) | st.text(max_size=5)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)


def written(value: Any, indent: int | None, ascii_only: bool) -> bytes:
    """A JSON text in one of its many forms."""
    return json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


def raw_values(body: bytes) -> dict[str, bytes]:
    """The bytes of each value at the top."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return {key: bytes(value) for key, value in fields.items()}


def without_model(body: bytes) -> dict[str, bytes]:
    values = raw_values(body)
    values.pop("model", None)
    return values


FORMS = st.tuples(st.sampled_from([None, 0, 2]), st.booleans())


# ------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("body", "sent", "caller"),
    [
        (b'{"model":"a","input":"x"}', b'{"model":"served","input":"x"}', "a"),
        (b'{"input":"x"}', b'{"input":"x","model":"served"}', None),
        (b'{"model":null}', b'{"model":"served"}', None),
        (b'{"model":"served" }', b'{"model":"served" }', "served"),
        (b'{"m\\u006fdel":"a"}', b'{"model":"served"}', "a"),
        (b'{"model":"a","model":"b"}', b'{"model":"served"}', "b"),
        (b'{"x":{"model": "a", "n": 1.0E+2 }}', b'{"x":{"model": "a", "n": 1.0E+2 },"model":"served"}', None),
        (b'{"x":123456789012345678901234567890}', b'{"x":123456789012345678901234567890,"model":"served"}', None),
    ],
)
def test_a_request_gets_the_served_name(body: bytes, sent: bytes, caller: str | None) -> None:
    assert to_server(body, "served") == (sent, caller)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"model"', b"{", b'{"model":7}', b'{"model":"\\ud800"}', b"\xff", b"[" * 100_000]
)
def test_a_body_that_cannot_be_read_goes_as_it_is(body: bytes) -> None:
    assert to_server(body, "served") == (body, None)


@given(OBJECTS, NAMES, FORMS)
def test_only_the_model_of_a_request_is_touched(fields: dict[str, Any], served: str, form: tuple[Any, bool]) -> None:
    body = written(fields, *form)
    sent, caller = to_server(body, served)
    named = fields.get("model")
    if named is not None and not isinstance(named, str):
        assert (sent, caller) == (body, None)
        return
    assert caller == named
    assert json.loads(sent)["model"] == served
    assert without_model(sent) == without_model(body)
    assert list(json.loads(sent)) == list({**fields, "model": served})
    if named == served:
        assert sent is body


# -------------------------------------------------------------------------------------------------------- answers


@given(OBJECTS, NAMES, NAMES, FORMS)
def test_only_the_served_name_of_an_answer_is_turned_back(
    fields: dict[str, Any], served: str, caller: str, form: tuple[Any, bool]
) -> None:
    body = written(fields, *form)
    turned = to_caller(body, served, caller)
    if fields.get("model") != served or served == caller:
        assert turned is body
    named = written({**fields, "model": served}, *form)
    turned = to_caller(named, served, caller)
    assert json.loads(turned)["model"] == caller
    assert without_model(turned) == without_model(named)


@given(OBJECTS, NAMES, NAMES, FORMS)
def test_there_and_back_is_the_same_request(
    fields: dict[str, Any], served: str, caller: str, form: tuple[Any, bool]
) -> None:
    body = written({**fields, "model": caller}, *form)
    sent, used = to_server(body, served)
    assert used == caller
    assert json.loads(to_caller(sent, served, used)) == json.loads(body)


@pytest.mark.parametrize("body", [b"[1]", b'"served"', b"7", b'{"model":7}', b'{"id":"served"}', b" null "])
def test_an_answer_without_a_name_passes(body: bytes) -> None:
    assert to_caller(body, "served", "caller") is body


@pytest.mark.parametrize("body", [b"", b"{", b'{"model":"served"', b"[1,", b"<html>", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_no_json_is_broken(body: bytes) -> None:
    with pytest.raises(Broken):
        to_caller(body, "served", "caller")
    assert to_caller(body, "same", "same") is body


# --------------------------------------------------------------------------------------------------------- events


def fed(stream: bytes, cuts: list[int], served: str = "served", caller: str = "caller") -> bytes:
    """A stream that came in pieces, cut at these places."""
    renamer = EventRenamer(served, caller)
    at = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[a:b] for a, b in itertools.pairwise(at)]
    return b"".join(map(renamer.feed, pieces)) + renamer.flush()


ENDINGS = st.sampled_from(["\n", "\r\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    """Events of one or several data lines, with comments, ids and `[DONE]`, and what a reader makes of them."""
    text, meant = "", []
    for value in draw(st.lists(OBJECTS | st.just("[DONE]") | st.none(), max_size=5)):
        ending = draw(ENDINGS)
        if value is None:
            text += f": ping{ending}{ending}"
            continue
        if isinstance(value, dict) and draw(st.booleans()):
            value = {**value, "model": draw(st.sampled_from(["served", "other"]))}
        data = value if value == "[DONE]" else json.dumps(value, indent=draw(st.sampled_from([None, 1])))
        meant.append(value)
        head = draw(st.sampled_from(["", f"id: 7{ending}", f"event: x{ending}"]))
        space = draw(st.sampled_from(["", " "]))
        lines = "".join(f"data:{space}{line}{ending}" for line in data.split("\n"))
        text += head + lines + ending
    return text.encode(), meant


def read(stream: bytes) -> list[Any]:
    """What a reader of server-sent events makes of a stream."""
    meant = []
    for frame in stream.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")]
        if lines:
            data = b"\n".join(lines)
            meant.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return meant


@given(streams(), st.lists(st.integers(0, 400), max_size=12))
def test_a_stream_says_the_same_however_it_is_cut_and_calls_the_model_by_the_callers_name(
    stream: tuple[bytes, list[Any]], cuts: list[int]
) -> None:
    data, meant = stream
    turned = fed(data, cuts)
    assert turned == fed(data, [])
    assert read(turned) == [
        {**value, "model": "caller"} if isinstance(value, dict) and value.get("model") == "served" else value
        for value in meant
    ]
    assert fed(data, cuts, "same", "same") == data
    assert fed(data, cuts, "nobody", "caller") == data


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_bytes_that_are_no_events_pass_as_they_are(data: bytes, cuts: list[int]) -> None:
    assert fed(data, cuts) == data


def test_an_event_leaves_as_soon_as_it_is_whole_and_not_before() -> None:
    renamer = EventRenamer("served", "caller")
    assert renamer.feed(b'data: {"model":"ser') == b""
    assert renamer.feed(b'ved"}\n') == b""
    assert renamer.feed(b"\ndata: [DO") == b'data: {"model":"caller"}\n\n'
    assert renamer.feed(b"NE]\r\n\r") == b""
    assert renamer.feed(b"\n") == b"data: [DONE]\r\n\r\n"
    assert renamer.flush() == b""


def test_an_event_without_end_is_broken_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "MAX_BODY_BYTES", 100)
    renamer = EventRenamer("served", "caller")
    assert renamer.feed(b"x" * 100) == b""
    with pytest.raises(Broken):
        renamer.feed(b"x")


# --------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("body", [b'{"detail": "x"}', b'{"error":{}}', b" [1] ", b'"no"'])
def test_an_error_in_json_is_the_servers_own(body: bytes) -> None:
    assert error_body(500, body) is body


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, b"slow down", {"type": "rate_limit_error", "code": "overloaded"}),
        (404, b"", {"type": "invalid_request_error", "code": "not_found"}),
        (400, b"\xff\x00<b>bad</b>", {"type": "invalid_request_error", "code": "invalid_request"}),
        (503, b"<html>", {"type": "server_error", "code": "unavailable"}),
        (599, b"{", {"type": "server_error", "code": "internal_error"}),
    ],
)
def test_any_other_error_gets_our_shape(status: int, body: bytes, error: dict[str, str]) -> None:
    shaped = json.loads(error_body(status, body))["error"]
    assert shaped.items() >= error.items()
    assert set(shaped) == {"message", "type", "param", "code"}
    assert str(status) in shaped["message"]


@given(st.binary(max_size=300), st.integers(400, 599))
def test_every_error_is_json_and_short(body: bytes, status: int) -> None:
    shaped = error_body(status, body)
    if shaped is not body:
        message = json.loads(shaped)["error"]["message"]
        assert len(message) < EXCERPT_LENGTH + 100
        assert not any(unicodedata.category(letter) == "Cc" for letter in message)
