"""Details of a replica: history, exits, ejection, batches, threads, card; on wide and on narrow terminals."""

from __future__ import annotations

import msgspec

from supervisor.control.messages import EjectionStatus, ResultCacheStatus
from tests.dashboard.bench import Bench, piloted
from tests.dashboard.fleet import (
    CARD,
    FakeSource,
    deployment,
    details_of,
    fleet_of_twelve,
    fleet_that_learns,
    inventory,
    replica,
    swayed,
)
from ui.dashboard.model import find_replica
from ui.dashboard.source import ReplicaRead
from ui.dashboard.widgets.line_view import LineView

LONG_REASON = "golden check: two runs over the same inputs disagree: answers[0] differs by 1.13, expected 0.0001"


def learning() -> FakeSource:
    return FakeSource(first=fleet_that_learns())


@piloted((120, 40))
async def test_the_history_tells_states_reasons_and_how_a_process_ended(bench: Bench) -> None:
    await bench.press("enter")
    assert bench.source.replica == "primary/0"
    row = bench.picture_of("restarting")
    assert "#1" in row and "SIGSEGV" in row and "1 s" in row
    assert bench.picture_of("#2 ● ready")
    await bench.press("escape")
    assert bench.source.replica is None


@piloted((120, 40), source=learning)
async def test_batch_sizes_and_busy_time_of_the_last_minute_are_told(bench: Bench) -> None:
    for moment in range(61):
        bench.app.model.history.add(swayed(fleet_of_twelve(), moment))
    await bench.press("enter")
    row = bench.picture_of("batches")
    assert "6.5 rows, 181 tokens a forward" in row and "busy 62%" in row


@piloted((120, 40))
async def test_an_ejection_is_told_with_what_is_left_and_what_comes_next(bench: Bench) -> None:
    await bench.go_to("primary/3")
    await bench.press("enter")
    row = bench.picture_of(" ejection ")
    assert "out, back in 24 s" in row and "the next lasts 1m00s" in row and "ejected once" in row


@piloted((120, 40))
async def test_a_withheld_ejection_says_why(bench: Bench) -> None:
    await bench.press("enter")
    status = find_replica(fleet_of_twelve(), "primary/0")
    assert status is not None
    ejection = EjectionStatus(
        timeouts=3, needed=3, ejected_s=0.0, by_hand=False, next_s=30.0, withheld="no_peer_answered", ejections=0,
        readmissions=0,
    )  # fmt: skip
    bench.source.sink(ReplicaRead(msgspec.structs.replace(details_of(status), ejection=ejection)))
    await bench.settle()
    row = bench.picture_of(" ejection ")
    assert "3 of 3 timeouts in a row · withheld: no other replica has answered since" in row


@piloted((120, 40), source=learning)
async def test_h_e_t_and_l_choose_the_pane_beside_the_log(bench: Bench) -> None:
    await bench.press("enter", "t")
    assert bench.picture_of("─ threads") and bench.picture_of("< 128") and bench.picture_of(" log ─")
    await bench.press("e")
    assert bench.picture_of("─ events") and not bench.picture_of("─ threads")
    await bench.press("h")
    assert bench.picture_of("─ history")
    await bench.press("l")
    assert bench.has_focus(bench.log) and bench.picture_of("─ history")
    await bench.press("tab")
    assert bench.has_focus(bench.app.screen.query_one("#history", LineView))


@piloted((80, 24), source=learning)
async def test_a_narrow_terminal_shows_one_pane_at_a_time_and_tab_goes_on(bench: Bench) -> None:
    await bench.press("enter")
    titles = ["─ log ·", "─ history", "─ events", "─ threads", "─ card"]
    for title in [*titles, titles[0]]:
        assert [one for one in titles if bench.picture_of(one)] == [title]
        await bench.press("tab")
    await bench.press("f")
    assert bench.picture()[0].startswith("─ history")
    await bench.press("escape", "escape")


@piloted((80, 24))
async def test_the_card_is_not_lost_on_a_small_terminal(bench: Bench) -> None:
    await bench.press("enter", "tab", "tab", "tab", "tab")
    assert bench.picture_of("revision") and bench.picture_of("golden")


@piloted((120, 40))
async def test_the_card_tells_what_was_calibrated_and_what_may_be_cached(bench: Bench) -> None:
    first, *others = fleet_of_twelve().deployments[0].replicas
    assert first.card is not None
    told = msgspec.structs.replace(
        first.card,
        calibrated=["max_num_seqs", "kv_cache_bytes"],
        kv_cache_bytes=64 << 20,
        scoring="yes and no",
        deterministic=True,
    )
    asked = msgspec.structs.replace(first, card=told, rows=750, cached_rows=250)
    await bench.push(inventory([deployment("primary", [asked, *others])]))
    await bench.press("enter")
    for label, value in [
        ("calibrated", "rows, kv cache"),
        ("kv cache", "64 MiB"),
        ("scoring", "yes and no"),
        ("deterministic", "yes"),
        ("cached", "250 rows, 25%"),
    ]:
        assert any(label in line and value in line for line in bench.picture()), label


@piloted((120, 40))
async def test_a_limit_says_its_value_and_whose_choice_it_is(bench: Bench) -> None:
    cards = [msgspec.structs.replace(CARD, max_num_seqs=rows, calibrated=["max_num_seqs"]) for rows in (32, 64)]
    found = [replica(f"primary/{index}", card=card) for index, card in enumerate(cards)]
    kept = [replica("stub/0", card=msgspec.structs.replace(CARD, engine="stub", calibrated=[]))]
    limits = {"max_num_seqs": None, "max_num_batched_tokens": 8192}
    await bench.push(inventory([deployment(name, rows, limits=limits) for name, rows in (("a", found), ("b", kept))]))
    for name, told in (("a", "32 to 64, calibrated"), ("b", "32, the engine decides")):
        await bench.go_to(name)
        await bench.press("enter")
        assert told in bench.picture_of("max_num_seqs"), bench.picture()
        assert "8 192" in bench.picture_of("max_num_batched_tokens")
        await bench.press("escape")


@piloted((80, 24))
async def test_a_long_reason_is_told_whole(bench: Bench) -> None:
    failed = replica("primary/0", state="failed", reason=LONG_REASON, last_exit=LONG_REASON, pid=None, card=None)
    await bench.push(inventory([deployment("primary", [failed])]))
    await bench.press("enter")
    assert LONG_REASON in " ".join(line.strip() for line in bench.picture())
    assert "as above" in bench.picture_of("last exit"), "it is not told twice"


@piloted((80, 24))
async def test_a_deployment_tells_how_often_its_answers_were_given_again(bench: Bench) -> None:
    cache = ResultCacheStatus(active=True, entries=12, bytes=34 << 10, hits=30, misses=10)
    await bench.push(inventory([deployment("primary", [replica("primary/0")], result_cache=cache)]))
    assert bench.picture_of("75% from cache")
    await bench.press("g", "enter")
    assert "75% of 40 hit" in bench.picture_of("result cache")
    assert "12 answers, 34 KiB" in bench.picture_of("remembers")


@piloted((120, 40))
async def test_details_of_a_deployment_have_its_log_alone(bench: Bench) -> None:
    await bench.press("g", "enter", "t", "h")
    assert bench.source.replica is None and not bench.picture_of("─ threads") and bench.has_focus(bench.log)


@piloted((120, 40))
async def test_the_palette_of_details_says_where_an_action_is_when_it_is_elsewhere(bench: Bench) -> None:
    await bench.press("enter", "colon", *"charts", "enter")
    assert "charts: on the main screen" in bench.news


@piloted((120, 40))
async def test_paused_details_stand_still(bench: Bench) -> None:
    await bench.press("enter", "p")
    before = [line for line in bench.picture() if "ejection" in line]
    status = find_replica(fleet_of_twelve(), "primary/0")
    assert status is not None
    bench.source.sink(ReplicaRead(details_of(msgspec.structs.replace(status, timeouts=2))))
    bench.source.push(swayed(fleet_of_twelve(), 90))
    await bench.settle()
    assert [line for line in bench.picture() if "ejection" in line] == before
