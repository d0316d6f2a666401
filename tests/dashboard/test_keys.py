"""Every key does what the registry says: the right command for the right incarnation, or the right thing on screen."""

from __future__ import annotations

import msgspec
from textual.widgets import Button, Input

from supervisor.control.events import SupervisorStopping
from supervisor.control.messages import (
    CommandRefused,
    DeploymentStatus,
    DrainReplica,
    Eject,
    Kill,
    Readmit,
    Restart,
    Scale,
    Stop,
)
from tests.dashboard.bench import Bench, piloted
from tests.dashboard.fleet import FakeSource, deployment, fleet_of_twelve, inventory, many, replica
from ui.dashboard import keymap
from ui.dashboard.desk import QuitChoice
from ui.dashboard.keymap import Place
from ui.dashboard.screens.confirm import ConfirmScreen
from ui.dashboard.screens.details import DetailsScreen
from ui.dashboard.screens.help import HelpScreen
from ui.dashboard.screens.main import MainScreen
from ui.dashboard.screens.palette import PaletteScreen
from ui.dashboard.screens.quit import QuitScreen
from ui.dashboard.screens.scale import ScaleScreen
from ui.dashboard.widgets.bottom_line import BottomLine
from ui.dashboard.widgets.fleet_table import FleetTable
from ui.dashboard.widgets.line_view import LineView

# ----------------------------------------------------------------------------------------------- the registry


def test_every_action_has_a_method_where_it_is_bound() -> None:
    owners = {
        Place.TABLE: FleetTable,
        Place.MAIN: MainScreen,
        Place.LOGS: LineView,
        Place.DETAILS: DetailsScreen,
    }
    for action in keymap.ACTIONS:
        for place in action.places & owners.keys():
            method = "action_" + action.name.partition("(")[0]
            assert hasattr(owners[place], method), (action.name, place)


def test_no_key_means_two_things_in_one_place() -> None:
    for place in Place:
        keys = [key for action in keymap.in_place(place, readonly=False) for key in action.keys]
        assert len(keys) == len(set(keys)), place


def test_a_screen_hides_no_key_of_the_app() -> None:
    app = {key for action in keymap.in_place(Place.APP, readonly=False) for key in action.keys}
    for place in (Place.TABLE, Place.MAIN, Place.DETAILS, Place.LOGS):
        own = {key for action in keymap.in_place(place, readonly=False) for key in action.keys}
        assert not own & app, place


def test_what_acts_is_nowhere_in_a_readonly_registry() -> None:
    assert not [action for action in keymap.actions(readonly=True) if action.acts]
    bound = {binding.action for place in Place for binding in keymap.bindings(place, readonly=True)}
    assert not bound & {"drain", "restart", "eject", "kill", "more", "fewer", "scale"}


# ----------------------------------------------------------------------------------------------- moving


@piloted()
async def test_the_cursor_starts_on_the_first_replica(bench: Bench) -> None:
    assert bench.cursor is not None and str(bench.cursor) == "primary/0#1"


@piloted()
async def test_j_and_k_and_the_arrows_move_by_rows(bench: Bench) -> None:
    await bench.press("j", "down", "k")
    assert str(bench.cursor) == "primary/1#1"
    await bench.press("up")
    assert str(bench.cursor) == "primary/0#1"


@piloted()
async def test_g_and_G_go_to_the_ends(bench: Bench) -> None:
    await bench.press("G")
    assert str(bench.cursor) == "chat/2#1"
    await bench.press("g")
    assert str(bench.cursor) == "primary"
    await bench.press("end", "home")
    assert str(bench.cursor) == "primary"


@piloted(source=lambda: FakeSource(first=many(64)))
async def test_pages_scroll_and_the_cursor_stays_visible(bench: Bench) -> None:
    await bench.press("pagedown", "pagedown")
    name = str(bench.cursor).partition("#")[0]
    assert int(name.partition("/")[2]) > 20
    assert bench.picture_of(name)
    await bench.press("G")
    assert bench.picture_of("primary/63")
    await bench.press("pageup", "ctrl+b", "g")
    assert bench.picture_of("primary/0 ")


# ----------------------------------------------------------------------------------------------- acting


@piloted()
async def test_d_drains_the_incarnation_under_the_cursor(bench: Bench) -> None:
    await bench.go_to("primary/3")
    await bench.press("d")
    assert bench.sent == [DrainReplica(replica="primary/3", incarnation=2)]
    assert "DrainReplica accepted" in bench.news


@piloted()
async def test_r_restarts_a_replica(bench: Bench) -> None:
    await bench.go_to("reranker/2")
    await bench.press("r")
    assert bench.sent == [Restart(target="reranker/2", incarnation=4)]


@piloted()
async def test_r_on_a_deployment_asks_and_restarts_it_rolling(bench: Bench) -> None:
    await bench.go_to("chat")
    await bench.press("r")
    assert bench.shows(ConfirmScreen)
    await bench.press("y")
    assert bench.sent == [Restart(target="chat")]


@piloted()
async def test_x_ejects_and_readmits_one_that_is_out(bench: Bench) -> None:
    await bench.press("x")
    await bench.go_to("primary/3")
    await bench.press("x")
    assert bench.sent == [
        Eject(replica="primary/0", incarnation=1),
        Readmit(replica="primary/3", incarnation=2),
    ]


@piloted()
async def test_plus_and_minus_are_for_the_deployment_of_the_row(bench: Bench) -> None:
    await bench.go_to("chat/1")
    await bench.press("plus", "plus", "minus")
    assert bench.sent == [
        Scale(deployment="chat", delta=1),
        Scale(deployment="chat", delta=1),
        Scale(deployment="chat", delta=-1),
    ]


@piloted()
async def test_s_opens_a_form_prefilled_with_what_was_asked(bench: Bench) -> None:
    await bench.go_to("reranker/0")
    await bench.press("s")
    assert bench.shows(ScaleScreen)
    assert bench.app.screen.query_one(Input).value == "4"
    await bench.press("up", "up", "down", "enter")
    assert bench.sent == [Scale(deployment="reranker", replicas=5)]


@piloted()
async def test_the_scale_form_takes_no_number_outside_the_limits(bench: Bench) -> None:
    await bench.press("s", "6", "5", "enter")
    assert bench.shows(ScaleScreen) and not bench.sent
    await bench.press("backspace", "enter")
    assert bench.sent == [Scale(deployment="primary", replicas=6)]


@piloted()
async def test_the_scale_form_is_left_by_escape(bench: Bench) -> None:
    await bench.press("s", "7", "escape")
    assert bench.shows(MainScreen) and not bench.sent


@piloted()
async def test_d_on_a_deployment_says_that_it_is_for_a_replica(bench: Bench) -> None:
    await bench.go_to("primary")
    await bench.press("d")
    assert not bench.sent and "is for a replica" in bench.news


@piloted()
async def test_a_refusal_is_told_literally(bench: Bench) -> None:
    def refuse(command: object) -> object:
        raise CommandRefused("it is \x1b[31m[bold]draining[/] already")

    bench.source.answer = refuse  # type: ignore[assignment]
    await bench.press("d")
    assert "it is \\x1b[31m[bold]draining[/] already" in bench.news
    assert bench.picture_of("[bold]draining[/]")


# ----------------------------------------------------------------------------------------------- kill


@piloted()
async def test_K_asks_with_the_safe_button_focused(bench: Bench) -> None:
    await bench.press("K")
    assert bench.shows(ConfirmScreen)
    focused = bench.app.focused
    assert isinstance(focused, Button) and focused.id == "cancel"
    await bench.press("enter")
    assert bench.shows(MainScreen) and not bench.sent


@piloted()
async def test_K_kills_after_yes(bench: Bench) -> None:
    await bench.go_to("primary/3")
    await bench.press("K", "right", "enter")
    assert bench.sent == [Kill(replica="primary/3", incarnation=2)]


@piloted()
async def test_the_kill_dialog_says_what_is_tried_elsewhere_and_what_is_cut(bench: Bench) -> None:
    """Spec 6: an exchange without a byte of its answer is tried once more on another replica; a stream is cut."""
    await bench.go_to("primary/0")
    await bench.press("K")
    assert bench.picture_of("SIGKILL to its process group now, with 3 exchanges in flight:")
    assert bench.picture_of("what got no byte yet is tried once more on another replica")
    assert bench.picture_of("a stream that began is cut")
    await bench.press("n")
    await bench.go_to("reranker/2")
    await bench.press("K")
    assert bench.picture_of("Nothing is in flight there.")


@piloted()
async def test_the_kill_dialog_says_that_nobody_else_is_there_to_try_again(bench: Bench) -> None:
    await bench.push(inventory([deployment("chat", [replica("chat/0", in_flight=1)])]))
    bench.clock.seconds += 1
    await bench.go_to("chat/0")
    await bench.press("K")
    assert bench.picture_of("with 1 exchange in flight:")
    assert bench.picture_of("what got no byte yet fails (502): no other replica is ready")
    assert not bench.picture_of("on another replica")


@piloted()
async def test_the_kill_dialog_knows_the_retries_of_each_deployment(bench: Bench) -> None:
    def pair(name: str, retries: int) -> DeploymentStatus:
        return deployment(name, [replica(f"{name}/0"), replica(f"{name}/1")], retries=retries)

    await bench.push(inventory([pair("never", 0), pair("often", 3)]))
    bench.clock.seconds += 1
    await bench.go_to("never/0")
    await bench.press("K")
    assert bench.picture_of("what got no byte yet fails (502): retries is 0")
    await bench.press("n", "space")
    await bench.go_to("often/0")
    await bench.press("space", "K")
    assert bench.picture_of("- never: what got no byte yet fails (502): retries is 0")
    assert bench.picture_of("- often: what got no byte yet is tried up to 3 times more")


@piloted()
async def test_a_kill_of_all_replicas_counts_none_of_them_as_another(bench: Bench) -> None:
    await bench.push(inventory([deployment("chat", [replica("chat/0"), replica("chat/1")])]))
    bench.clock.seconds += 1
    await bench.go_to("chat")
    await bench.press("space", "K")
    assert bench.picture_of("SIGKILL to their process groups now, with 6 exchanges in flight:")
    assert bench.picture_of("no other replica is ready")


@piloted()
async def test_a_kill_hits_the_incarnation_of_the_key_press_though_the_order_changes(bench: Bench) -> None:
    """Select replica 3, open the dialog, let 1 disappear and the order change, confirm."""
    await bench.go_to("primary/3")
    await bench.press("K")
    base = fleet_of_twelve()
    others = [status for status in base.deployments[0].replicas if status.name != "primary/1"]
    await bench.push(inventory([base.deployments[2], deployment("primary", others[::-1])]))
    await bench.press("y")
    assert bench.sent == [Kill(replica="primary/3", incarnation=2)]


@piloted()
async def test_a_kill_of_one_that_is_gone_sends_nothing_and_says_so(bench: Bench) -> None:
    await bench.go_to("primary/3")
    await bench.press("K")
    primary = fleet_of_twelve().deployments[0]
    await bench.push(inventory([deployment("primary", [r for r in primary.replicas if r.name != "primary/3"])]))
    assert bench.picture_of("is gone") and bench.picture_of("There is nothing left to do")
    await bench.press("y")
    assert not bench.sent and "primary/3#2 is gone: nothing was done" in bench.news


@piloted()
async def test_a_kill_does_not_hit_the_next_incarnation(bench: Bench) -> None:
    await bench.go_to("primary/3")
    await bench.press("K")
    primary = fleet_of_twelve().deployments[0]
    risen = [
        msgspec.structs.replace(status, incarnation=3) if status.name == "primary/3" else status
        for status in primary.replicas
    ]
    await bench.push(inventory([deployment("primary", risen)]))
    await bench.press("y")
    assert not bench.sent and "primary/3 is incarnation 3 now" in bench.news


@piloted()
async def test_a_key_right_after_the_row_went_is_not_obeyed(bench: Bench) -> None:
    await bench.go_to("primary/2")
    primary = fleet_of_twelve().deployments[0]
    await bench.push(inventory([deployment("primary", [r for r in primary.replicas if r.name != "primary/2"])]))
    await bench.press("d")
    assert not bench.sent and "has just gone" in bench.news
    bench.clock.seconds += 1
    await bench.press("d")
    assert bench.sent == [DrainReplica(replica="primary/3", incarnation=2)]


@piloted()
async def test_the_cursor_stays_on_its_replica_when_rows_come_and_go(bench: Bench) -> None:
    await bench.go_to("primary/3")
    primary = fleet_of_twelve().deployments[0]
    fewer = [status for status in primary.replicas if status.name not in ("primary/0", "primary/1")]
    await bench.push(inventory([deployment("primary", fewer)]))
    assert str(bench.cursor) == "primary/3#2"
    more = [replica(f"early/{index}") for index in range(3)]
    await bench.push(inventory([deployment("early", more), primary]))
    assert str(bench.cursor) == "primary/3#2"


# ----------------------------------------------------------------------------------------------- marks


@piloted()
async def test_marked_replicas_are_drained_together_after_a_question(bench: Bench) -> None:
    await bench.press("space", "space")
    assert [str(key) for key in bench.table.marked] == ["primary/0#1", "primary/1#1"]
    assert "2 marked" in bench.picture()[0]
    await bench.press("d")
    assert bench.shows(ConfirmScreen)
    await bench.press("y")
    assert bench.sent == [
        DrainReplica(replica="primary/0", incarnation=1),
        DrainReplica(replica="primary/1", incarnation=1),
    ]
    assert "2 of 2 accepted" in bench.news


@piloted()
async def test_space_on_a_deployment_marks_all_its_replicas_and_escape_unmarks(bench: Bench) -> None:
    await bench.go_to("chat")
    await bench.press("space")
    assert len(bench.table.marked) == 3
    await bench.press("escape")
    assert not bench.table.marked


@piloted()
async def test_a_mark_goes_with_its_incarnation(bench: Bench) -> None:
    await bench.press("space")
    primary = fleet_of_twelve().deployments[0]
    risen = [msgspec.structs.replace(status, incarnation=9) for status in primary.replicas]
    await bench.push(inventory([deployment("primary", risen)]))
    assert not bench.table.marked


@piloted()
async def test_plus_with_marks_counts_each_deployment_once(bench: Bench) -> None:
    await bench.press("space", "space")
    await bench.press("plus")
    assert bench.sent == [Scale(deployment="primary", delta=1)]


# ----------------------------------------------------------------------------------------------- seeing


@piloted()
async def test_question_mark_shows_every_key_and_escape_closes(bench: Bench) -> None:
    await bench.press("question_mark")
    assert bench.shows(HelpScreen)
    page = "\n".join(bench.app.screen.query_one(LineView).lines)
    for action in keymap.ACTIONS:
        assert action.label in page
    await bench.press("escape")
    assert bench.shows(MainScreen)


@piloted()
async def test_enter_opens_details_and_escape_leaves_them(bench: Bench) -> None:
    await bench.go_to("reranker/2")
    await bench.press("enter")
    assert bench.shows(DetailsScreen)
    text = "\n".join(bench.picture())
    assert "exit code 1" in text and "OutOfMemoryError" in text
    await bench.press("escape")
    assert bench.shows(MainScreen)


@piloted()
async def test_details_act_on_the_incarnation_that_they_show(bench: Bench) -> None:
    await bench.go_to("primary/3")
    await bench.press("enter", "d")
    assert bench.sent == [DrainReplica(replica="primary/3", incarnation=2)]
    await bench.press("K", "y")
    assert bench.sent[1:] == [Kill(replica="primary/3", incarnation=2)]


@piloted()
async def test_details_of_one_that_went_say_so_and_send_nothing(bench: Bench) -> None:
    await bench.go_to("primary/3")
    await bench.press("enter")
    await bench.push(inventory([deployment("primary", [replica("primary/0")])]))
    assert bench.picture_of("primary/3#2  ○ gone")
    await bench.press("d")
    assert not bench.sent and "is gone" in bench.news


@piloted()
async def test_slash_filters_rows_and_escape_clears(bench: Bench) -> None:
    await bench.press("slash", *"reranker")
    assert [row.key.replica for row in bench.table.rows][1:] == [f"reranker/{index}" for index in range(4)]
    await bench.press("enter")
    assert len(bench.table.rows) == 5 and "/reranker" in bench.picture()[0]
    await bench.press("escape")
    assert len(bench.table.rows) == 15


@piloted()
async def test_a_filter_finds_states_and_reasons(bench: Bench) -> None:
    await bench.press("slash", *"draining", "space", *"left")
    assert [row.key.replica for row in bench.table.rows] == ["", "primary/2"]
    await bench.press("escape")
    assert len(bench.table.rows) == 15


@piloted((120, 40))
async def test_shift_letters_sort_and_again_reverse(bench: Bench) -> None:
    def order() -> list[str]:
        return [row.key.replica for row in bench.table.rows if row.key.deployment == "primary" and row.key.replica]

    await bench.press("I")
    assert order()[0] == "primary/4" and "▼FLIGHT" in bench.picture_of("REPLICA")
    await bench.press("I")
    assert order()[-1] == "primary/4" and "▲FLIGHT" in bench.picture_of("REPLICA")
    await bench.press("N")
    assert order() == [f"primary/{index}" for index in range(5)]
    for letter in "SDBRLCMTXA":
        await bench.press(letter)


@piloted()
async def test_a_click_on_a_title_sorts(bench: Bench) -> None:
    x = bench.picture_of("REPLICA").index("FLIGHT") + 2
    await bench.pilot.click(FleetTable, offset=(x, 0))
    await bench.settle()
    assert "▼FLIGHT" in bench.picture_of("REPLICA")


@piloted()
async def test_a_click_selects_and_a_double_click_opens(bench: Bench) -> None:
    await bench.pilot.click(FleetTable, offset=(5, 4))
    await bench.settle()
    assert str(bench.cursor) == "primary/2#1"
    await bench.pilot.click(FleetTable, offset=(5, 5), times=2)
    await bench.settle()
    assert bench.shows(DetailsScreen)


@piloted()
async def test_a_click_on_a_key_does_what_the_key_does(bench: Bench) -> None:
    x = bench.picture()[-1].index("drain") + 1
    await bench.pilot.click(BottomLine, offset=(x, 0))
    await bench.settle()
    assert bench.sent == [DrainReplica(replica="primary/0", incarnation=1)]


@piloted()
async def test_e_hides_and_shows_the_events(bench: Bench) -> None:
    assert bench.picture_of("─ events")
    await bench.press("e")
    assert not bench.picture_of("─ events")
    await bench.press("e")
    assert bench.picture_of("─ events")


@piloted()
async def test_p_holds_the_picture_and_lets_it_catch_up(bench: Bench) -> None:
    await bench.press("p")
    assert "paused" in bench.picture()[0]
    await bench.push(inventory([deployment("primary", [replica("primary/0")])]))
    assert len(bench.table.rows) == 15
    await bench.press("p")
    assert len(bench.table.rows) == 2 and "paused" not in bench.picture()[0]


@piloted()
async def test_an_action_while_paused_is_checked_against_the_newest_fleet(bench: Bench) -> None:
    await bench.go_to("primary/4")
    await bench.press("p")
    await bench.push(inventory([deployment("primary", [replica("primary/0")])]))
    await bench.press("d")
    assert not bench.sent and "primary/4#1 is gone" in bench.news


# ----------------------------------------------------------------------------------------------- palette


@piloted()
async def test_colon_finds_an_action_by_typing(bench: Bench) -> None:
    await bench.go_to("primary/1")
    await bench.press("colon", *"drain", "enter")
    assert bench.sent == [DrainReplica(replica="primary/1", incarnation=1)]


@piloted()
async def test_the_palette_acts_on_the_row_that_was_under_the_cursor(bench: Bench) -> None:
    await bench.go_to("primary/1")
    await bench.press("ctrl+p", *"drain")
    primary = fleet_of_twelve().deployments[0]
    await bench.push(inventory([deployment("primary", [r for r in primary.replicas if r.name != "primary/1"])]))
    await bench.press("enter")
    assert not bench.sent and "primary/1#1 is gone" in bench.news


@piloted()
async def test_the_palette_reaches_every_kind_of_action(bench: Bench) -> None:
    await bench.press("colon", *"sort by req", "enter")
    assert "▼REQ/S" in bench.picture_of("REPLICA")
    await bench.press("colon", *"details", "enter")
    assert bench.shows(DetailsScreen)
    await bench.press("colon", *"kill", "enter")
    assert bench.shows(ConfirmScreen)
    await bench.press("escape", "escape", "colon", *"scale", "enter")
    assert bench.shows(ScaleScreen)
    await bench.press("escape", "colon", *"theme", "enter", *"nord", "enter")
    assert bench.app.theme == "nord"
    await bench.press("colon")
    assert bench.shows(PaletteScreen)
    await bench.press("down", "up", "escape")
    assert bench.shows(MainScreen)


# ----------------------------------------------------------------------------------------------- quit


@piloted()
async def test_q_on_an_attached_dashboard_focuses_detach(bench: Bench) -> None:
    await bench.press("q")
    assert bench.shows(QuitScreen)
    focused = bench.app.focused
    assert focused is not None and focused.id == "detach"
    await bench.press("enter")
    assert bench.app.return_value is QuitChoice.DETACH and not bench.sent


@piloted(owns_supervisor=True)
async def test_q_on_its_own_supervisor_focuses_cancel(bench: Bench) -> None:
    await bench.press("q")
    focused = bench.app.focused
    assert focused is not None and focused.id == "cancel"
    await bench.press("enter")
    assert bench.shows(MainScreen) and bench.app.return_value is None
    await bench.press("q", "d")
    assert bench.app.return_value is QuitChoice.DETACH


@piloted(owns_supervisor=True)
async def test_stop_all_shows_the_drain_and_ends_with_the_supervisor(bench: Bench) -> None:
    await bench.press("q", "s")
    assert bench.sent == [Stop(now=False)] and bench.app.return_value is None
    await bench.press("q")
    assert bench.picture_of("The fleet is stopping")
    await bench.press("s")
    assert bench.sent[1:] == [Stop(now=True)]
    bench.source.lose()
    await bench.pilot.pause()
    assert bench.app.return_value is QuitChoice.STOP


@piloted(owns_supervisor=True)
async def test_a_supervisor_of_its_own_that_was_stopped_elsewhere_ends_the_dashboard(bench: Bench) -> None:
    await bench.push(inventory([], state="stopping"))
    assert "◐ stopping" in bench.picture()[0]
    bench.source.lose()
    await bench.pilot.pause()
    assert bench.app.return_value is QuitChoice.STOP


@piloted(owns_supervisor=True)
async def test_a_supervisor_of_its_own_that_said_goodbye_between_two_looks_ends_the_dashboard(bench: Bench) -> None:
    bench.source.happen([farewell(bench)])
    bench.source.lose()
    await bench.pilot.pause()
    assert bench.app.return_value is QuitChoice.STOP


@piloted()
async def test_q_during_a_stop_that_somebody_else_began_cuts_the_drain(bench: Bench) -> None:
    bench.source.happen([farewell(bench)])
    await bench.settle()
    await bench.press("q")
    assert bench.picture_of("The fleet is stopping") and bench.picture_of("Stop now")
    await bench.press("s")
    assert bench.sent == [Stop(now=True)]


@piloted()
async def test_q_leaves_at_once_where_the_supervisor_has_ended(bench: Bench) -> None:
    bench.source.happen([farewell(bench)])
    bench.source.lose()
    await bench.settle()
    await bench.press("q")
    assert bench.app.return_value is QuitChoice.DETACH and not bench.sent


@piloted()
async def test_q_offers_no_stop_of_a_supervisor_that_is_lost(bench: Bench) -> None:
    bench.source.lose()
    await bench.settle()
    await bench.press("q")
    assert bench.picture_of("nothing can be stopped from here") and not bench.picture_of("Stop all")
    await bench.press("s", "right", "right", "right")
    assert bench.shows(QuitScreen) and not bench.sent
    await bench.press("d")
    assert bench.app.return_value is QuitChoice.DETACH


@piloted()
async def test_the_quit_dialog_follows_a_supervisor_that_goes_and_comes(bench: Bench) -> None:
    await bench.press("q", "right")
    focused = bench.app.focused
    assert focused is not None and focused.id == "stop"
    bench.source.lose()
    await bench.settle()
    focused = bench.app.focused
    assert focused is not None and focused.id == "cancel" and not bench.picture_of("Stop all")
    await bench.push(fleet_of_twelve())
    assert bench.picture_of("Stop all")
    bench.source.happen([farewell(bench)])
    bench.source.lose()
    await bench.settle()
    assert bench.picture_of("It has ended: nothing is left to detach from or to stop.")


def farewell(bench: Bench) -> SupervisorStopping:
    """The event with which a supervisor says that it stops."""
    return SupervisorStopping(why="SIGTERM", worst_case_s=45.0, seq=99, time=bench.clock())


@piloted()
async def test_control_c_asks_and_again_detaches(bench: Bench) -> None:
    await bench.press("ctrl+c")
    assert bench.shows(QuitScreen)
    await bench.press("ctrl+c")
    assert bench.app.return_value is QuitChoice.DETACH


@piloted(readonly=True)
async def test_q_leaves_a_readonly_dashboard_at_once(bench: Bench) -> None:
    await bench.press("q")
    assert bench.app.return_value is QuitChoice.DETACH


@piloted()
async def test_a_signal_ends_the_app_in_order(bench: Bench) -> None:
    bench.app.terminate()
    await bench.pilot.pause()
    assert bench.app.return_value is QuitChoice.TERMINATED


# ----------------------------------------------------------------------------------------------- read-only


@piloted(readonly=True)
async def test_a_readonly_dashboard_has_no_keys_that_act(bench: Bench) -> None:
    await bench.press("d", "r", "x", "K", "plus", "minus", "s")
    assert not bench.sent and bench.shows(MainScreen)
    assert "read-only" in bench.picture()[0]
    assert "drain" not in bench.picture()[-1] and "kill" not in bench.picture()[-1]
    await bench.press("question_mark")
    assert "SIGKILL" not in "\n".join(bench.app.screen.query_one(LineView).lines)
    await bench.press("escape", "colon", *"drain")
    assert not bench.picture_of("Out of rotation")
    await bench.press("escape", "enter", "d", "K")
    assert not bench.sent and bench.shows(DetailsScreen)
