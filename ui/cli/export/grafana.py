"""A Grafana dashboard of what `/metrics` says (spec 12), as JSON: one table of panels, laid out two or three in a row.

A test asks a running supervisor for its metrics and compares: every metric named here is exported, and every exported
one is named here or in `LEFT_OUT`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

WIDTH = 24
"""Columns of a Grafana dashboard."""
HEIGHT = 8
SCHEMA = 39
"""Of dashboards as Grafana 10.4 writes them; later ones convert it when they read it."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF = '{deployment=~"$deployment"}'

LEFT_OUT: dict[str, str] = {}
"""Exported metrics that no panel shows, and why."""


class Query(NamedTuple):
    """An expression, and the legend of its lines."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """unit: as Grafana calls it. about: the sentence behind the panel's `i`."""

    title: str
    unit: str
    queries: Sequence[Query]
    about: str = ""
    stacked: bool = False


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{OF}[$__rate_interval]))"


def _quantile(share: float, metric: str, by: str = "le") -> str:
    return f"histogram_quantile({share:g}, sum by ({by}) (rate({metric}_bucket{OF}[$__rate_interval])))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Requests by outcome",
            "reqps",
            [Query(_rate("stoker_requests_total", "outcome"), "{{outcome}}")],
            "ok, cached, rejected (4xx), failed, timeouts, cancelled; overloaded and unavailable found no replica.",
            stacked=True,
        ),
        Panel(
            "Latency",
            "s",
            [
                Query(_quantile(share, "stoker_request_duration_seconds"), f"p{share * 100:g}")
                for share in (0.5, 0.9, 0.99)
            ],
            "Of answered requests, from taking one to its last byte.",
        ),
        Panel(
            "Failed share",
            "percentunit",
            [
                Query(
                    f"sum by (deployment) (rate(stoker_requests_total{OF[:-1]},"
                    'outcome!~"ok|cached|rejected|cancelled"}[$__rate_interval])) / '
                    f"{_rate('stoker_requests_total', 'deployment')}",
                    "{{deployment}}",
                )
            ],
            "Failures, timeouts, and requests that found no replica, of all.",
        ),
    ),
    "Replicas": (
        Panel("Ready", "none", [Query(f"sum by (deployment) (stoker_replica_ready{OF})", "{{deployment}}")]),
        Panel("Requests by replica", "reqps", [Query(_rate("stoker_requests_total", "replica"), "{{replica}}")]),
        Panel(
            "In flight",
            "none",
            [Query(f"stoker_in_flight{OF}", "{{replica}}")],
            "A replica takes 32 at a time; when all are full the answer is 429.",
        ),
        Panel("Bytes in flight", "bytes", [Query(f"stoker_outstanding_bytes{OF}", "{{replica}}")]),
        Panel(
            "Memory", "bytes", [Query(f"stoker_replica_resident_bytes{OF}", "{{replica}}")], "Shared pages included."
        ),
    ),
    "Engines": (
        Panel(
            "Time in forwards",
            "percentunit",
            [Query(_rate("stoker_forward_seconds_total", "replica"), "{{replica}}")],
            "1: the device is never idle.",
        ),
        Panel(
            "Rows in a forward",
            "none",
            [
                Query(
                    f"{_rate('stoker_batch_rows_total', 'replica')} / {_rate('stoker_forwards_total', 'replica')}",
                    "{{replica}}",
                )
            ],
        ),
        Panel(
            "Tokens", "none", [Query(_rate("stoker_batch_tokens_total", "replica"), "{{replica}}")], "A second, padded."
        ),
        Panel(
            "Age of the running forward",
            "s",
            [Query(f"stoker_forward_age_seconds{OF}", "{{replica}}")],
            "One that only grows hangs; restart_hung_ms restarts it.",
        ),
        Panel(
            "Learned threads",
            "none",
            [Query(f"stoker_threads_learned{OF}", "{{replica}} {{range}}")],
            "Fastest thread count by padded tokens, where cpu.adaptive is on.",
        ),
    ),
    "Caches": (
        Panel(
            "Requests answered from the result cache",
            "percentunit",
            [
                Query(
                    f"{_rate('stoker_result_cache_hits_total', 'deployment')} / "
                    f"({_rate('stoker_result_cache_hits_total', 'deployment')} + "
                    f"{_rate('stoker_result_cache_misses_total', 'deployment')})",
                    "{{deployment}}",
                )
            ],
            "Of those that were looked up, where one replica serves.",
        ),
        Panel("Size of the result cache", "bytes", [Query(f"stoker_result_cache_bytes{OF}", "{{deployment}}")]),
        Panel(
            "Rows known from before",
            "none",
            [Query(_rate("stoker_cached_rows_total", "replica"), "{{replica}}")],
            "A second, not computed, where several replicas serve.",
        ),
    ),
    "Trouble": (
        Panel(
            "Restarts", "none", [Query(f"sum by (replica) (increase(stoker_restarts_total{OF}[5m]))", "{{replica}}")]
        ),
        Panel(
            "Ejections",
            "none",
            [
                Query(f"sum by (replica) (increase(stoker_ejections_total{OF}[5m]))", "{{replica}} ejected"),
                Query(f"sum by (replica) (increase(stoker_readmissions_total{OF}[5m]))", "{{replica}} readmitted"),
                Query(f"sum by (reason) (increase(stoker_ejections_withheld_total{OF}[5m]))", "withheld: {{reason}}"),
            ],
        ),
        Panel(
            "Starts and drains",
            "s",
            [
                Query(_quantile(0.9, "stoker_start_seconds", "le, kind"), "start ({{kind}}), p90"),
                Query(_quantile(0.9, "stoker_drain_seconds"), "drain, p90"),
            ],
        ),
        Panel(
            "Answers that were NaN",
            "none",
            [Query(f"sum by (replica) (increase(stoker_nan_outputs_total{OF}[5m]))", "{{replica}}")],
            "Sent as 500.",
        ),
        Panel(
            "Bad frames",
            "none",
            [Query("sum by (socket) (increase(stoker_bad_frames_total[5m]))", "{{socket}}")],
            "Dropped: another version, or somebody who should not be there.",
        ),
    ),
}


def dashboard() -> dict[str, object]:
    """The dashboard, ready to be imported."""
    return {
        "uid": "stoker",
        "title": "Stoker",
        "tags": ["stoker"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, object]]:
    source: dict[str, object] = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }
    query = "label_values(stoker_replica_ready, deployment)"
    deployment: dict[str, object] = {
        "name": "deployment",
        "label": "Deployment",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "deployment"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }
    return [source, deployment]


def _panels() -> Iterator[dict[str, object]]:
    number, top = 1, 0
    for title, panels in ROWS.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, top, 24, 1),
        }
        number, top = number + 1, top + 1
        for line in _lines(panels):
            width = WIDTH // len(line)
            for column, panel in enumerate(line):
                yield _graph(panel, number, _place(column * width, top, width, HEIGHT))
                number += 1
            top += HEIGHT


def _lines(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Three in a line, and two where one would be left alone."""
    if len(panels) <= 3:
        return [panels]
    first = 2 if len(panels) % 3 else 3
    return [panels[:first], *_lines(panels[first:])]


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _graph(panel: Panel, number: int, place: dict[str, int]) -> dict[str, object]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": query.expr, "legendFormat": query.legend, "datasource": SOURCE}
        for index, query in enumerate(panel.queries)
    ]
    custom = {"stacking": {"mode": "normal" if panel.stacked else "none"}, "fillOpacity": 20 if panel.stacked else 0}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }
