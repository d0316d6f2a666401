"""Which columns and rows there are, at every width; what each state says. All pure."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from supervisor.control.messages import DeviceStatus, Totals
from tests.dashboard.fleet import deployment, fleet_of_twelve, inventory, many, replica, swayed
from ui.dashboard.columns import BY_NAME, COLUMNS, NARROWEST_REASON, lay_out, natural, sparkline
from ui.dashboard.model import History, Link, Model
from ui.dashboard.paint import plain
from ui.dashboard.rows import Order, RowKey, build_rows
from ui.dashboard.source import Mailbox
from ui.dashboard.states import FULL_IN_FLIGHT, REPLICA_LOOKS, goes_on, goes_on_in
from ui.dashboard.widgets.masthead import Around, masthead
from ui.looks import shown_state


@given(st.integers(0, 300))
def test_the_table_is_never_wider_than_the_terminal(width: int) -> None:
    layout = lay_out(fleet_of_twelve(), width)
    taken = 1 + sum(placed.width for placed in layout.placed) + layout.gap * (len(layout.placed) - 1)
    assert {"name", "state", "reason"} <= layout.names
    if width >= 60:
        assert taken <= width


@given(st.integers(60, 300))
def test_a_wider_terminal_shows_no_fewer_columns(width: int) -> None:
    fewer, more = lay_out(fleet_of_twelve(), width), lay_out(fleet_of_twelve(), width + 60)
    assert fewer.names <= more.names


def test_eighty_columns_keep_what_matters() -> None:
    layout = lay_out(fleet_of_twelve(), 80)
    assert [placed.column.name for placed in layout.placed] == [
        "name",
        "state",
        "device",
        "in_flight",
        "rate",
        "reason",
    ]
    assert layout.placed[-1].width >= NARROWEST_REASON


def test_eighty_columns_hold_what_three_kinds_of_trouble_take() -> None:
    layout = lay_out(inventory([deployment("minilm", [replica("minilm/0")])]), 80)
    assert layout.placed[-1].width >= len("3 of 5 ready, 1 draining, 1 failed")


def test_a_long_state_is_never_cut() -> None:
    odd = inventory([deployment("primary", [replica("primary/0", state="unresponsive")])])
    assert {placed.column.name: placed.width for placed in lay_out(odd, 80).placed}["state"] == 14


def test_what_nobody_measures_is_no_zero() -> None:
    """Attached replicas run somewhere else: their CPU, memory and threads are not known here."""
    attached = replica(
        "far/0", managed=False, pid=None, device="attached", endpoint="http://10.0.0.7:8000", cpu_percent=0.0,
        rss_bytes=0, threads=None,
    )  # fmt: skip
    fleet = inventory([deployment("far", [attached]), deployment("near", [replica("near/0")])])
    layout = lay_out(fleet, 200)
    names = [placed.column.name for placed in layout.placed]
    for row in build_rows(fleet, layout, History()):
        shown = dict(zip(names, (text for text, _ in row.cells), strict=True))
        measured = {shown[name] for name in ("cpu", "memory", "threads")}
        assert (measured == {"-"}) is (row.key.deployment == "far"), row


def test_two_hundred_columns_show_everything() -> None:
    assert lay_out(fleet_of_twelve(), 200).names == {column.name for column in COLUMNS}


def test_gpu_memory_is_shown_only_where_there_is_some() -> None:
    assert "gpu_memory" not in lay_out(many(2), 250).names


def test_the_column_under_the_mouse() -> None:
    layout = lay_out(fleet_of_twelve(), 80)
    column = layout.column_at(1)
    assert column is not None and column.name == "name"
    assert layout.column_at(0) is None and layout.column_at(500) is None


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({}, ""),
        ({"state": "draining", "in_flight": 3, "in_state_s": 12.0, "drain_left_s": 18.0},
         "draining, 3 left, 12 s of 30"),
        ({"ejected_s": 24.0}, "ejected, back in 24 s"),
        ({"ejected_s": 24.0, "state": "ejected", "reason": "back in 24 s"}, "ejected, back in 24 s"),
        ({"state": "loading", "in_state_s": 2.0, "reason": "SIGKILL", "last_exit": "SIGKILL"},
         "loading weights, 2 s, last exit: SIGKILL"),
        ({"backoff_s": 1.6}, "back in 2 s after a failure"),
        ({"backoff_s": 1.6, "reason": "engine error 500"}, "back in 2 s: engine error 500"),
        ({"state": "restarting", "restart_in_s": 4.0, "reason": "SIGKILL"}, "restarting in 4 s: SIGKILL"),
        ({"state": "restarting", "last_exit": "exit code 3"}, "restarting: exit code 3"),
        ({"state": "loading", "in_state_s": 12.0}, "loading weights, 12 s"),
        ({"state": "loading", "in_state_s": 12.0, "pid": None, "reason": "the shared weights are being loaded"},
         "loading shared weights, 12 s"),
        ({"state": "failed", "reason": "failed to load 3 times"}, "failed: failed to load 3 times"),
        ({"state": "incompatible", "reason": "dtype float16, baseline float32"},
         "incompatible: dtype float16, baseline float32"),
        ({"state": "unresponsive", "reason": "no heartbeat for 5 s", "in_state_s": 7.0},
         "unresponsive 7 s: no heartbeat for 5 s"),
        ({"state": "stopped", "cordoned": True}, "out by hand; restart brings it back"),
        ({"forward_age_s": 14.0}, "a forward runs for 14 s"),
        ({"in_flight": 32}, "full: 32 in flight"),
    ],
)  # fmt: skip
def test_what_goes_on(changes: dict[str, object], phrase: str) -> None:
    assert goes_on(replica("primary/0", **changes)) == phrase


def test_a_deployment_counts_what_its_other_replicas_do() -> None:
    primary, reranker, chat = fleet_of_twelve().deployments
    assert goes_on_in(primary).endswith(" ready, 1 draining, 1 ejected")
    assert goes_on_in(reranker).endswith(" ready, 1 failed, 1 loading")
    assert goes_on_in(chat).endswith(" ready, 1 restarting")


def test_every_state_of_the_supervisor_has_a_look() -> None:
    from supervisor.core.lifecycle import State

    assert {state.value for state in State} <= REPLICA_LOOKS.keys()
    glyphs = [look.glyph for name, look in REPLICA_LOOKS.items() if name not in ("starting", "loading")]
    assert len(glyphs) == len(set(glyphs))


def test_full_is_what_dispatch_calls_full() -> None:
    from supervisor.core.dispatch import MOST_IN_FLIGHT

    assert FULL_IN_FLIGHT == MOST_IN_FLIGHT


def test_ejection_is_laid_over_ready_only() -> None:
    assert shown_state(replica("a/0", ejected_s=3.0)) == "ejected"
    assert shown_state(replica("a/0", ejected_s=3.0, state="draining")) == "draining"


def test_rows_are_keyed_by_incarnation_under_their_deployment() -> None:
    layout = lay_out(fleet_of_twelve(), 80)
    rows = build_rows(fleet_of_twelve(), layout, History())
    assert len(rows) == 15
    assert rows[0].key == RowKey("primary") and not rows[0].key.is_replica
    assert rows[4].key == RowKey("primary", "primary/3", 2)
    assert all(len(row.cells) == len(layout.placed) for row in rows)


def test_names_sort_by_their_number() -> None:
    fleet = inventory([deployment("p", [replica(f"p/{number}") for number in (10, 2, 1)])])
    rows = build_rows(fleet, lay_out(fleet, 80), History(), order=Order("name"))
    assert [row.key.replica for row in rows[1:]] == ["p/1", "p/2", "p/10"]
    assert natural("p/2") < natural("p/10") and natural("odd") == ("odd", -1)


@pytest.mark.parametrize("column", [column.name for column in COLUMNS if column.letter])
def test_every_sortable_column_sorts_both_ways(column: str) -> None:
    fleet = fleet_of_twelve()
    layout = lay_out(fleet, 200)
    one = build_rows(fleet, layout, History(), order=Order().by(column))
    other = build_rows(fleet, layout, History(), order=Order().by(column).by(column))
    assert {row.key for row in one} == {row.key for row in other}
    assert Order().by(column).falls is BY_NAME[column].falls


def test_hostile_names_and_reasons_are_literal_in_cells() -> None:
    wild = replica("p/0", reason="\x1b[31m[bold]", device="\x07cpu")
    fleet = inventory([deployment("p", [wild], artifact="\x1b]0;x\x07")])
    for row in build_rows(fleet, lay_out(fleet, 200), History()):
        assert all(text.isprintable() for text, _ in row.cells)


def test_a_sparkline_has_the_highest_bar_at_the_top() -> None:
    assert sparkline([0, 5, 10], 3) == "▁▅█"
    assert sparkline([0, 0], 5) == "▁▁" and sparkline([], 5) == ""


def test_history_ends_with_its_replica_and_is_bounded() -> None:
    history = History(kept_s=3)
    for moment in range(5):
        history.add(swayed(fleet_of_twelve(), moment))
    assert len(history.of("primary/0")) == 3 and len(history.rates("", 2)) == 2
    history.add(inventory([deployment("primary", [replica("primary/1")])]))
    assert not history.of("primary/0") and len(history.of("primary/1")) == 3
    history.add(inventory([deployment("primary", [replica("primary/1")])]))
    assert len({sample.second for sample in history.of("primary/1")}) == 3, "one sample a second"


@given(st.integers(0, 260), st.booleans())
def test_the_header_is_exactly_as_wide_as_the_terminal(width: int, tall: bool) -> None:
    model = Model()
    assert len(masthead(model, Around(), width, tall)) == 3
    model.take_inventory(fleet_of_twelve())
    lines = masthead(model, Around(readonly=True, needle="x" * 40, marked=3), width, tall)
    assert cell_len(plain(lines[0])) == max(width, 0) or width < 70
    assert all(cell_len(plain(line)) <= width or width < 70 for line in lines)


def test_the_header_tells_the_totals_of_the_supervisor() -> None:
    model = Model()
    totals = Totals(requests_per_s=812.0, p50_ms=4.0, p99_ms=77.0, in_flight=9, requests=10_000, failures=3)
    model.take_inventory(msgspec.structs.replace(fleet_of_twelve(), totals=totals))
    line = plain(masthead(model, Around(), 120, False)[2])
    assert "812" in line and "4.0 ms" in line and "77 ms" in line and "9 in flight" in line and "3 failures" in line


def test_simulated_cards_are_called_so() -> None:
    cards = [
        DeviceStatus(id=f"cuda:{index}", name="simulated cuda GPU", memory_total_bytes=None, memory_used_bytes=None,
                     utilisation=None, simulated=True)
        for index in range(2)
    ]  # fmt: skip
    model = Model()
    model.take_inventory(inventory([], devices=cards))
    assert "2 gpu" in plain(masthead(model, Around(), 120, False)[1])
    assert "simulated" in plain(masthead(model, Around(), 120, False)[1])
    assert len(masthead(model, Around(), 120, True)) == 3, "there is nothing to say of each"


def test_a_lost_supervisor_is_said_with_since_when() -> None:
    model = Model()
    model.take_inventory(fleet_of_twelve())
    model.lose("gone", 5.0)
    model.lose("gone", 9.0)
    assert model.link is Link.LOST and model.lost_at == 5.0
    assert "disconnected, retrying 12 s" in plain(masthead(model, Around(lost_for_s=12.0), 120, False)[0])


def test_warnings_of_the_supervisor_are_in_the_header() -> None:
    model = Model()
    warned = ["the CPU replicas (2) use 24 threads, the CPU budget is 16", "second"]
    model.take_inventory(msgspec.structs.replace(many(2), warnings=warned))
    last = plain(masthead(model, Around(), 80, False)[-1])
    assert last.startswith(" ▲ the CPU replicas (2) use 24") and "and 1 more" in last and len(last) <= 80


def test_a_stopping_supervisor_is_said() -> None:
    model = Model()
    model.take_inventory(
        msgspec.structs.replace(fleet_of_twelve(), supervisor=inventory([], state="stopping").supervisor)
    )
    assert "◐ stopping" in plain(masthead(model, Around(), 120, False)[0])


def test_a_mailbox_is_bounded_and_counts_what_it_lost() -> None:
    mailbox: Mailbox[int] = Mailbox(3)
    assert mailbox.put([1, 2]) and not mailbox.put([3, 4, 5], lost=7)
    assert mailbox.take() == ([3, 4, 5], 9)
    assert mailbox.take() == ([], 0)
    assert not mailbox.put([]) and mailbox.put([], lost=1)
