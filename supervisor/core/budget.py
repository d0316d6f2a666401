"""How many threads each CPU replica computes with, and which cores it is pinned to (spec 9). Pure.

The budget is what this process may really use: the cores its affinity allows, cut by the tightest CPU quota
above it. Threads of a replica follow from the budget alone, never from the number of replicas: a scale
action may not change the speed, nor the answers, of what already runs. `supervisor.host.cpu` reads the
facts; this module only counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from engine.errors import StokerError

MAX_DEFAULT_THREADS = 16
"""More intra-op threads than this rarely help one forward; a configured number may be larger (spec 9)."""

MAX_DIGITS = 9
"""Digits of a thread count that are still read as a number; no machine has a thousand million cores."""


AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
"""Flags in /proc/cpuinfo of the CPUs that MKL's branches of these names are for."""


class Quota(NamedTuple):
    """A CPU limit as the kernel states it: `quota_us` of CPU time in each `period_us`; both positive."""

    quota_us: int
    period_us: int

    @property
    def cores(self) -> float:
        return self.quota_us / self.period_us


def default_threads(cores: int) -> int:
    """Threads of one CPU replica where nothing is configured: half the budget, 1 to 16 (spec 9)."""
    return max(1, min(MAX_DEFAULT_THREADS, cores // 2))


def quota_cores(quota_us: int, period_us: int) -> int:
    """Whole cores that a quota is worth, rounded up, at least 1. `period_us` must be positive."""
    return max(1, -(-quota_us // period_us))


def effective_budget(affinity_count: int, quotas: Sequence[Quota]) -> int:
    """Cores that may really be used: the smallest of affinity and every quota that applies, at least 1."""
    return max(1, min([affinity_count, *(quota_cores(*quota) for quota in quotas)]))


def threads_for(budget: int, configured: int | None) -> int:
    """Threads of one CPU replica: `configured` capped by the budget, or the default for this budget."""
    return default_threads(budget) if configured is None else max(1, min(budget, configured))


def parse_threads(text: str) -> int:
    """The thread count in `text` (a flag, `STOKER_CPU_THREADS`); StokerError unless a positive integer."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS and int(digits) > 0):
        raise StokerError(f"expected a positive whole number of threads, found {text[:40]!r}: give 1 or more")
    return int(digits)


def parse_adaptive(text: str) -> int:
    """The mode of learning in `text` (`STOKER_CPU_ADAPTIVE_THREADS`); StokerError unless 0, 1 or 2."""
    if text.strip() not in ("0", "1", "2"):
        raise StokerError(f"expected 0 (off), 1 (learn and report) or 2 (also serve), found {text[:40]!r}")
    return int(text)


def cbwr_for(flags: Collection[str]) -> str | None:
    """Value of MKL_CBWR by which MKL's sums do not depend on the number of threads, by the CPU's flags.

    Only these two branches of MKL have the strict mode; None where the CPU has neither, and on other CPUs than x86.
    """
    if AVX512.issubset(flags):
        return "AVX512,STRICT"
    return "AVX2,STRICT" if AVX2.issubset(flags) else None


def oversubscription(threads_per_replica: Sequence[int], budget: int) -> str | None:
    """The warning for status and dashboard where the CPU replicas have more threads than cores, else None."""
    total = sum(threads_per_replica)
    if total <= budget:
        return None
    return (
        f"the CPU replicas ({len(threads_per_replica)}) use {total} threads, the CPU budget is {budget}: "
        "they compete for cores; lower cpu.threads or the number of CPU replicas"
    )


def spread(cores: Sequence[int], threads: Sequence[int]) -> list[tuple[int, ...] | None]:
    """Disjoint core sets, one a replica in the order given (`affinity: spread`); None: did not fit, unpinned.

    The sets of the first replicas do not depend on later ones, so adding a replica at the end moves nobody.
    """
    sets: list[tuple[int, ...] | None] = []
    taken = 0
    for count in threads:
        fits = taken + count <= len(cores)
        sets.append(tuple(cores[taken : taken + count]) if fits else None)
        taken += count if fits else 0
    return sets
