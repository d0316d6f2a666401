"""Reading a file: all problems at once, each with line, path, what was found and what is allowed (spec 3)."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config import nodes
from supervisor.config.load import LoadedConfig, load_config, parse_config
from supervisor.config.problems import ConfigError, Problem
from supervisor.config.schema import Config
from tests.config.reading import MINIMAL, deployment, only_problem, problems_of, read

# -------------------------------------------------------------------------------- how problems are told


def test_a_problem_names_file_line_path_found_and_allowed() -> None:
    problem = only_problem(deployment("artifact: stub\ntimeout_ms: 0"))
    assert problem == Problem(
        file="stoker.yaml",
        line=6,
        path="global.model_catalog.deployments.primary.timeout_ms",
        found="0",
        allowed="a whole number, 1 or more",
    )
    assert str(problem) == (
        "stoker.yaml:6: global.model_catalog.deployments.primary.timeout_ms: found 0; allowed a whole number, 1 or more"
    )


def test_all_problems_of_a_file_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = """\
global:
  model_catalog:
    deployments:
      one: {artifact: stub, timeout_ms: soon, retries: -1}
      two:
        artifact: stub
        replicas: [{device: cpu, endpoint: "http://host"}]
        engine_args: {dim: true}
    system: {decision_model: {deployment: three}}
stoker: {listen: nowhere, colour: red}
"""
    problems = problems_of(text)
    assert [(problem.line, problem.path.rsplit(".", 1)[-1]) for problem in problems] == [
        (4, "timeout_ms"),
        (4, "retries"),
        (7, "endpoint"),
        (8, "dim"),
        (9, "deployment"),
        (10, "listen"),
        (10, "colour"),
    ]


def test_the_error_says_one_problem_a_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("stoker: {listen: 1, name: '-'}\n" + MINIMAL, "a.yaml")
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    assert len(caught.value.problems) == 2


def test_entries_of_lists_are_named_by_their_position() -> None:
    problem = only_problem(deployment("artifact: stub\nreplicas:\n  - device: cpu\n  - device: CPU"))
    assert (problem.line, problem.path) == (8, "global.model_catalog.deployments.primary.replicas[1].device")


def test_names_that_would_blur_a_path_are_quoted_in_it() -> None:
    problem = only_problem("global: {model_catalog: {deployments: {'a b': {artifact: stub}}}}")
    assert problem.path == 'global.model_catalog.deployments."a b"'


def test_a_long_or_odd_value_is_shown_short_and_printable() -> None:
    problem = only_problem(deployment('artifact: "' + "x" * 500 + '\\u200b\\e[31m"'))
    assert len(problem.found) < 80 and problem.found.isprintable()


# -------------------------------------------------------------------------------- keys


def test_an_unknown_key_is_an_error_and_the_likely_one_is_named() -> None:
    problem = only_problem(deployment("artifact: stub\ntimeout: 5"))
    assert problem.found == "an unknown key"
    assert "timeout_ms" in problem.allowed.split(", ")
    assert "found an unknown key (did you mean timeout_ms?); allowed artifact, cpu, " in str(problem)


def test_a_duplicate_key_is_an_error_that_names_both_lines() -> None:
    problem = only_problem(deployment("artifact: stub\nretries: 1\nretries: 2"))
    assert (problem.line, problem.found) == (7, 'a second "retries", the first is on line 6')


def test_a_duplicate_deployment_is_an_error() -> None:
    assert 'a second "primary"' in only_problem(deployment("artifact: stub") + "      primary: {}\n").found


@pytest.mark.parametrize("key", ["1", "true", "~", "1.5", "[a]", "{a: b}", "? [a]\n  "])
def test_a_key_that_is_no_text_is_an_error(key: str) -> None:
    problem = only_problem(f"stoker:\n  {key}: x\n{MINIMAL}")
    assert (problem.line, problem.path) == (2, "stoker") and problem.found.endswith("as a key")


def test_router_keys_are_accepted_and_named_in_one_warning() -> None:
    text = """\
version: v0.3
listeners: [{name: http-8899}]
providers: {}
routing: {signals: {}}
setup: {}
global:
  router: {enabled: true, strategy: priority}
  services: {api: {}}
  model_catalog:
    bindings: {a: b}
    signal_timeout_ms: 100
    deployments:
      primary:
        artifact: vllm-sr/d3-edge
        profile: exact
        input: {max_tokens: 5, overflow: reject}
        public_name: x
        served_name: y
    system: {prompt_guard: z}
"""
    (warning,) = parse_config(text, "stoker.yaml").warnings
    for named in (
        "version (line 1)",
        "listeners (line 2)",
        "providers",
        "routing",
        "setup",
        "global.router.enabled",
        "global.router.strategy",
        "global.services (line 8)",
        "global.model_catalog.bindings",
        "global.model_catalog.signal_timeout_ms",
        "deployments.primary.profile",
        "deployments.primary.input",
        "deployments.primary.public_name",
        "deployments.primary.served_name (line 18)",
        "global.model_catalog.system.prompt_guard",
    ):
        assert named in warning
    assert "\n" not in warning


def test_a_document_of_stokers_own_keys_has_no_warning() -> None:
    assert parse_config(MINIMAL, "x").warnings == []


# -------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    "value", ["true", '"1"', "1.0", "one", "null", "", "[1]", "{a: 1}", "010", "0x10", "1:30", "9" * 5000]
)
def test_what_is_no_whole_number_is_refused_where_one_is_expected(value: str) -> None:
    assert only_problem(deployment(f"artifact: stub\ntimeout_ms: {value}")).path.endswith(".timeout_ms")


@pytest.mark.parametrize(("value", "meant"), [("1", 1), ("+7", 7), ("1_000", 1000)])
def test_whole_numbers_are_decimal(value: str, meant: int) -> None:
    assert read(f"artifact: stub\ntimeout_ms: {value}").timeout_ms == meant


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1e999", "-1", "4000", "true", '"3"'])
def test_a_fraction_is_finite_and_in_its_range(value: str) -> None:
    assert only_problem(deployment(f"artifact: stub\ndrain_timeout_s: {value}")).path.endswith("drain_timeout_s")


@pytest.mark.parametrize(("value", "meant"), [("0", 0.0), ("0.5", 0.5), ("1e1", 10.0), ("3600", 3600.0)])
def test_a_fraction_may_be_written_as_any_number(value: str, meant: float) -> None:
    assert read(f"artifact: stub\ndrain_timeout_s: {value}").drain_timeout_s == meant


@pytest.mark.parametrize("value", ["1", '"1"', "'1'", "!!str 1"])
def test_a_number_where_text_is_expected_is_that_text(value: str) -> None:
    replica = read(f'endpoint: "http://host"\nmodel: {value}').replicas[0]
    assert replica.model == "1"


@pytest.mark.parametrize("word", ["off", '"off"'])
def test_off_is_text_where_text_is_expected(word: str) -> None:
    assert read(f"artifact: stub\ncpu: {{reproducible: {word}}}").cpu.reproducible == "off"


@pytest.mark.parametrize(("word", "meant"), [("true", True), ("off", False), ("Yes", True)])
def test_truth_values_have_the_words_of_both_yaml_versions(word: str, meant: bool) -> None:
    assert read(f"artifact: stub\nengine_args: {{trust_remote_code: {word}}}").engine_args.trust_remote_code is meant


@pytest.mark.parametrize("word", ["1", '"true"', "null", "truth"])
def test_other_words_are_no_truth_value(word: str) -> None:
    assert only_problem(deployment(f"artifact: stub\nengine_args: {{trust_remote_code: {word}}}"))


@pytest.mark.parametrize("value", ["3", "true", '"1"', "1.0"])
def test_a_choice_of_numbers_takes_just_those(value: str) -> None:
    assert only_problem(deployment(f"artifact: stub\ncpu: {{adaptive: {value}}}")).allowed == "0, 1 or 2"


def test_a_section_that_was_left_empty_is_all_defaults() -> None:
    empty = read("artifact: stub\noutlier_detection:\ncpu:\nengine_args:")
    assert empty == read("artifact: stub")


def test_an_empty_value_is_the_default_only_where_it_may_be_unset() -> None:
    assert read("artifact: stub\nmax_num_seqs:\nreplicas:").max_num_seqs is None
    assert only_problem(deployment("artifact: stub\nretries:")).found == "nothing (null)"


@pytest.mark.parametrize("value", ["text", "[1]", "5"])
def test_a_section_must_be_a_mapping(value: str) -> None:
    assert only_problem(deployment(f"artifact: stub\ncpu: {value}")).allowed == "a mapping"
    assert only_problem(f"global: {value}").allowed == "a mapping"


def test_a_secret_in_a_wrong_place_is_not_repeated() -> None:
    text = "stoker: {api_key_env: sk-hunter2}\n" + deployment('endpoint: "http://me:hunter2@host"')
    assert len(problems_of(text)) == 2
    assert "hunter2" not in "".join(map(str, problems_of(text)))


# -------------------------------------------------------------------------------- what is no document


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "null\n", "{}\n", "global:\n"])
def test_a_file_without_deployments_is_an_error(text: str) -> None:
    problem = only_problem(text)
    assert (problem.path, problem.found) == ("global.model_catalog.deployments", "no deployment")


@pytest.mark.parametrize("text", ["[]", "a", "5", "- global"])
def test_a_file_must_hold_a_mapping(text: str) -> None:
    assert only_problem(text).allowed == "a mapping"


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("a: [1, 2\nb: 3\n", 2, "no valid YAML"),
        ("a: b: c\n", 1, "no valid YAML"),
        ("a: 'never closed\n", 2, "no valid YAML"),
        ("a:\n\tb: 1\n", 2, "a tab"),
        ("a: 1\nb: @x\n", 2, "no valid YAML"),
        ("a: &x 1\nb: *y\n", 2, "*y, which names nothing"),
        ("a: &x [*x]\n", 1, "*x, which names nothing"),
        ("a: 1\n---\nb: 2\n", 2, "a second document"),
        ("---\n---\na: 1\n", 2, "a second document"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "the tag"),
        ("a: !thing 1\n", 1, "the tag"),
        ("a: 1\nb: \0\n", 2, "the character U+0000"),
        ("a: 1\nb: \x1b[31m\n", 2, "the character U+001B"),
        ("a: \ud800\n", 1, "the character U+D800"),
    ],
)
def test_what_is_not_one_yaml_document_is_told_at_its_line(text: str, line: int, found: str) -> None:
    problem = only_problem(text)
    assert problem.line == line and problem.found.startswith(found)


def test_an_alias_bomb_is_refused_in_no_time() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    started = time.monotonic()
    assert "larger or deeper" in only_problem("\n".join(lines)).found
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000, "? " * 100_000, "a: " + "[" * 70 + "]" * 70]
)
def test_deep_nesting_is_refused(text: str) -> None:
    assert problems_of(text)


def test_many_unknown_keys_are_all_named_and_quickly() -> None:
    started = time.monotonic()
    assert len(problems_of("".join(f"timeout{n}: 1\n" for n in range(5000)) + MINIMAL)) == 5000
    assert time.monotonic() - started < 10


@given(st.text(max_size=200))
def test_any_text_is_a_config_or_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(text, "x")


_WORDS = st.one_of(
    st.sampled_from(["global", "model_catalog", "deployments", "artifact", "stub", "replicas", "device", "cpu"]),
    st.sampled_from(["- ", ": ", "\n", "\n  ", "\n    ", ", ", "null", "true", ".nan", "&a ", "*a", "<<: "]),
    st.sampled_from("#'\"{}[]1~"),
)


@settings(max_examples=200)
@given(st.lists(_WORDS, max_size=40).map("".join))
def test_any_mix_of_known_words_is_a_config_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_config(text, "x").config, Config)


# -------------------------------------------------------------------------------- anchors and merges


def test_aliases_and_merge_keys_are_followed_and_what_stands_beside_a_merge_wins() -> None:
    text = """\
global:
  model_catalog:
    deployments:
      one: &one
        artifact: stub
        timeout_ms: 5
        cpu: &cpu {threads: 2}
      two: {<<: *one, timeout_ms: 6}
      three: {<<: [{retries: 0}, *one], cpu: *cpu}
    system: {decision_model: {deployment: two}}
"""
    deployments = parse_config(text, "x").config.deployments
    assert [deployments[name].timeout_ms for name in ("one", "two", "three")] == [5, 6, 5]
    assert deployments["three"].cpu.threads == 2 and deployments["three"].retries == 0
    assert list(deployments) == ["one", "two", "three"]


def test_only_mappings_can_be_merged() -> None:
    assert "to merge" in only_problem(deployment("artifact: stub\n<<: [1]")).found


# -------------------------------------------------------------------------------- files


def test_a_file_is_read_with_its_path_as_source(tmp_path: Path) -> None:
    path = tmp_path / "stoker.yaml"
    path.write_bytes(b"\xef\xbb\xbf# with a byte order mark\r\n" + MINIMAL.replace("\n", "\r\n").encode())
    loaded = load_config(path)
    assert isinstance(loaded, LoadedConfig)
    assert loaded.source == str(path) and loaded.text == path.read_bytes().decode()
    assert list(loaded.config.deployments) == ["stub"]


def test_a_file_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file; expected a YAML file$"):
        load_config(tmp_path / "none.yaml")


def test_a_folder_or_a_pipe_is_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "a folder"), (tmp_path / "pipe", "not a regular file")):
        with pytest.raises(ConfigError, match=f"{path}: this is {what}; expected a YAML file$"):
            load_config(path)


def test_a_missing_config_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "stoker.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match=f"there is no such file; did you mean {tmp_path / 'stoker.yaml'}"):
        load_config(tmp_path / "stokr.yml")
    with pytest.raises(ConfigError, match=f"there is no such file; expected a YAML file, such as {tmp_path}/stoker"):
        load_config(tmp_path / "other.yaml")
    with pytest.raises(ConfigError, match=f"this is a folder; expected a YAML file, such as {tmp_path}/stoker.yaml"):
        load_config(tmp_path)


def test_a_config_that_may_not_be_read_says_by_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stoker.yaml"
    path.write_text(MINIMAL)

    def denied(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_bytes", denied)  # a test may run as root, who may read everything
    with pytest.raises(ConfigError, match=rf"it cannot be read \(Permission denied\).* user {os.geteuid()} may read"):
        load_config(path)


def test_yaml_that_is_none_names_the_line_and_where_the_part_began() -> None:
    problem = only_problem("a:\n  - [1,\n b: 2")
    assert str(problem).startswith("stoker.yaml:4: found no valid YAML (")
    assert "that began on line 2" in str(problem)


def test_a_file_beyond_the_size_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text("#" * (nodes.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="1048577 bytes"):
        load_config(path)
    assert "characters" in only_problem("#" * (nodes.MAX_BYTES + 1)).found


def test_a_file_that_is_not_utf_8_is_told_at_the_line_of_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    (problem,) = caught.value.problems
    assert (problem.line, problem.found) == (2, "the byte 0xe9")


def test_both_yaml_parsers_give_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "sample-configs" / "full.yaml").read_text()
    text += "x: [a, 'b', *c]\n".replace("*c", "!!str 5")

    def flat(node: nodes.Node | None) -> object:
        assert node is not None
        return (
            node.kind,
            node.start,
            node.end,
            node.text,
            node.plain,
            [flat(child) for child in node.children],
        )

    fast = flat(nodes.compose(text, "x"))
    monkeypatch.delattr(nodes.yaml, "CSafeLoader")
    assert flat(nodes.compose(text, "x")) == fast
