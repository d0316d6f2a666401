"""Inventories for tests: only what a test is about has to be said."""

from __future__ import annotations

from typing import Any

from supervisor.control.messages import DeploymentStatus, Inventory, ReplicaStatus, SupervisorStatus


def replica(name: str, state: str = "ready", **fields: Any) -> ReplicaStatus:
    values: dict[str, Any] = {
        "deployment": name.partition("/")[0],
        "incarnation": 1,
        "pid": 4711,
        "device": "cpu",
        "reason": "",
        "in_flight": 0,
        "outstanding_bytes": 0,
        "restarts": 0,
        "threads": 1,
        "rss_bytes": 512 * 1024 * 1024,
        "gpu_bytes": 0,
        "cpu_percent": 12.0,
        "requests_per_s": 1.5,
        "p50_ms": 3.0,
        "p99_ms": 8.25,
        "requests": 100,
        "failures": 0,
        "age_s": 125.0,
        "in_state_s": 100.0,
        "forward_age_s": 0.0,
        "queued_rows": 0,
        "engine_in_flight": 0,
        "cancelled_rows": 0,
        "forwards": 10,
        "rows": 20,
    }
    return ReplicaStatus(name=name, state=state, **(values | fields))


def deployment(*replicas: ReplicaStatus, desired: int | None = None, **fields: Any) -> DeploymentStatus:
    ready = sum(row.state == "ready" for row in replicas)
    wanted = len(replicas) if desired is None else desired
    values: dict[str, Any] = {
        "name": replicas[0].deployment if replicas else "primary",
        "artifact": "stub",
        "engine": "stub",
        "task": "embed",
        "state": "ready" if ready >= wanted else "degraded" if ready else "unavailable",
        "desired_replicas": wanted,
        "ready_replicas": ready,
        "restarts": sum(row.restarts for row in replicas),
        "requests_per_s": 3.0,
        "p50_ms": 3.0,
        "p99_ms": 9.0,
        "requests": 200,
        "failures": 0,
        "limits": {},
        "warnings": [],
        "replicas": list(replicas),
    }
    return DeploymentStatus(**(values | fields))


def inventory(*deployments: DeploymentStatus, **fields: Any) -> Inventory:
    values: dict[str, Any] = {
        "name": "default",
        "version": "0.1.0",
        "pid": 4000,
        "listen": "127.0.0.1:8100",
        "state": "running",
        "uptime_s": 3725.0,
        "rss_bytes": 40 * 1024 * 1024,
        "cpu_percent": 0.5,
        "cpu_budget": 2,
        "cpu_threads_used": 2,
        "memory_total_bytes": 8 * 1024**3,
        "memory_used_bytes": 2 * 1024**3,
        "config": None,
        "log_dir": None,
        "last_event": 0,
    }
    return Inventory(
        deployments=list(deployments),
        supervisor=SupervisorStatus(**(values | fields)),
        devices=[],
        warnings=[],
    )


TWO_READY = inventory(deployment(replica("primary/0"), replica("primary/1")))
