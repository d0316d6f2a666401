"""The document of spec 3 as types: what a user may write (`Document`), what the other rooms read (`Config`).

`Document` and the sections below it mirror the file key by key; docs/config.md is made from their fields.
`Config` is the same said once: defaults filled in, the shorthand for a single replica turned into a list of
one. The rules that span several keys stand here too, as plain functions over the types; none knows of YAML.
Light on purpose: msgspec and the standard library, so that it costs the supervisor next to no memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
import msgspec.inspect as mi
from msgspec import Meta

from engine.messages import Faults

HOUR_MS = 3_600_000
"""The longest ejection there is (spec 3), in milliseconds."""

MAX_REPLICAS = 64
"""Replicas of one deployment, at most (spec 1)."""

AUTO = "auto"
"""The device of a managed placement that names none; the device room picks one."""

STUB = "stub"
"""The artifact of the stand-in engine, which loads nothing."""

EVERY_KEY = frozenset({"*"})
"""Of a section: any key that Stoker does not know belongs to the vLLM Semantic Router."""

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Duration = Annotated[float, Meta(ge=0)]
DrainSeconds = Annotated[float, Meta(ge=0, le=3600)]
EjectionMs = Annotated[int, Meta(ge=1, le=HOUR_MS)]
Percent = Annotated[int, Meta(ge=0, le=100)]

EngineName = Literal["transformers", "python", "stub", "command"]
TaskName = Literal["auto", "embed", "classify", "rerank", "generate"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]

# -------------------------------------------------------------------------------- shapes of text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")
_REVISION = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IDENTIFIERS = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_CLASS = re.compile(rf"{_IDENTIFIERS}:[A-Za-z_][A-Za-z0-9_]*")
_PACKAGE = re.compile(rf"pkg:{_IDENTIFIERS}(/[^/]+)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ArtifactKind(Enum):
    """The forms that an artifact's text may take (spec 3, 10)."""

    HUB = "owner/name on the hub"
    PATH = "a path that starts with /, ./, ../ or ~"
    PACKAGE = "pkg:NAME/path inside an installed package"
    CLASS = "package.module:Class"
    STUB = "stub"


def artifact_kind(text: str) -> ArtifactKind | None:
    """Which form an artifact's text has; None where it has none of them."""
    if not text or text != text.strip() or _CONTROL.search(text):
        return None
    if text == STUB:
        return ArtifactKind.STUB
    if text.startswith(("/", "./", "../", "~")):
        return ArtifactKind.PATH
    if text.startswith("pkg:"):
        stays_inside = _PACKAGE.fullmatch(text) and not {".", ".."} & set(text.split("/"))
        return ArtifactKind.PACKAGE if stays_inside else None
    if _HUB_ID.fullmatch(text):
        return ArtifactKind.HUB
    return ArtifactKind.CLASS if _CLASS.fullmatch(text) else None


def is_deployment_name(text: str) -> bool:
    """Whether a deployment may have this name; its replicas are called `name/0`, `name/1`, …"""
    return _NAME.fullmatch(text) is not None


def is_device(text: str) -> bool:
    """Whether the text has a device's shape (spec 3); whether it exists is another room's question."""
    return _DEVICE.fullmatch(text) is not None


def is_endpoint(text: str) -> bool:
    """`http(s)://host…` or `unix:///abs`, without user information, query or fragment."""
    if text != text.strip() or _CONTROL.search(text) or " " in text:
        return False
    try:
        parts = urlsplit(text)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        return False
    if parts.query or parts.fragment or "@" in parts.netloc:
        return False
    if parts.scheme == "unix":
        return _is_socket_url(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port_fits


def is_listen(text: str) -> bool:
    """`host:port` (port 0: any free one; an IPv6 host stands in brackets) or `unix:///abs`."""
    if text.startswith("unix:"):
        return _is_socket_url(text) and not _CONTROL.search(text)
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or re.search(r"[\s/@\[\]]", bare) or (":" in bare and bare == host):
        return False
    return re.fullmatch(r"[0-9]{1,5}", port) is not None and int(port) < 65536


def same_endpoint(text: str) -> str:
    """The form in which two endpoints that mean the same server are equal."""
    scheme, separator, rest = text.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    return scheme.lower() + separator + host.lower() + slash + path


def _is_socket_url(text: str) -> bool:
    return re.fullmatch(r"unix:///[^?#]*[^?#/]", text) is not None


def _is_model(text: str) -> bool:
    return bool(text) and text == text.strip() and not _CONTROL.search(text)


def _is_line(text: str) -> bool:
    return bool(text.strip()) and "\0" not in text


class Words(NamedTuple):
    """What a text field accepts: a check, how to say it, and whether a refused value must not be repeated."""

    check: Callable[[str], object]
    allowed: str
    secret: bool = False


def _about(sentence: str, words: Words | None = None) -> Meta:
    return Meta(description=sentence, extra={"words": words} if words else None)


def wording(kind: mi.Type) -> str:
    """What a type accepts, in words: for problems and for the reference page."""
    match kind:
        case mi.Metadata(type=inner, extra=extra):
            words = (extra or {}).get("words")
            return words.allowed if words else wording(inner)
        case mi.UnionType(types=types):
            return ", or ".join("null" if isinstance(each, mi.NoneType) else wording(each) for each in types)
        case mi.IntType(ge=least, le=most):
            return "a whole number" + _bounds(least, most)
        case mi.FloatType(ge=least, le=most):
            return "a number" + _bounds(least, most)
        case mi.LiteralType(values=values):
            return " or ".join(filter(None, (", ".join(map(str, values[:-1])), str(values[-1]))))
        case mi.VarTupleType(item_type=item):
            return f"a list of {_PLURALS[type(item)]}"
    return _PLAIN_WORDING[type(kind)]


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f", {most} at most"
    return f", {least} or more" if most is None else f" from {least} to {most}"


_PLURALS = {mi.StrType: "texts", mi.StructType: "mappings"}
_PLAIN_WORDING = {
    mi.StrType: "text",
    mi.BoolType: "true or false",
    mi.AnyType: "any value",
    mi.StructType: "a mapping",
    mi.DictType: "a mapping",
}

NAME = Words(is_deployment_name, "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit")
DEVICE = Words(is_device, "auto, or an accelerator's name with an optional index, such as cpu, cuda:0 or rocm:1")
ENDPOINT = Words(is_endpoint, "http(s)://host[:port][/path] or unix:///absolute/path, without a password", secret=True)
MODEL = Words(_is_model, "a model's name without surrounding blanks or control characters")
ARTIFACT = Words(artifact_kind, ", ".join(kind.value for kind in ArtifactKind))
REVISION = Words(_REVISION.fullmatch, "40 lower-case hexadecimal digits (a commit)")
LISTEN = Words(is_listen, 'host:port ("[::1]:8100" for IPv6) or unix:///absolute/path')
VARIABLE = Words(_VARIABLE.fullmatch, "the name of an environment variable", secret=True)
LINE = Words(_is_line, "text that is not empty")
URL_PATH = Words(re.compile(r"/[!-~]*").fullmatch, "a URL's path that starts with /")

# -------------------------------------------------------------------------------- parts of a deployment


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Any mapping of the document.

    `router_keys` belong to the vLLM Semantic Router: accepted, ignored. `open_ended`: further keys are read
    elsewhere, as engine arguments are, which depend on the engine.
    """

    router_keys: ClassVar[frozenset[str]] = frozenset()
    open_ended: ClassVar[bool] = False


class Placement(Section, frozen=True, kw_only=True):
    """Where one replica runs: on a `device` (managed) or behind an `endpoint` (attached)."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"served_name"})

    device: Annotated[str | None, _about("Device that the replica runs on; `auto` lets Stoker choose.", DEVICE)] = None
    endpoint: Annotated[
        str | None, _about("A running server to attach to; Stoker never starts or stops it.", ENDPOINT)
    ] = None
    model: Annotated[str | None, _about("The name by which the attached server knows the model.", MODEL)] = None

    @property
    def attached(self) -> bool:
        """Whether somebody else runs the process."""
        return self.endpoint is not None

    @property
    def managed(self) -> bool:
        """Whether Stoker starts and stops the process."""
        return self.endpoint is None

    def normalised(self) -> Placement:
        """The placement with its default said: `auto` if managed, no slash at the end of an endpoint."""
        if self.endpoint is None:
            return msgspec.structs.replace(self, device=self.device or AUTO)
        return msgspec.structs.replace(self, endpoint=self.endpoint.rstrip("/"))


class OutlierDetection(Section, frozen=True, kw_only=True):
    """When a replica that keeps timing out is ejected, and for how long (spec 7)."""

    consecutive_timeouts: Annotated[
        NotNegative, _about("Timeouts in a row that eject a replica; 0 turns ejection off.")
    ] = 3
    base_ejection_ms: Annotated[
        EjectionMs, _about("Length of the first ejection; each further one is twice as long.")
    ] = 30_000
    max_ejection_ms: Annotated[
        EjectionMs | None, _about("Longest ejection; unset: ten times the base, at most an hour.")
    ] = None
    max_ejection_percent: Annotated[
        Percent, _about("Share of the replicas that may be out at once; one always may.")
    ] = 50

    @property
    def longest_ejection_ms(self) -> int:
        """`max_ejection_ms` with its default filled in."""
        if self.max_ejection_ms is not None:
            return self.max_ejection_ms
        return min(10 * self.base_ejection_ms, HOUR_MS)


class CpuSettings(Section, frozen=True, kw_only=True):
    """CPU threads of each managed replica (spec 9)."""

    threads: Annotated[
        Positive | None, _about("Intra-op threads of each replica, capped by the budget; unset: half of it.")
    ] = None
    adaptive: Annotated[
        Literal[0, 1, 2],
        _about("Learn the thread count from traffic: 0 off, 1 learn and report, 2 also serve what was learned."),
    ] = 0
    reproducible: Annotated[
        Literal["auto", "off"],
        _about("`auto` makes answers independent of the thread count on x86; `off` leaves MKL as it is."),
    ] = "auto"
    affinity: Annotated[
        Literal["none", "spread"], _about("`spread` pins replicas to disjoint cores while they fit.")
    ] = "none"


class StubOptions(Section, frozen=True, kw_only=True):
    """Further engine arguments of `engine: stub`, the stand-in for demos and tests (spec 10)."""

    latency_ms: Annotated[Duration, _about("Time that one forward takes, in milliseconds.")] = 0.0
    tokens: Annotated[NotNegative, _about("Tokens of a generated answer.")] = 16
    token_ms: Annotated[Duration, _about("Time between two tokens, in milliseconds.")] = 10.0
    dim: Annotated[Positive, _about("Dimensions of an embedding.")] = 8
    load_ms: Annotated[Duration, _about("Time that loading takes, in milliseconds.")] = 0.0
    faults: Annotated[Faults, _about("What every replica does wrong on purpose from its start.")] = Faults()


class CommandOptions(Section, frozen=True, kw_only=True):
    """Further engine arguments of `engine: command`, a foreign server as a child process (spec 10)."""

    command: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1)],
        _about("Program and arguments; `{port}` and `{artifact}` in them are replaced."),
    ]
    port_env: Annotated[
        str | None, _about("Environment variable that hands the port in, besides `{port}`.", VARIABLE)
    ] = None
    health_path: Annotated[
        str,
        _about(
            "Page that answers 200 once it can serve; of a server without a `/health`, `/v1/models` will do.", URL_PATH
        ),
    ] = "/health"
    metrics_path: Annotated[
        str, _about("Prometheus page, by which a drain sees that the server is idle.", URL_PATH)
    ] = "/metrics"
    model: Annotated[
        str | None, _about("The name by which the server knows the model; unset: the artifact.", MODEL)
    ] = None
    env: Annotated[dict[str, str], _about("Further environment variables of the child.")] = {}


class TransformersOptions(Section, frozen=True, kw_only=True):
    """Further engine arguments of `engine: transformers`."""

    encoder: Annotated[
        Literal["auto", "transformers"],
        _about("`auto`: plain BERT on a CPU runs on Stoker's own encoder; `transformers`: on the library's class."),
    ] = "auto"
    golden: Annotated[
        str | None,
        _about(
            "File of known answers that a replica must give before it is ready; unset: the one beside the artifact, "
            "if there is one; `none`: not even that."
        ),
    ] = None
    kv_cache_bytes: Annotated[
        Positive | None,
        _about(
            "Memory for keys and values of the texts that are written; unset: a share of what is free at the start."
        ),
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
        _about("What computes; unset: `stub` and `python` by the artifact's form, else `transformers`."),
    ] = None
    task: Annotated[TaskName, _about("What the model is for; `auto` reads it from the model's own files.")] = "auto"
    dtype: Annotated[DtypeName, _about("Number format of the weights; `auto` takes what the device is best at.")] = (
        "auto"
    )
    max_model_len: Annotated[NotNegative, _about("Longest input in tokens; 0: what the model allows.")] = 0
    trust_remote_code: Annotated[bool, _about("Run Python code that comes with the artifact; off unless set.")] = False


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


# -------------------------------------------------------------------------------- a deployment


class DeploymentCommon(Section, frozen=True, kw_only=True):
    """What a deployment says in the file and to the other rooms in the same words."""

    provider: Annotated[Literal["model_runtime"], _about("The only value there is: leave it out.")] = "model_runtime"
    artifact: Annotated[str | None, _about("The model; every managed replica needs one.", ARTIFACT)] = None
    revision: Annotated[str | None, _about("Commit of an artifact from the hub; unset: its newest.", REVISION)] = None
    timeout_ms: Annotated[
        Positive, _about("Longest that a request may take, a stream to its last token; then its caller gets 504.")
    ] = 30_000
    max_num_seqs: Annotated[
        Positive | None,
        _about("Texts, or generations, computed together, at most; unset: each replica finds its own at its start."),
    ] = None
    max_num_batched_tokens: Annotated[
        Positive | None, _about("Tokens computed together, at most; unset: each replica finds its own at its start.")
    ] = None
    outlier_detection: Annotated[OutlierDetection, _about("Ejection of a replica that keeps timing out.")] = (
        OutlierDetection()
    )
    drain_timeout_s: Annotated[
        DrainSeconds, _about("Longest that a replica that leaves waits for its requests; what still runs then is cut.")
    ] = 30.0
    retries: Annotated[
        NotNegative,
        _about("Further replicas tried where one died before the first byte of its answer; 0 = off."),
    ] = 1
    restart_hung_ms: Annotated[NotNegative, _about("A replica whose forward runs longer is restarted; 0 = never.")] = (
        300_000
    )
    result_cache_entries: Annotated[
        NotNegative, _about("Answers kept, to be given again without computing (not of `generate`); 0 = off.")
    ] = 4096
    cpu: Annotated[CpuSettings, _about("CPU threads of managed replicas.")] = CpuSettings()


class DeploymentSection(DeploymentCommon, frozen=True, kw_only=True):
    """A named model and its replicas, as the file says it."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"profile", "input", "public_name", "served_name"})

    replicas: Annotated[
        tuple[Placement, ...] | None,
        _about("Where each replica runs, one entry each; `{}` is one on `auto`, a device may be repeated."),
    ] = None
    device: Annotated[
        str | None, _about("Device of a single replica, instead of `replicas`; `stoker devices` lists them.", DEVICE)
    ] = None
    endpoint: Annotated[
        str | None, _about("A running server as the single replica, instead of `replicas`.", ENDPOINT)
    ] = None
    model: Annotated[str | None, _about("The name by which that server knows the model.", MODEL)] = None
    engine_args: Annotated[EngineSection, _about("Engine and its arguments, the same for all replicas.")] = (
        EngineSection()
    )

    def placements(self) -> tuple[Placement, ...]:
        """The replicas, one by one: no `replicas` equals one explicit replica (spec 3)."""
        single = Placement(device=self.device, endpoint=self.endpoint, model=self.model)
        return tuple(placement.normalised() for placement in self.replicas or (single,))


class Deployment(DeploymentCommon, frozen=True, kw_only=True):
    """A named model as the other rooms see it: at least one replica, engine decided, defaults filled in."""

    name: str
    replicas: tuple[Placement, ...] = (Placement(device=AUTO),)
    engine_args: EngineArgs = EngineArgs()

    @property
    def attached(self) -> bool:
        """Whether any replica is somebody else's: such a deployment is not resized (spec 4)."""
        return any(placement.attached for placement in self.replicas)

    @property
    def placement_authored(self) -> bool:
        """Whether the user chose a place: an endpoint, or a device other than `auto` (spec 4)."""
        return any(placement.attached or placement.device != AUTO for placement in self.replicas)


# -------------------------------------------------------------------------------- the document


class RouterSection(Section, frozen=True, kw_only=True):
    """The vLLM Semantic Router's own part: Stoker serves models, it does not route between them."""

    router_keys: ClassVar[frozenset[str]] = EVERY_KEY

    enabled: Annotated[bool, _about("Accepted and ignored.")] = False


class DecisionModel(Section, frozen=True, kw_only=True):
    """Which deployment answers where a request names none."""

    deployment: Annotated[
        str | None, _about("Name of the default deployment; unset: the only one, if there is just one.")
    ] = None


class SystemSection(Section, frozen=True, kw_only=True):
    """System-wide choices."""

    router_keys: ClassVar[frozenset[str]] = frozenset(
        {
            "safety",
            "hazard",
            "prompt_guard",
            "domain_classifier",
            "pii_classifier",
            "fact_check_classifier",
            "hallucination_detector",
            "hallucination_explainer",
            "feedback_detector",
        }
    )

    decision_model: Annotated[DecisionModel, _about("The default deployment.")] = DecisionModel()


class ModelCatalog(Section, frozen=True, kw_only=True):
    """The models that are served."""

    router_keys: ClassVar[frozenset[str]] = frozenset(
        {"bindings", "signal_timeout_ms", "embeddings", "external", "kbs", "modules", "admission"}
    )

    deployments: Annotated[dict[str, DeploymentSection], _about("Deployments by name, at least one.")] = {}
    system: Annotated[SystemSection, _about("System-wide choices.")] = SystemSection()


class GlobalSection(Section, frozen=True, kw_only=True):
    """What the vLLM Semantic Router's model runtime reads, too."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"services", "stores", "integrations", "billing"})

    router: Annotated[RouterSection, _about("Accepted and ignored.")] = RouterSection()
    model_catalog: Annotated[ModelCatalog, _about("The models that are served.")] = ModelCatalog()


class StokerSettings(Section, frozen=True, kw_only=True):
    """The supervisor's own settings."""

    listen: Annotated[str, _about("Address of the HTTP side; port 0: any free one.", LISTEN)] = "127.0.0.1:8100"
    api_key_env: Annotated[
        str | None, _about("Environment variable that holds the API key; unset: none is asked for.", VARIABLE)
    ] = None
    name: Annotated[str, _about("Name of this supervisor; two on one machine need two names.", NAME)] = "default"
    log_dir: Annotated[
        str | None,
        _about(
            "Folder of the logs, one within it for each name; unset: `$XDG_STATE_HOME/stoker`, else "
            "`~/.local/state/stoker`.",
            LINE,
        ),
    ] = None
    admin_scale: Annotated[bool, _about("Let HTTP clients scale deployments (`/v1/admin/scale`).")] = False


class Document(Section, frozen=True, kw_only=True, rename={"global_": "global"}):
    """The whole file."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"version", "listeners", "setup", "providers", "routing"})

    global_: Annotated[GlobalSection, _about("Models and what belongs to them.")] = GlobalSection()
    stoker: Annotated[StokerSettings, _about("The supervisor's own settings.")] = StokerSettings()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The desired state as the other rooms read it. Deployments stand in the order of the file."""

    deployments: dict[str, Deployment]
    default_deployment: str | None = None
    stoker: StokerSettings = StokerSettings()


# -------------------------------------------------------------------------------- rules over several keys


class Broken(NamedTuple):
    """A rule that does not hold, and where below the section.

    `leans_on`: a key that the rule compares with; where that one was refused, the rule has nothing to say.
    """

    where: tuple[str | int, ...]
    found: str
    allowed: str
    leans_on: tuple[str, ...] = ("nothing",)


def broken_rules(section: DeploymentSection) -> Iterator[Broken]:
    """The rules of spec 3 that span several keys of one deployment."""
    if section.replicas is None:
        single = Placement(device=section.device, endpoint=section.endpoint, model=section.model)
        yield from _placement_rules((), single)
    else:
        yield from _replicas_rules(section, section.replicas)
    yield from _artifact_rules(section)
    yield from _ejection_rules(section.outlier_detection)


def _replicas_rules(section: DeploymentSection, replicas: tuple[Placement, ...]) -> Iterator[Broken]:
    for key in ("device", "endpoint", "model"):
        if getattr(section, key) is not None:
            yield Broken((key,), f"{key} together with replicas", f"replicas or a deployment-level {key}")
    if not 1 <= len(replicas) <= MAX_REPLICAS:
        yield Broken(("replicas",), f"{len(replicas)} replicas", f"1 to {MAX_REPLICAS} replicas")
    seen = set()
    for index, placement in enumerate(replicas):
        yield from _placement_rules(("replicas", index), placement)
        server = (same_endpoint(placement.endpoint or ""), placement.model)
        if placement.attached and server in seen:
            yield Broken(("replicas", index), "the endpoint and model of an earlier replica", "each of them once")
        seen.add(server)


def _placement_rules(where: tuple[str | int, ...], placement: Placement) -> Iterator[Broken]:
    if placement.device is not None and placement.attached:
        yield Broken((*where, "endpoint"), "endpoint together with device", "a device or an endpoint")
    if placement.model is not None and placement.managed:
        yield Broken((*where, "model"), "model without endpoint", "model only with an endpoint")


def _artifact_rules(section: DeploymentSection) -> Iterator[Broken]:
    managed = any(placement.managed for placement in section.placements())
    kind = artifact_kind(section.artifact or "")
    engine = section.engine_args.engine or default_engine(section.artifact)
    if managed and section.artifact is None:
        allowed = f"for a managed replica: {ARTIFACT.allowed}"
        yield Broken(("artifact",), "no artifact", allowed, leans_on=("replicas",))
    if managed and kind is not None and kind not in ARTIFACTS[engine]:
        allowed = ", ".join(form.value for form in ArtifactKind if form in ARTIFACTS[engine])
        found = f'"{section.artifact}" with engine {engine}'
        yield Broken(("artifact",), found, allowed, leans_on=("engine_args", "engine"))
    if section.revision is not None and kind is not ArtifactKind.HUB:
        found = "a revision of what is not on the hub"
        allowed = f"revision only where artifact is {ArtifactKind.HUB.value}"
        yield Broken(("revision",), found, allowed, leans_on=("artifact",))


def _ejection_rules(ejection: OutlierDetection) -> Iterator[Broken]:
    longest, base = ejection.longest_ejection_ms, ejection.base_ejection_ms
    if longest < base:
        where = ("outlier_detection", "max_ejection_ms")
        allowed = "base_ejection_ms or more, at most an hour"
        leans_on = ("outlier_detection", "base_ejection_ms")
        yield Broken(where, f"{longest}, less than base_ejection_ms {base}", allowed, leans_on)
