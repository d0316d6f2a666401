"""The pages for probes, scrapers and people: health, readiness, models, workers, inventory, metrics (spec 11)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.messages import MAX_BODY_BYTES
from supervisor import names
from supervisor.control.messages import CommandRefused, Inventory
from supervisor.fleet import Fleet
from supervisor.gateway import errors
from supervisor.gateway.app import Page

_encode = msgspec.json.Encoder().encode
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class ScaleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/admin/scale`: absolute numbers of replicas by deployment; those not named stay as they are."""

    deployments: dict[str, int]


class StatusPages:
    """Implements `gateway.app.Pages`.

    started: epoch seconds, what `/v1/models` calls created. save: writes a deployment's replicas back to the config;
    None where scaling over HTTP is switched off.
    """

    def __init__(
        self,
        fleet: Fleet,
        inventory: Callable[[], Inventory],
        metrics: Callable[[], bytes],
        started: float,
        save: Callable[[str], None] | None,
    ) -> None:
        self._fleet = fleet
        self._inventory = inventory
        self._metrics = metrics
        self._started = int(started)
        self._save = save
        self._pages: dict[str, Callable[[], Page]] = {
            "/": self._index,
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": lambda: Page(200, self._metrics(), PROMETHEUS),
            "/v1/models": self._models,
            "/v1/workers": self._workers,
            "/v1/inventory": lambda: Page(200, _encode(self._inventory())),
            "/v1/admin/scale": self._scales,
        }

    def get(self, path: str) -> Page | None:
        page = self._pages.get(path)
        if page is not None:
            return page()
        if path.startswith("/v1/models/"):
            return self._model(path.removeprefix("/v1/models/"))
        return None

    def scale(self, body: bytes) -> Page:
        if self._save is None:
            return self._switched_off()
        try:
            request = msgspec.json.decode(body, type=ScaleRequest)
            for name, count in request.deployments.items():
                self._check(name, count)
            for name, count in request.deployments.items():
                self._fleet.scale(name, count, "HTTP")
                self._save(name)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return _error(errors.BAD_REQUEST, f'expected {{"deployments": {{NAME: N}}}}: {error}')
        except CommandRefused as error:
            kind = errors.NOT_FOUND if error.code == "not_found" else errors.BAD_REQUEST
            return _error(kind, str(error))
        return self._scales()

    def _check(self, name: str, count: int) -> None:
        """All or nothing: refuse before anything is changed. Raises CommandRefused."""
        self._fleet.check_scale(name, count)

    def _index(self) -> Page:
        return Page(200, _encode({"name": "stoker", "pages": sorted(self._pages), "limit_bytes": MAX_BODY_BYTES}))

    def _health(self) -> Page:
        return Page(200, b'{"status":"ok"}')

    def _ready(self) -> Page:
        if self._fleet.stopping:
            return Page(503, b'{"status":"stopping"}')
        served = self._fleet.served
        missing = [name for name, group in served.items() if not group.can_answer()]
        if missing or not served:
            return Page(503, _encode({"status": "not ready", "waiting_for": missing}))
        return Page(200, b'{"status":"ready"}')

    def _models(self) -> Page:
        rows = [self._model_row(name) for name in self._fleet.served]
        return Page(200, _encode({"object": "list", "data": rows}))

    def _model(self, name: str) -> Page:
        served = self._fleet.served
        if name not in served:
            return _error(errors.MODEL_NOT_FOUND, names.no_such("model", name, list(served)))
        return Page(200, _encode(self._model_row(name)))

    def _model_row(self, name: str) -> dict[str, object]:
        group = self._fleet.groups[name]
        card = group.card
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "stoker",
            "root": group.deployment.artifact,
            "max_model_len": card.max_model_len if card is not None else None,
        }

    def _workers(self) -> Page:
        inventory = self._inventory()
        rows = [
            {
                "worker_id": row.name,
                "incarnation": row.incarnation,
                "model_name": deployment.name,
                "engine": deployment.engine,
                "device": row.device,
                "status": row.state,
                "in_flight": row.in_flight,
                "outstanding_bytes": row.outstanding_bytes,
            }
            for deployment in inventory.deployments
            for row in deployment.replicas
        ]
        return Page(200, _encode({"workers": rows}))

    def _scales(self) -> Page:
        if self._save is None:
            return self._switched_off()
        rows = {
            name: {
                "replicas": len(group.placements),
                "current_replicas": len(group.slots),
                "ready_replicas": group.ready,
            }
            for name, group in self._fleet.served.items()
        }
        return Page(200, _encode({"deployments": rows}))

    def _switched_off(self) -> Page:
        return _error(errors.FORBIDDEN, "scaling over HTTP is off; set stoker.admin_scale: true, or use `stoker scale`")


def _error(kind: errors.Kind, message: str) -> Page:
    return Page(kind.status, errors.body(kind, message))
