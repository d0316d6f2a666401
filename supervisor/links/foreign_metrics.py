"""How much a foreign server has in flight, read from its own metrics: what a drain waits for (spec 10).

In flight = running + waiting, summed over label sets. Half a sum is not a count: where either gauge is missing
or is no number, the answer is which one, so that the drain can say so instead of waiting for a zero that means
nothing.
"""

from __future__ import annotations

import dataclasses
import math

from prometheus_client.parser import text_string_to_metric_families


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """No count: `metric` is not there, or is no count; of a page without any gauge that is known, all that were
    looked for."""

    metric: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Family:
    """The gauges of one kind of server. `handed_off`: queues between prefill and decode, empty where absent."""

    running: str
    waiting: str
    handed_off: tuple[str, ...] = ()

    @property
    def gauges(self) -> tuple[str, ...]:
        return (self.running, self.waiting, *self.handed_off)


VLLM = _Family("vllm:num_requests_running", "vllm:num_requests_waiting")
SGLANG = _Family(
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    (
        "sglang:num_prefill_bootstrap_queue_reqs",
        "sglang:num_prefill_prealloc_queue_reqs",
        "sglang:num_prefill_inflight_queue_reqs",
        "sglang:num_decode_prealloc_queue_reqs",
        "sglang:num_decode_transfer_queue_reqs",
    ),
)
"""The first queue of a prefill server is called `bootstrap` in some of its versions and `prealloc` in others."""
LLAMA_CPP = _Family("llamacpp:requests_processing", "llamacpp:requests_deferred")
FAMILIES = (VLLM, SGLANG, LLAMA_CPP)
LOOKED_FOR = " or ".join(family.running for family in FAMILIES)


def in_flight_of(metrics_text: str) -> int | Unreadable:
    """Requests that the server has running, waiting or between its parts, from the text of its `/metrics`."""
    family = _family_of(metrics_text)
    if family is None:
        return Unreadable(LOOKED_FOR)
    total = 0
    for gauge in family.gauges:
        count = _sum(metrics_text, gauge)
        if count is None and gauge in family.handed_off:
            continue
        if count is None or not math.isfinite(count) or count < 0:
            return Unreadable(gauge)
        total += round(count)
    return total


def _family_of(metrics_text: str) -> _Family | None:
    """Whose page it is; None where it has neither gauge of any."""
    for family in FAMILIES:
        if family.running in metrics_text or family.waiting in metrics_text:
            return family
    return None


def _sum(metrics_text: str, gauge: str) -> float | None:
    """The gauge over all its label sets; None where it is not there, NaN where a line of it cannot be read.

    Only its own lines are parsed: a server has thousands, for which the parser takes milliseconds.
    """
    lines = "".join(line + "\n" for line in metrics_text.split("\n") if line.startswith(gauge))
    try:
        samples = [
            sample.value
            for metric in text_string_to_metric_families(lines)
            for sample in metric.samples
            if sample.name == gauge
        ]
    except (ValueError, IndexError):
        return math.nan
    if any(value < 0 for value in samples):
        return math.nan
    return sum(samples) if samples else None
