"""Stoker's edits: what was asked is there, everything else is byte for byte as it was (spec 3)."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config.load import parse_config
from supervisor.config.problems import ConfigError
from supervisor.config.schema import Deployment, Placement
from supervisor.config.write_back import CannotEdit, new_document, set_artifact, set_placements

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def on(*devices: str) -> tuple[Placement, ...]:
    return tuple(Placement(device=device) for device in devices)


def document(body: str, indent: int = 6) -> str:
    """One deployment `p` of these lines, something before it and something behind it."""
    lines = "\n".join(" " * (indent + 2) + line if line else line for line in body.strip("\n").split("\n"))
    head = f"# my models\nglobal:\n  model_catalog:\n    deployments:\n{' ' * indent}p:   # the one\n"
    return f"{head}{lines}\n{' ' * indent}q: {{artifact: stub}}\nstoker: {{ name: 'x' }}   # end\n"


def deployment(text: str, name: str = "p") -> Deployment:
    return parse_config(text, "x").config.deployments[name]


def resized(body: str, *devices: str) -> str:
    """The body after the edit; all around it must be untouched."""
    before = document(body)
    after = set_placements(before, "p", on(*devices))
    assert deployment(after).replicas == on(*devices)
    head, tail = before.split(body.strip("\n").split("\n")[0])[0], before[before.index("      q:") :]
    assert after.startswith(head) and after.endswith(tail)
    inside = after[len(head) - 8 : len(after) - len(tail)]
    return "\n".join(line[8:] for line in inside.rstrip("\n").split("\n"))


# -------------------------------------------------------------------------------- block lists


BLOCK = """
artifact: owner/name   # which
replicas:   # where
  # the first
  - device: cuda:0   # left
  -   device: 'cuda:1' # right
  # behind
timeout_ms: 5
"""


def test_growing_a_block_list_appends_in_its_style() -> None:
    assert resized(BLOCK, "cuda:0", "cuda:1", "cuda:2") == BLOCK.strip("\n").replace(
        "# right\n", "# right\n  -   device: cuda:2\n"
    )


def test_a_replica_like_one_that_is_there_is_written_like_that_one() -> None:
    assert resized(BLOCK, "cuda:0", "cuda:1", "cuda:1") == BLOCK.strip("\n").replace(
        "# right\n", "# right\n  -   device: 'cuda:1'\n"
    )


def test_shrinking_a_block_list_takes_the_last_entries_and_keeps_comments_of_the_others() -> None:
    assert resized(BLOCK, "cuda:0") == BLOCK.strip("\n").replace("  -   device: 'cuda:1' # right\n", "")


def test_changing_an_entry_keeps_its_comment_and_its_quotes() -> None:
    after = BLOCK.strip("\n").replace("cuda:0", "cuda:2").replace("cuda:1", "cuda:3")
    assert resized(BLOCK, "cuda:2", "cuda:3") == after


def test_no_change_is_no_edit() -> None:
    text = document(BLOCK)
    assert set_placements(text, "p", on("cuda:0", "cuda:1")) is text


def test_a_block_list_of_flow_entries_grows_by_flow_entries() -> None:
    body = "artifact: stub\nreplicas:\n- {device: cpu}  # a\n- { device: cpu }"
    assert resized(body, "cpu", "cpu", "cpu") == body + "\n- {device: cpu}"


def test_a_list_at_the_indentation_of_its_key_keeps_it() -> None:
    body = "replicas:\n- device: cpu\n- device: cpu\nartifact: stub"
    assert resized(body, "cpu", "cpu", "cpu") == body.replace("\nartifact", "\n- device: cpu\nartifact")


def test_entries_of_several_lines_are_cut_whole() -> None:
    body = """
artifact: stub
replicas:
  -
    # on the processor
    device: cpu
  - # alone
    device:
      cuda:1   # far
    # end of it
retries: 0
"""
    assert resized(body, "cpu") == body.strip("\n").replace("  - # alone\n    device:\n      cuda:1   # far\n", "")


def test_an_entry_on_auto_is_given_a_device() -> None:
    assert resized("artifact: stub\nreplicas:\n  - {}\n  -", "cpu", "cuda:1") == (
        "artifact: stub\nreplicas:\n  - {device: cpu}\n  - {device: cuda:1}"
    )


def test_attached_entries_are_kept_and_can_be_added() -> None:
    text = document(
        "artifact: stub\nreplicas:\n  - device: cpu\n  - endpoint: http://a   # at\n    model: m # its name"
    )
    two = deployment(text).replicas
    three = (*two, Placement(endpoint="http://b:80", model="big"))
    after = set_placements(text, "p", three)
    assert deployment(after).replicas == three
    assert after == text.replace(
        "# its name\n", "# its name\n          - endpoint: http://b:80\n            model: big\n"
    )
    assert set_placements(after, "p", two) == text


# -------------------------------------------------------------------------------- flow lists


def test_a_flow_list_grows_and_shrinks_on_its_line() -> None:
    body = "artifact: stub\nreplicas: [{device: cpu}, {device: cpu}]   # two"
    three = resized(body, "cpu", "cpu", "cpu")
    assert three == "artifact: stub\nreplicas: [{device: cpu}, {device: cpu}, {device: cpu}]   # two"
    assert resized(three, "cpu", "cpu") == body
    assert resized(three, "cpu") == "artifact: stub\nreplicas: [{device: cpu}]   # two"


def test_a_flow_list_with_a_comma_at_its_end_keeps_it() -> None:
    body = "artifact: stub\nreplicas: [ {device: cpu}, ]"
    assert resized(body, "cpu", "cpu") == "artifact: stub\nreplicas: [ {device: cpu}, {device: cpu}, ]"


@pytest.mark.parametrize("comma", ["", ","])
def test_a_flow_list_over_several_lines_grows_by_lines(comma: str) -> None:
    body = f"artifact: stub\nreplicas: [\n  {{device: cpu}},  # a\n  {{device: cpu}}{comma}  # b\n]"
    after = resized(body, "cpu", "cpu", "cuda:1", "cuda:2")
    assert after == (
        "artifact: stub\nreplicas: [\n  {device: cpu},  # a\n  {device: cpu},  # b\n"
        f"  {{device: cuda:1}},\n  {{device: cuda:2}}{comma}\n]"
    )
    assert resized(after, "cpu", "cpu") == body


def test_a_closing_bracket_behind_the_last_entry_stays_there() -> None:
    body = "artifact: stub\nreplicas: [{device: cpu},  # a\n           {device: cpu}]  # b"
    assert resized(body, "cpu", "cpu", "cpu") == body.replace("}]", "},\n           {device: cpu}]")
    assert resized(body, "cpu") == "artifact: stub\nreplicas: [{device: cpu}  # a\n           ]  # b"


def test_commas_at_the_beginning_of_lines_are_understood() -> None:
    lines = ["artifact: stub", "replicas: [ {device: cpu}"]
    lines += ["          , {device: cpu}  # b", "          , {device: cpu}", "          ]"]
    body = "\n".join(lines)
    assert resized(body, "cpu") == "artifact: stub\nreplicas: [ {device: cpu}\n          ]"
    assert resized(body, "cpu", "cpu") == body.replace("          , {device: cpu}\n", "")


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("place", [{"device": "cpu"}, {"replicas": [{"device": "cpu"}] * 2}, {}])
def test_a_config_in_json_stays_json(indent: int | None, place: dict[str, object]) -> None:
    one = {"artifact": "a/b", "revision": COMMIT, **place, "retries": 2}
    text = json.dumps({"global": {"model_catalog": {"deployments": {"p": one}}}}, indent=indent)
    for devices in (["cpu"], ["cuda:1", "cpu", "cpu"]):
        after = set_artifact(set_placements(text, "p", on(*devices)), "p", "c/d")
        said = json.loads(after)["global"]["model_catalog"]["deployments"]["p"]
        assert said["artifact"] == "c/d" and "revision" not in said and said["retries"] == 2


# -------------------------------------------------------------------------------- the shorthand


def test_a_single_device_is_changed_in_place() -> None:
    assert resized("device: 'cpu'  # here\nartifact: stub", "cuda:0") == "device: 'cuda:0'  # here\nartifact: stub"


def test_a_single_device_becomes_replicas_when_there_are_more() -> None:
    body = "artifact: stub\ndevice: cpu   # the small one\nretries: 0"
    assert resized(body, "cpu", "cpu") == (
        "artifact: stub\nreplicas:   # the small one\n  - {device: cpu}\n  - {device: cpu}\nretries: 0"
    )


def test_a_deployment_without_a_place_gets_one_behind_its_artifact() -> None:
    body = "# first\nartifact: stub   # nothing\nretries: 0"
    assert resized(body, "cpu") == "# first\nartifact: stub   # nothing\ndevice: cpu\nretries: 0"
    assert resized(body, "cpu", "cpu") == (
        "# first\nartifact: stub   # nothing\nreplicas:\n  - {device: cpu}\n  - {device: cpu}\nretries: 0"
    )


def test_a_deployment_in_braces_gets_its_replicas_within_them() -> None:
    text = document("").replace("p:   # the one\n", "p: {artifact: stub, device: cpu, retries: 0}  # the one")
    after = set_placements(text, "p", on("cpu", "cpu"))
    assert after == text.replace("device: cpu", "replicas: [{device: cpu}, {device: cpu}]")
    bare = text.replace(", device: cpu", "")
    assert set_placements(bare, "p", on("cpu")) == text
    assert deployment(set_placements(bare, "p", on("cpu", "cpu"))).replicas == on("cpu", "cpu")


def test_an_attached_shorthand_becomes_a_list() -> None:
    text = document("endpoint: 'http://a'   # there\nmodel: m\nretries: 0")
    both = (Placement(endpoint="http://a", model="m"), Placement(endpoint="http://b"))
    after = set_placements(text, "p", both)
    assert deployment(after).replicas == both and "replicas:   # there\n" in after and "\n        model" not in after


@pytest.mark.parametrize("empty", ["replicas:", "replicas: ~", "replicas: null   # none"])
def test_a_replicas_key_that_was_left_empty_is_filled(empty: str) -> None:
    text = document(f"artifact: stub\n{empty}\ndevice: cpu")
    after = set_placements(text, "p", on("cpu", "cpu"))
    assert "replicas: [{device: cpu}, {device: cpu}]" in after and "\n        device" not in after


# -------------------------------------------------------------------------------- artifact


def test_another_artifact_drops_the_old_revision() -> None:
    body = f"artifact: owner/name   # which\nrevision: {COMMIT}   # pinned\n# kept\nretries: 0"
    after = set_artifact(document(body), "p", "other/model")
    assert after == document("artifact: other/model   # which\n# kept\nretries: 0")


def test_the_same_artifact_keeps_its_revision() -> None:
    text = document(f"artifact: owner/name\nrevision: {COMMIT}")
    assert set_artifact(text, "p", "owner/name") is text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("'a/b'", "/it's", "'/it''s'"),
        ('"a/b"', "c/d", '"c/d"'),
        ("a/b", "pkg:x/y", "pkg:x/y"),
        ("a/b", "~/my models/x", '"~/my models/x"'),
        (">-\n  a/b", "c/d", "c/d"),
        ("!!str a/b", "c/d", "c/d"),
    ],
)
def test_a_new_artifact_is_quoted_like_the_old_one_or_as_it_must(old: str, new: str, words: str) -> None:
    text = document(f"artifact: {old}   # c\n" if "\n" not in old else f"artifact: {old}\n")
    after = set_artifact(text, "p", new)
    assert f"artifact: {words}" in after and deployment(after).artifact == new
    assert len(after.splitlines()) == len(text.splitlines()) - old.count("\n")


def test_an_artifact_within_braces_drops_its_revision_there() -> None:
    text = document("").replace("p:   # the one\n", f"p: {{revision: {COMMIT}, artifact: a/b}}  # c")
    assert "p: {artifact: c/d}  # c" in set_artifact(text, "p", "c/d")
    text = document("").replace("p:   # the one\n", f"p: {{artifact: a/b, revision: {COMMIT}, retries: 1}}  # c")
    assert "p: {artifact: c/d, retries: 1}  # c" in set_artifact(text, "p", "c/d")


def test_an_attached_deployment_can_be_given_an_artifact() -> None:
    after = set_artifact(document("provider: model_runtime\nendpoint: 'http://a'"), "p", "a/b")
    assert "        provider: model_runtime\n        artifact: a/b\n" in after


def test_an_artifact_that_the_engine_arguments_do_not_fit_is_refused() -> None:
    with pytest.raises(CannotEdit, match="would not be valid"):
        set_artifact(document("artifact: stub\nengine_args: {dim: 4}"), "p", "owner/name")


# -------------------------------------------------------------------------------- odd documents


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_other_line_ends_stay(newline: str) -> None:
    text = document(BLOCK).replace("\n", newline)
    for devices in (("cuda:0",), ("cuda:0", "cuda:1", "cpu"), ("cpu",)):
        after = set_placements(text, "p", on(*devices))
        assert after.replace(newline, "") == set_placements(document(BLOCK), "p", on(*devices)).replace("\n", "")


def test_a_file_without_a_final_line_end_keeps_it_so() -> None:
    text = "global:\n  model_catalog:\n    deployments:\n      p:\n        artifact: stub"
    after = set_placements(text, "p", on("cpu", "cpu"))
    assert after == text + "\n        replicas:\n          - {device: cpu}\n          - {device: cpu}"
    assert set_placements(after, "p", on("cpu", "cpu", "cpu")) == after + "\n          - {device: cpu}"


def test_a_byte_order_mark_and_wide_characters_move_nothing() -> None:
    text = "\ufeff# größe 🚒\n" + document("# 火 🚒\nartifact: stub\ndevice: cpu  # é")
    assert set_placements(text, "p", on("cuda:1")) == text.replace("device: cpu", "device: cuda:1")


def test_an_alias_that_is_edited_is_written_out_and_its_anchor_stays() -> None:
    text = document("artifact: stub\nreplicas: *two")
    text = text.replace(
        "      p:", "      o: {artifact: stub, replicas: &two [{device: cpu}, {device: cpu}]}\n      p:"
    )
    after = set_placements(text, "p", on("cpu"))
    assert after == text.replace("*two", "[{device: cpu}]") and deployment(after, "o").replicas == on("cpu", "cpu")


def test_a_change_that_would_reach_another_deployment_is_refused() -> None:
    shared = document("artifact: stub\nreplicas: &two [{device: cpu}, {device: cpu}]").replace(
        "q: {artifact: stub}", "q: {artifact: stub, replicas: *two}"
    )
    whole = document("artifact: stub").replace("q: {artifact: stub}", "q: *p").replace("p:  ", "p: &p  ")
    merged = document("artifact: stub").replace("q: {artifact: stub}", "q: {<<: *p}").replace("p:  ", "p: &p  ")
    for text in (shared, whole, merged):
        with pytest.raises(CannotEdit, match=r"deployment p cannot be edited in place: .*; change it by hand"):
            set_placements(text, "p", on("cpu"))
    with pytest.raises(CannotEdit, match="taken from an anchor"):
        set_placements(whole, "q", on("cpu"))


def test_a_merged_deployment_gets_its_own_replicas() -> None:
    text = document("artifact: stub\nreplicas: [{device: cpu}]").replace("p:  ", "p: &p  ")
    text = text.replace("q: {artifact: stub}", "q: {<<: *p, retries: 0}")
    after = set_placements(text, "q", on("cpu", "cpu"))
    assert deployment(after, "q").replicas == on("cpu", "cpu") and deployment(after).replicas == on("cpu")


def test_an_edit_of_a_text_with_problems_is_a_config_error() -> None:
    for text in ("a: [", document("artifact: stub\nretrys: 1"), document("artifact: stub") + "---\na: 1\n"):
        with pytest.raises(ConfigError):
            set_placements(text, "p", on("cpu"))


def test_an_edit_of_an_unknown_deployment_names_those_that_are_there() -> None:
    with pytest.raises(CannotEdit, match=r"no deployment 'r' \(there are: p, q\)"):
        set_artifact(document("artifact: stub"), "r", "a/b")


@pytest.mark.parametrize("wanted", [(), on(*["cpu"] * 65), on("CPU")])
def test_placements_that_no_config_may_have_are_refused(wanted: tuple[Placement, ...]) -> None:
    with pytest.raises(CannotEdit):
        set_placements(document(BLOCK), "p", wanted)


# -------------------------------------------------------------------------------- a new document


def test_a_new_document_says_what_was_asked_and_is_the_default() -> None:
    placements = (*on("cuda:0", "cuda:1"), Placement(endpoint="http://a:1", model="m"))
    loaded = parse_config(new_document("minilm", "pkg:a/b", placements), "x")
    (minilm,) = loaded.config.deployments.values()
    assert (minilm.name, minilm.artifact, minilm.replicas) == ("minilm", "pkg:a/b", placements)
    assert loaded.config.default_deployment == "minilm" and loaded.warnings == []


def test_a_new_document_without_a_chosen_place_authors_none() -> None:
    assert "replicas" not in new_document("a", "stub", [Placement()])


@pytest.mark.parametrize("name", ["null", "no", "1", "1e3", "true", "a.b", "y"])
def test_a_new_document_quotes_names_that_yaml_would_misread(name: str) -> None:
    assert list(parse_config(new_document(name, "stub", on("cpu")), "x").config.deployments) == [name]


def test_a_new_document_that_would_not_be_valid_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        new_document("a/b", "stub", on("cpu"))


# -------------------------------------------------------------------------------- any document


_COMMENTS = st.sampled_from(["", "  # note", " # a: [b, {c", "   # - device: cpu", " #"])
_DEVICES = st.sampled_from(["cpu", "cuda:0", "cuda:1", "'cuda:2'", '"rocm:3"'])
_BETWEEN = st.sampled_from(["", "\n", "        # alone\n", "\n   # odd indent\n\n"])


@st.composite
def block_lists(draw: st.DrawFn) -> str:
    dash = draw(st.sampled_from(["- ", "-   "]))
    indent = " " * draw(st.sampled_from([8, 10, 12]))
    entry = draw(st.sampled_from(["device: {}", "{{device: {}}}", "{{ device: {} }}"]))
    lines = [
        draw(_BETWEEN) + indent + dash + entry.format(draw(_DEVICES)) + draw(_COMMENTS)
        for _ in range(draw(st.integers(1, 4)))
    ]
    return f"replicas:{draw(_COMMENTS)}\n" + "\n".join(lines)


@st.composite
def flow_lists(draw: st.DrawFn) -> str:
    entries = st.builds(str.format, st.sampled_from(["{{device: {}}}", "{{ device: {} }}"]), _DEVICES)
    comma = draw(st.sampled_from([", ", ",\n          ", ",  # c, d\n          ", "\n          , "]))
    begin = draw(st.sampled_from(["[", "[ ", "[\n          ", "[ # f\n          "]))
    end = draw(st.sampled_from(["]", ",]", "\n        ]", ",\n        ]", ", # e\n        ]"]))
    listed = comma.join(draw(st.lists(entries, min_size=1, max_size=4)))
    return f"replicas: {begin}{listed}{end}{draw(_COMMENTS)}"


_PLACES = st.one_of(
    block_lists(),
    flow_lists(),
    st.just("max_num_seqs: 2"),
    st.builds("device: {}{}".format, _DEVICES, _COMMENTS),
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str, str]:
    """A document in three parts: the keys that an edit may touch, and what comes before and after them."""
    parts = [f"artifact: stub{draw(_COMMENTS)}", draw(_PLACES)]
    middle = "".join(f"{draw(_BETWEEN)}        {line}\n" for line in draw(st.permutations(parts)))
    other = f"      other: {{artifact: stub, device: cpu}}{draw(_COMMENTS)}\n"
    above, below = draw(st.permutations(["", other]))
    head = f"{draw(_COMMENTS).lstrip()}\nglobal:\n  model_catalog:\n    deployments:\n{above}"
    head += f"      p:{draw(_COMMENTS)}\n{draw(_BETWEEN)}        timeout_ms: 7{draw(_COMMENTS)}\n"
    tail = f"{draw(_BETWEEN)}        retries: 2{draw(_COMMENTS)}\n{below}"
    tail += draw(st.sampled_from(["", "stoker:\n  name: 'n'   # m\n", "# the end"]))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return head.replace("\n", newline), middle.replace("\n", newline), tail.replace("\n", newline)


def comments_of_entries(text: str) -> list[str]:
    """What stands behind each entry of a block list, in their order."""
    return re.findall(r"^ *-[^\r\n]*device: *\S+?(?: ?})?( +#[^\r\n]*)?\r?$", text, re.MULTILINE)


@settings(max_examples=100, deadline=None)
@given(documents(), st.lists(st.sampled_from(["cpu", "cuda:0", "cuda:9"]), min_size=1, max_size=6))
def test_any_edit_says_what_was_asked_and_leaves_the_rest_byte_for_byte(
    parts: tuple[str, str, str], devices: list[str]
) -> None:
    head, middle, tail = parts
    after = set_placements(head + middle + tail, "p", on(*devices))
    assert deployment(after).replicas == on(*devices)
    assert after.startswith(head) and after.endswith(tail)
    edited = after[len(head) : len(after) - len(tail)]
    alone = re.compile(r"^[ \t]*#[^\r\n]*", re.MULTILINE)
    assert edited.count("# c, d") >= min(len(devices), middle.count("# c, d"))
    if "[" not in middle.replace("[b, {c", ""):
        assert alone.findall(edited) == alone.findall(middle)
        kept = min(len(devices), len(comments_of_entries(middle)))
        assert comments_of_entries(edited)[:kept] == comments_of_entries(middle)[:kept]


@settings(max_examples=100, deadline=None)
@given(documents(), st.integers(1, 3))
def test_a_list_that_grew_and_shrank_again_is_the_text_that_it_was(parts: tuple[str, str, str], more: int) -> None:
    text = "".join(parts)
    placements = deployment(text).replicas
    back = set_placements(set_placements(text, "p", placements + on("mps") * more), "p", placements)
    assert deployment(back).replicas == placements
    if "replicas" in text and "[" not in parts[1].replace("[b, {c", ""):
        assert back == text


@settings(max_examples=50, deadline=None)
@given(documents())
def test_another_artifact_changes_one_word(parts: tuple[str, str, str]) -> None:
    text = "".join(parts)
    after = set_artifact(text, "p", "owner/other")
    assert after == "".join((parts[0], parts[1].replace("artifact: stub", "artifact: owner/other"), parts[2]))
