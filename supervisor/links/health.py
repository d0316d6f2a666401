"""Whether a foreign server can serve, asked again and again: what a heartbeat is for managed replicas (spec 5, 10).

`GET /health` each 0.5 s until it is ready, then each 5 s. A server that has no such page is asked for
`/v1/models`, and so is every one whose model is named in the config: a server may be well and lack the model.
Where it has a health page, that one decides: llama-cpp-python's list of models waits for a generation to end.
No aiohttp here: what fetches a page is handed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
from collections.abc import Awaitable, Callable

import msgspec

from supervisor.links.rewrite import Broken, said

HEALTH_PATH = "/health"
"""Where nothing else is said; only here a 404 means that the server has no such page."""
MODELS_PATH = "/v1/models"
UNREADY_INTERVAL_S = 0.5
"""Seconds from probe to probe while it is not ready."""
READY_INTERVAL_S = 5.0
"""Seconds from probe to probe while it is ready."""
PROBE_LIMIT_S = 2.0
"""A probe that takes longer has failed."""
MODELS_LIMIT_S = 1.0
"""A list of models that takes longer is not waited for, where the health page was good."""
MOST_NAMES = 8
"""Models of the server that a reason names."""

Fetch = Callable[[str], Awaitable[tuple[int, bytes]]]
"""Status and body of a page, by its path. Raises Broken."""


class HealthState(enum.StrEnum):
    """What a probe found."""

    READY = "ready"
    NOT_READY = "not_ready"
    """It answers, and says that it cannot serve (yet)."""
    MISSING = "missing"
    """It is well and does not serve the model that the config names."""
    UNRESPONSIVE = "unresponsive"
    """No answer in time: busy, stopped, or gone without a word."""
    UNREACHABLE = "unreachable"
    """No connection, or none that speaks HTTP."""


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """The result of one probe. `models`: what the server says that it serves; None: not asked, or not said."""

    state: HealthState
    reason: str = ""
    models: list[str] | None = None

    @property
    def ready(self) -> bool:
        """Whether it may be given requests."""
        return self.state is HealthState.READY


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


_models = msgspec.json.Decoder(_Models)


class HealthProbe:
    """Probes one server for one replica, one probe at a time, for as long as `run` runs.

    shown: the server as people may see it. model: the name it must serve; None: any. on_health: told each result.
    path: of the page that answers 200 while it can serve.
    """

    def __init__(
        self,
        shown: str,
        fetch: Fetch,
        model: str | None,
        on_health: Callable[[Health], None],
        path: str = HEALTH_PATH,
    ) -> None:
        self._shown = shown
        self._fetch = fetch
        self._model = model
        self._on_health = on_health
        self._path = path
        self._last_listed: list[str] | None = None
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Let the next probe be now, or right after the one that runs; many askings are one."""
        self._asked.set()

    async def run(self) -> None:
        """Probe until cancelled, the first time now."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            self._asked.clear()
            health = await self.look()
            self._on_health(health)
            interval = READY_INTERVAL_S if health.ready else UNREADY_INTERVAL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(started + interval):
                    await self._asked.wait()

    async def look(self) -> Health:
        """One probe."""
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                return await self._look()
        except TimeoutError:
            reason = f"{self._shown} did not answer a health probe within {PROBE_LIMIT_S:g} s"
            return Health(HealthState.UNRESPONSIVE, reason)
        except Broken as error:
            return Health(HealthState.UNREACHABLE, f"{self._shown}: {error}")

    async def _look(self) -> Health:
        status, _ = await self._fetch(self._path)
        if status == 404 and self._path == HEALTH_PATH:
            return await self._look_at_models()
        if status != 200:
            return Health(HealthState.NOT_READY, f"{self._shown} answered {self._path} with {said(status)}")
        return Health(HealthState.READY) if self._model is None else self._with_model(await self._listed())

    async def _look_at_models(self) -> Health:
        """A server without a health page is well where it says what it serves."""
        status, body = await self._fetch(MODELS_PATH)
        if status != 200:
            reason = f"{self._shown} has no {HEALTH_PATH} and answered {MODELS_PATH} with {said(status)}"
            return Health(HealthState.NOT_READY, reason)
        return self._with_model(_names(body))

    async def _listed(self) -> list[str] | None:
        """The models that a healthy server says it serves, or said last; None where it does not say."""
        try:
            async with asyncio.timeout(MODELS_LIMIT_S):
                status, body = await self._fetch(MODELS_PATH)
        except (TimeoutError, Broken):
            return self._last_listed
        self._last_listed = _names(body) if status == 200 else None
        return self._last_listed

    def _with_model(self, models: list[str] | None) -> Health:
        if self._model is None or models is None or self._model in models:
            return Health(HealthState.READY, models=models)
        reason = f"{self._shown} has no model {self._model!r}, {_there(models)}"
        return Health(HealthState.MISSING, reason, models)


def _names(body: bytes) -> list[str] | None:
    try:
        return [model.id for model in _models.decode(body).data]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _there(models: list[str]) -> str:
    if not models:
        return "nor any other"
    named = ", ".join(repr(name[:100]) for name in models[:MOST_NAMES])
    return f"it has {named}" + (f" and {len(models) - MOST_NAMES} more" if len(models) > MOST_NAMES else "")
