"""Reading request bodies: what is right is read, and what is wrong is a 400 that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends import requests
from engine.backends.base import RequestError
from engine.backends.requests import parse_chat, parse_classify, parse_completion, parse_embeddings, parse_rerank

Parse = Callable[[bytes], msgspec.Struct]

VALID: dict[Parse, dict[str, Any]] = {
    parse_embeddings: {"input": ["a", "b"], "model": "m", "encoding_format": "float", "dimensions": 8},
    parse_classify: {"input": ["a"], "model": "m"},
    parse_rerank: {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
    parse_completion: {"prompt": "p", "max_tokens": 4, "temperature": 0.5, "stop": ["x"], "seed": 7, "n": 1},
    parse_chat: {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_completion_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
raw_values = st.sampled_from(
    [
        b"NaN",
        b"-Infinity",
        b'"\\ud800"',
        b'"\\udfff x"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"1e999",
        b"9" * 5000,
        b"18446744073709551616",
        b"-9223372036854775809",
        b"[" * 10_000,
        b'{"a":' * 10_000,
        b"",
        b"[[]]",
        b"[[1],[]]",
        b"[-1]",
        b"tru",
    ]
)


@st.composite
def damaged(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """A valid body of which one field, known or new, became any JSON, or what only looks like JSON."""
    field = draw(st.sampled_from([*valid, "user", "logprobs", "tools", "n", "stop", "model", "extra"]))
    value = draw(raw_values | json_values.map(lambda value: json.dumps(value).encode()))
    rest = {name: kept for name, kept in valid.items() if name != field}
    members = [json.dumps(name).encode() + b":" + json.dumps(kept).encode() for name, kept in rest.items()]
    members.insert(draw(st.integers(0, len(members))), json.dumps(field).encode() + b":" + value)
    return b"{" + b",".join(members) + b"}"


def refusal(parse: Parse, body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert caught.value.status == 400
    return caught.value


def parses_or_refuses(parse: Parse, body: bytes) -> None:
    """The promise to every caller: an answer in UTF-8 is possible, or a RequestError."""
    outcome: msgspec.Struct | RequestError
    try:
        outcome = parse(body)
    except RequestError as error:
        outcome = error
    if isinstance(outcome, RequestError):
        assert outcome.status == 400
        assert str(outcome).encode()
    else:
        assert msgspec.json.encode(outcome)


@pytest.mark.parametrize("parse", VALID)
def test_any_bytes_are_read_or_refused(parse: Parse) -> None:
    @settings(max_examples=60, deadline=None)
    @given(body=st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
    def run(body: bytes) -> None:
        parses_or_refuses(parse, body)

    run()


@pytest.mark.parametrize("parse", VALID)
def test_a_damaged_body_is_read_or_refused(parse: Parse) -> None:
    @settings(max_examples=120, deadline=None)
    @given(body=damaged(VALID[parse]))
    def run(body: bytes) -> None:
        parses_or_refuses(parse, body)

    run()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "input"),
        (b'{"input":null}', "input"),
        (b'{"input":[]}', "input"),
        (b'{"input":[[]]}', "input[0]"),
        (b'{"input":{"a":1}}', "input"),
        (b'{"input":["a",1]}', "input"),
        (b'{"input":[1,"a"]}', "input"),
        (b'{"input":[[1],"a"]}', "input"),
        (b'{"input":[[1],["a"]]}', "input[1][0]"),
        (b'{"input":[1.5]}', "input[0]"),
        (b'{"input":[true]}', "input[0]"),
        (b'{"input":[-1]}', "input"),
        (b'{"input":[[5],[7,-1]]}', "input[1]"),
        (b'{"input":[9223372036854775808]}', "input"),
        (b'{"input":[18446744073709551616]}', "input"),
        (b'{"input":"\\ud800"}', "input"),
        (b'{"input":["a","\\udc00\\ud800"]}', "input"),
        (b'{"input":NaN}', "input"),
        (b'{"input":"a","dimensions":Infinity}', "dimensions"),
        (b'{"input":"a","dimensions":0}', "dimensions"),
        (b'{"input":"a","dimensions":"8"}', "dimensions"),
        (b'{"input":"a","encoding_format":"hex"}', "encoding_format"),
        (b'{"input":"a","model":7}', "model"),
        (b'{"input":' + b"[" * 10_000, "input[0][0]"),
    ],
)
def test_a_refusal_names_the_field(body: bytes, param: str) -> None:
    assert refusal(parse_embeddings, body).param == param


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"nonsense", b'{"input":"\xff"}', b'{"x":' + b"[" * 100_000])
def test_what_is_no_object_at_all_is_refused_without_a_field(body: bytes) -> None:
    assert refusal(parse_embeddings, body).param is None


def test_a_very_long_integer_is_refused() -> None:
    assert refusal(parse_embeddings, b'{"input":[' + b"9" * 5000 + b"]}").param == "input[0]"


@pytest.mark.parametrize(
    ("given_input", "read"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_an_input_is_a_text_or_token_ids_or_lists_of_either(given_input: object, read: object) -> None:
    assert parse_embeddings(msgspec.json.encode({"input": given_input})).inputs == read


def test_a_request_has_at_most_2048_inputs() -> None:
    assert len(parse_embeddings(msgspec.json.encode({"input": ["a"] * 2048})).inputs) == 2048
    assert refusal(parse_embeddings, msgspec.json.encode({"input": ["a"] * 2049})).param == "input"
    assert refusal(parse_embeddings, msgspec.json.encode({"input": [[1]] * 2049})).param == "input"


def test_token_ids_may_be_more_than_2048() -> None:
    assert len(parse_embeddings(msgspec.json.encode({"input": [1] * 5000})).inputs[0]) == 5000


def test_unknown_and_null_fields_are_ignored_and_the_last_of_a_repeated_key_wins() -> None:
    nulls = b'"user":null,"dimensions":null,"encoding_format":null'
    body = b'{"input":"a","extra":{"b":[1e999]},' + nulls + b',"input":"b"}'
    assert parse_embeddings(body) == requests.EmbeddingsRequest(inputs=["b"])


def test_token_ids_beyond_the_vocabulary_are_refused_by_place() -> None:
    requests.require_vocabulary([[0, 9], "text"], 10, "input")
    with pytest.raises(RequestError, match="under 10, found 10") as caught:
        requests.require_vocabulary([[1], [3, 10]], 10, "input")
    assert caught.value.param == "input[1]"


def completion(**fields: object) -> bytes:
    return msgspec.json.encode({"prompt": "p"} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"n": 0},
        {"best_of": 2},
        {"logprobs": 0},
        {"logprobs": 5},
        {"echo": True},
        {"suffix": "x"},
        {"logit_bias": {"1": 2}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 1},
        {"max_tokens": 0},
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"seed": 2**63},
        {"prompt": ["a", "b"]},
        {"stream": "yes"},
    ],
)
def test_a_completion_field_that_cannot_be_honoured_is_refused_by_name(fields: dict[str, object]) -> None:
    assert refusal(parse_completion, completion(**fields)).param == next(iter(fields))


def test_completion_fields_that_ask_for_nothing_are_fine() -> None:
    body = completion(n=1, logprobs=None, echo=False, logit_bias={}, presence_penalty=0, suffix=None, stop="")
    assert parse_completion(body).sampling == requests.Sampling()


def test_a_completion_is_read_whole() -> None:
    asked = parse_completion(
        completion(
            model="m",
            prompt=["only"],
            max_tokens=3,
            temperature=0,
            top_p=0.5,
            stop=["a", "b"],
            seed=-5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    sampling = requests.Sampling(max_tokens=3, temperature=0.0, top_p=0.5, stop=("a", "b"), seed=-5)
    assert asked == requests.CompletionRequest("only", sampling, "m", stream=True, include_usage=True)


def chat(*messages: object, **fields: object) -> bytes:
    return msgspec.json.encode({"messages": list(messages)} | fields)


def test_a_chat_is_read_with_its_parts_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat({"role": "system", "content": "s"}, {"role": "user", "content": parts}, {"role": "assistant"})
    read = [(message.role, message.content) for message in parse_chat(body).messages]
    assert read == [("system", "s"), ("user", "a\nb"), ("assistant", "")]


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(), "messages"),
        (chat({"role": "wizard", "content": "x"}), "messages[0].role"),
        (chat({"content": "x"}), "messages[0].role"),
        (chat(USER, {"role": "user", "content": None}), "messages[1].content"),
        (chat({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0]"),
        (chat(USER, logprobs=True), "logprobs"),
        (chat(USER, top_logprobs=3), "top_logprobs"),
        (chat(USER, tools=[{"type": "function"}]), "tools"),
        (chat(USER, response_format={"type": "json_object"}), "response_format"),
        (chat(USER, n=3), "n"),
    ],
)
def test_a_chat_refusal_names_the_field(body: bytes, param: str) -> None:
    assert refusal(parse_chat, body).param == param


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert parse_chat(chat(USER, max_tokens=5, max_completion_tokens=7)).sampling.max_tokens == 7
    assert parse_chat(chat(USER, max_tokens=5, logprobs=False)).sampling.max_tokens == 5


def test_rerank_takes_texts_and_objects_and_top_n_zero_is_all() -> None:
    asked = parse_rerank(b'{"query":"q","documents":["a",{"text":"b"}],"top_n":0}')
    assert asked == requests.RerankRequest("q", ["a", "b"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"documents":["a"]}', "query"),
        (b'{"query":"q","documents":[]}', "documents"),
        (b'{"query":"q","documents":[{"body":"b"}]}', "documents[0].text"),
        (b'{"query":"q","documents":["a"],"top_n":-1}', "top_n"),
    ],
)
def test_a_rerank_refusal_names_the_field(body: bytes, param: str) -> None:
    assert refusal(parse_rerank, body).param == param
