"""The tables of the benchmarks say what was measured: ratios within rounds, spreads, percentiles, and RESULTS.md."""

from __future__ import annotations

import pytest

from benchmarks import results
from benchmarks.peers.environments import LITSERVE, MOSEC, RAY


def test_a_ratio_compares_round_with_round() -> None:
    # The machine got three times as fast in the last round: the ratio of the medians would be 0.5.
    ours, theirs = [100.0, 50.0, 300.0], [100.0, 200.0, 100.0]
    assert results.ratio(ours, theirs) == "1.00 (0.25 to 3.00)"
    assert results.ratio([100.0], [50.0]) == "2.00"


def test_a_ratio_with_a_missing_round_is_none() -> None:
    assert results.ratio([100.0, 50.0], [100.0]) == "–"
    assert results.ratio([], []) == "–"
    assert results.ratio([0.0], [100.0]) == "–"


def test_a_spread_is_the_median_with_least_and_most() -> None:
    assert results.spread([3.0, 1000.0, 2.0]) == "3 (2 to 1,000)"
    assert results.spread([0.125], 2) == "0.12"


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [results.percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert results.percentile([7.0], 0.5) == 7.0
    with pytest.raises(ValueError, match="expected at least one value"):
        results.percentile([], 0.5)


def test_a_table_is_markdown_that_reads_in_a_terminal() -> None:
    assert results.markdown(["server", "n"], [["Stoker", "1"], ["a", "1,000"]]).splitlines() == [
        "| server |     n |",
        "| :----- | ----: |",
        "| Stoker |     1 |",
        "| a      | 1,000 |",
    ]


def test_a_section_replaces_its_last_run_and_nothing_else() -> None:
    document = results.with_section(results.with_section(results.HEAD, "One", "first"), "Two", "second")
    again = results.with_section(document, "One", "third")
    assert again == document.replace("first", "third")
    assert again.startswith(results.HEAD) and again.count("## One") == 1
    assert again.index("third") < again.index("## Two")


def test_peers_are_pinned_and_live_outside_the_sources() -> None:
    for peer in (MOSEC, LITSERVE, RAY):
        assert peer.packages and all("==" in package for package in peer.packages)
        assert peer.folder.parent.name == ".bench"
        assert "==" not in peer.version
