"""The document of spec 3 as types: what a user may write (`Document`), what the other rooms read (`Config`).

`Document` and the sections below it mirror the file key by key; docs/config.md is made from their fields.
`Config` is the same said once: defaults filled in, the shorthand for a single replica turned into a list of
one. The rules that span several keys are in `rules`; none knows of YAML.
Light on purpose: msgspec and the standard library, so that it costs the supervisor next to no memory.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from supervisor.config.engine_options import EngineArgs, EngineSection
from supervisor.config.shapes import (
    ARTIFACT,
    DEVICE,
    ENDPOINT,
    HOUR_MS,
    LINE,
    LISTEN,
    MODEL,
    NAME,
    REVISION,
    VARIABLE,
    DrainSeconds,
    EjectionMs,
    NotNegative,
    Percent,
    Positive,
    Section,
    about,
)

AUTO = "auto"
"""The device of a managed placement that names none; the device room picks one."""

EVERY_KEY = frozenset({"*"})
"""Of a section: any key that Stoker does not know belongs to the vLLM Semantic Router."""

# -------------------------------------------------------------------------------- parts of a deployment


class Placement(Section, frozen=True, kw_only=True):
    """Where one replica runs: on a `device` (managed) or behind an `endpoint` (attached)."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"served_name"})

    device: Annotated[str | None, about("Device that the replica runs on; `auto` lets Stoker choose.", DEVICE)] = None
    endpoint: Annotated[
        str | None, about("A running server to attach to; Stoker never starts or stops it.", ENDPOINT)
    ] = None
    model: Annotated[str | None, about("The name by which the attached server knows the model.", MODEL)] = None

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
        NotNegative, about("Timeouts in a row that eject a replica; 0 turns ejection off.")
    ] = 3
    base_ejection_ms: Annotated[
        EjectionMs, about("Length of the first ejection; each further one is twice as long.")
    ] = 30_000
    max_ejection_ms: Annotated[
        EjectionMs | None, about("Longest ejection; unset: ten times the base, at most an hour.")
    ] = None
    max_ejection_percent: Annotated[
        Percent, about("Share of the replicas that may be out at once; one always may.")
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
        Positive | None, about("Intra-op threads of each replica, capped by the budget; unset: half of it.")
    ] = None
    adaptive: Annotated[
        Literal[0, 1, 2],
        about("Learn the thread count from traffic: 0 off, 1 learn and report, 2 also serve what was learned."),
    ] = 0
    reproducible: Annotated[
        Literal["auto", "off"],
        about("`auto` makes answers independent of the thread count on x86; `off` leaves MKL as it is."),
    ] = "auto"
    affinity: Annotated[
        Literal["none", "spread"], about("`spread` pins replicas to disjoint cores while they fit.")
    ] = "none"


# -------------------------------------------------------------------------------- a deployment


class DeploymentCommon(Section, frozen=True, kw_only=True):
    """What a deployment says in the file and to the other rooms in the same words."""

    provider: Annotated[Literal["model_runtime"], about("The only value there is: leave it out.")] = "model_runtime"
    artifact: Annotated[str | None, about("The model; every managed replica needs one.", ARTIFACT)] = None
    revision: Annotated[str | None, about("Commit of an artifact from the hub; unset: its newest.", REVISION)] = None
    timeout_ms: Annotated[
        Positive, about("Longest that a request may take, a stream to its last token; then its caller gets 504.")
    ] = 30_000
    max_num_seqs: Annotated[
        Positive | None,
        about("Texts, or generations, computed together, at most; unset: each replica finds its own at its start."),
    ] = None
    max_num_batched_tokens: Annotated[
        Positive | None, about("Tokens computed together, at most; unset: each replica finds its own at its start.")
    ] = None
    outlier_detection: Annotated[OutlierDetection, about("Ejection of a replica that keeps timing out.")] = (
        OutlierDetection()
    )
    drain_timeout_s: Annotated[
        DrainSeconds, about("Longest that a replica that leaves waits for its requests; what still runs then is cut.")
    ] = 30.0
    retries: Annotated[
        NotNegative,
        about("Further replicas tried where one died before the first byte of its answer; 0 = off."),
    ] = 1
    restart_hung_ms: Annotated[NotNegative, about("A replica whose forward runs longer is restarted; 0 = never.")] = (
        300_000
    )
    result_cache_entries: Annotated[
        NotNegative, about("Answers kept, to be given again without computing (not of `generate`); 0 = off.")
    ] = 4096
    cpu: Annotated[CpuSettings, about("CPU threads of managed replicas.")] = CpuSettings()


class DeploymentSection(DeploymentCommon, frozen=True, kw_only=True):
    """A named model and its replicas, as the file says it."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"profile", "input", "public_name", "served_name"})

    replicas: Annotated[
        tuple[Placement, ...] | None,
        about("Where each replica runs, one entry each; `{}` is one on `auto`, a device may be repeated."),
    ] = None
    device: Annotated[
        str | None, about("Device of a single replica, instead of `replicas`; `stoker devices` lists them.", DEVICE)
    ] = None
    endpoint: Annotated[
        str | None, about("A running server as the single replica, instead of `replicas`.", ENDPOINT)
    ] = None
    model: Annotated[str | None, about("The name by which that server knows the model.", MODEL)] = None
    engine_args: Annotated[EngineSection, about("Engine and its arguments, the same for all replicas.")] = (
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

    enabled: Annotated[bool, about("Accepted and ignored.")] = False


class DecisionModel(Section, frozen=True, kw_only=True):
    """Which deployment answers where a request names none."""

    deployment: Annotated[
        str | None, about("Name of the default deployment; unset: the only one, if there is just one.")
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

    decision_model: Annotated[DecisionModel, about("The default deployment.")] = DecisionModel()


class ModelCatalog(Section, frozen=True, kw_only=True):
    """The models that are served."""

    router_keys: ClassVar[frozenset[str]] = frozenset(
        {"bindings", "signal_timeout_ms", "embeddings", "external", "kbs", "modules", "admission"}
    )

    deployments: Annotated[dict[str, DeploymentSection], about("Deployments by name, at least one.")] = msgspec.field(
        default_factory=dict
    )
    system: Annotated[SystemSection, about("System-wide choices.")] = SystemSection()


class GlobalSection(Section, frozen=True, kw_only=True):
    """What the vLLM Semantic Router's model runtime reads, too."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"services", "stores", "integrations", "billing"})

    router: Annotated[RouterSection, about("Accepted and ignored.")] = RouterSection()
    model_catalog: Annotated[ModelCatalog, about("The models that are served.")] = ModelCatalog()


class StokerSettings(Section, frozen=True, kw_only=True):
    """The supervisor's own settings."""

    listen: Annotated[str, about("Address of the HTTP side; port 0: any free one.", LISTEN)] = "127.0.0.1:8100"
    api_key_env: Annotated[
        str | None, about("Environment variable that holds the API key; unset: none is asked for.", VARIABLE)
    ] = None
    name: Annotated[str, about("Name of this supervisor; two on one machine need two names.", NAME)] = "default"
    log_dir: Annotated[
        str | None,
        about(
            "Folder of the logs, one within it for each name; unset: `$XDG_STATE_HOME/stoker`, else "
            "`~/.local/state/stoker`.",
            LINE,
        ),
    ] = None
    admin_scale: Annotated[bool, about("Let HTTP clients scale deployments (`/v1/admin/scale`).")] = False


class Document(Section, frozen=True, kw_only=True, rename={"global_": "global"}):
    """The whole file."""

    router_keys: ClassVar[frozenset[str]] = frozenset({"version", "listeners", "setup", "providers", "routing"})

    global_: Annotated[GlobalSection, about("Models and what belongs to them.")] = GlobalSection()
    stoker: Annotated[StokerSettings, about("The supervisor's own settings.")] = StokerSettings()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The desired state as the other rooms read it. Deployments stand in the order of the file."""

    deployments: dict[str, Deployment]
    default_deployment: str | None = None
    stoker: StokerSettings = StokerSettings()
