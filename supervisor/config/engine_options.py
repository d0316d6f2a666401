"""`engine_args`: what every engine takes, and what each one takes besides."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from engine.messages import Faults
from supervisor.config.shapes import (
    MODEL,
    URL_PATH,
    VARIABLE,
    ArtifactKind,
    Duration,
    NotNegative,
    Positive,
    Section,
    about,
    artifact_kind,
)

EngineName = Literal["transformers", "python", "stub", "command"]
TaskName = Literal["auto", "embed", "classify", "rerank", "generate"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]


class StubOptions(Section, frozen=True, kw_only=True):
    """Further engine arguments of `engine: stub`, the stand-in for demos and tests (spec 10)."""

    latency_ms: Annotated[Duration, about("Time that one forward takes, in milliseconds.")] = 0.0
    tokens: Annotated[NotNegative, about("Tokens of a generated answer.")] = 16
    token_ms: Annotated[Duration, about("Time between two tokens, in milliseconds.")] = 10.0
    dim: Annotated[Positive, about("Dimensions of an embedding.")] = 8
    load_ms: Annotated[Duration, about("Time that loading takes, in milliseconds.")] = 0.0
    faults: Annotated[Faults, about("What every replica does wrong on purpose from its start.")] = Faults()


class CommandOptions(Section, frozen=True, kw_only=True):
    """Further engine arguments of `engine: command`, a foreign server as a child process (spec 10)."""

    command: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1)],
        about("Program and arguments; `{port}` and `{artifact}` in them are replaced."),
    ]
    port_env: Annotated[
        str | None, about("Environment variable that hands the port in, besides `{port}`.", VARIABLE)
    ] = None
    health_path: Annotated[
        str,
        about(
            "Page that answers 200 once it can serve; of a server without a `/health`, `/v1/models` will do.", URL_PATH
        ),
    ] = "/health"
    metrics_path: Annotated[str, about("Prometheus page, by which a drain sees that the server is idle.", URL_PATH)] = (
        "/metrics"
    )
    model: Annotated[str | None, about("The name by which the server knows the model; unset: the artifact.", MODEL)] = (
        None
    )
    env: Annotated[dict[str, str], about("Further environment variables of the child.")] = msgspec.field(
        default_factory=dict
    )


class TransformersOptions(Section, frozen=True, kw_only=True):
    """Further engine arguments of `engine: transformers`."""

    encoder: Annotated[
        Literal["auto", "transformers"],
        about("`auto`: plain BERT on a CPU runs on Stoker's own encoder; `transformers`: on the library's class."),
    ] = "auto"
    golden: Annotated[
        str | None,
        about(
            "File of known answers that a replica must give before it is ready; unset: the one beside the artifact, "
            "if there is one; `none`: not even that."
        ),
    ] = None
    kv_cache_bytes: Annotated[
        Positive | None,
        about("Memory for keys and values of the texts that are written; unset: a share of what is free at the start."),
    ] = None


OPTIONS: dict[str, type[Section] | None] = {
    "transformers": TransformersOptions,
    "python": None,
    "stub": StubOptions,
    "command": CommandOptions,
}
"""Further engine arguments by engine; None: the user's own `load(args)` decides."""

_WEIGHTS = frozenset({ArtifactKind.HUB, ArtifactKind.PATH, ArtifactKind.PACKAGE})

ARTIFACTS: dict[str, frozenset[ArtifactKind]] = {
    "transformers": _WEIGHTS,
    "python": frozenset({ArtifactKind.CLASS}),
    "stub": frozenset(ArtifactKind),
    "command": _WEIGHTS,
}
"""The forms of artifact that each engine can load; the stub loads nothing, so it stands in for any."""


class EngineSection(Section, frozen=True, kw_only=True):
    """How the artifact is computed; further keys depend on the engine."""

    open_ended: ClassVar[bool] = True

    engine: Annotated[
        EngineName | None,
        about("What computes; unset: `stub` and `python` by the artifact's form, else `transformers`."),
    ] = None
    task: Annotated[TaskName, about("What the model is for; `auto` reads it from the model's own files.")] = "auto"
    dtype: Annotated[DtypeName, about("Number format of the weights; `auto` takes what the device is best at.")] = (
        "auto"
    )
    max_model_len: Annotated[NotNegative, about("Longest input in tokens; 0: what the model allows.")] = 0
    trust_remote_code: Annotated[bool, about("Run Python code that comes with the artifact; off unless set.")] = False


class EngineArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Engine arguments with the engine decided.

    `options` are its further keys: plain data, keys sorted, defaults filled in, so that equal means the same.
    """

    engine: EngineName = "transformers"
    task: TaskName = "auto"
    dtype: DtypeName = "auto"
    max_model_len: int = 0
    trust_remote_code: bool = False
    options: dict[str, Any] = {}


def default_engine(artifact: str | None) -> EngineName:
    """The engine of a deployment that names none."""
    kind = artifact_kind(artifact) if artifact else None
    if kind is ArtifactKind.STUB:
        return "stub"
    return "python" if kind is ArtifactKind.CLASS else "transformers"
