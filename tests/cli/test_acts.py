"""Verbs that change something: what they ask, what they say, and how `--wait` ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.messages import Faults
from supervisor.control.events import DrainEnded
from supervisor.control.messages import (
    Accepted,
    Answer,
    AnyCommand,
    DrainReplica,
    Eject,
    Inventory,
    Kill,
    Readmit,
    Refused,
    Reload,
    Restart,
    Scale,
    SetReplicaFaults,
    Stop,
)
from tests.cli.conftest import Stoker, command
from tests.cli.fake import FakeSupervisor
from tests.cli.rows import TWO_READY, deployment, inventory, replica
from tests.cli.terminal import Terminal
from ui.cli.waiting import Done, Failed, Wait, drained, restarted, scaled, served


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["scale", "primary", "4"], Scale(deployment="primary", replicas=4)),
        (["scale", "primary", "+2"], Scale(deployment="primary", delta=2)),
        (["scale", "primary", "-1"], Scale(deployment="primary", delta=-1)),
        (["scale", "primary", "--timeout", "9", "-1"], Scale(deployment="primary", delta=-1)),
        (["drain", "primary/1"], DrainReplica(replica="primary/1", incarnation=1)),
        (["restart", "primary/0"], Restart(target="primary/0")),
        (["restart", "primary"], Restart(target="primary")),
        (["eject", "primary/1"], Eject(replica="primary/1")),
        (["readmit", "primary/1"], Readmit(replica="primary/1")),
        (["kill", "primary/1"], Kill(replica="primary/1", incarnation=1)),
        (["kill", "primary/1", "--incarnation", "7"], Kill(replica="primary/1", incarnation=7)),
        (["reload"], Reload()),
        (["stop"], Stop()),
        (["stop", "--now"], Stop(now=True)),
        (["faults", "primary/1"], SetReplicaFaults(replica="primary/1", faults=Faults())),
        (
            ["faults", "primary/1", "hang=true", "slow_ms=250", "mute=off"],
            SetReplicaFaults(replica="primary/1", faults=Faults(hang=True, slow_ms=250.0)),
        ),
    ],
)
def test_a_verb_asks_for_what_it_says(root: Path, stoker: Stoker, words: list[str], asked: AnyCommand) -> None:
    with FakeSupervisor(root) as fake:
        ran = stoker(*words)
    assert ran == (0, "", f"{type(asked).__name__} accepted\n")
    assert fake.asked[-1] == asked


def test_a_refusal_is_exit_code_1_with_its_reason(root: Path, stoker: Stoker) -> None:
    def refuse(command: AnyCommand) -> Answer | None:
        return Refused(message="primary is attached; it cannot be scaled") if isinstance(command, Scale) else None

    with FakeSupervisor(root, handler=refuse):
        ran = stoker("scale", "primary", "4")
    assert ran == (1, "", "stoker: primary is attached; it cannot be scaled\n")


def test_a_change_that_was_not_saved_says_so(root: Path, stoker: Stoker) -> None:
    def unsaved(command: AnyCommand) -> Answer | None:
        return Accepted(text="4 replicas asked for", saved=False) if isinstance(command, Scale) else None

    with FakeSupervisor(root, handler=unsaved):
        ran = stoker("scale", "primary", "4")
    assert ran.code == 0
    assert "could not be saved" in ran.err


BOTH = "there are: primary/0, primary/1"
NAMES = [
    ("drain primary/9", f"no replica 'primary/9' ({BOTH})"),
    ("kill primery/1", f"no replica 'primery/1'; did you mean 'primary/1'? ({BOTH})"),
    ("drain primary", f"'primary' is a deployment; expected one of its replicas ({BOTH})"),
    ("restart primery", "no deployment 'primery'; did you mean 'primary'? (there is: primary)"),
    ("restart primary/9", f"no replica 'primary/9' ({BOTH})"),
    ("bench other", "no deployment 'other' (there is: primary)"),
    ("bench primary/0", "'primary/0' is a replica; expected a deployment, such as 'primary'"),
    ("golden primery", "no deployment 'primery'; did you mean 'primary'? (there is: primary)"),
    ("threads certify other", "no deployment 'other' (there is: primary)"),
]


@pytest.mark.parametrize(("words", "said"), NAMES)
def test_a_name_that_is_not_there_is_answered_with_the_nearest_and_those_that_are(
    root: Path, stoker: Stoker, words: str, said: str
) -> None:
    with FakeSupervisor(root):
        ran = stoker(*words.split())
    assert ran == (1, "", f"stoker: {said}\n")


def test_a_deployment_whose_replicas_are_all_out_by_hand_has_none_to_restart(root: Path, stoker: Stoker) -> None:
    out = inventory(deployment(replica("primary/0", "stopped", cordoned=True)))
    with FakeSupervisor(root, out):
        ran = stoker("restart", "primary")
    assert ran == (1, "", "stoker: every replica of 'primary' was taken out by hand; restart them by name\n")


def test_scale_by_a_difference_waits_for_what_that_came_to(root: Path, stoker: Stoker) -> None:
    def scale(command: AnyCommand) -> Answer | None:
        return Accepted(text="2 replicas asked for", asked=2) if isinstance(command, Scale) else None

    with FakeSupervisor(root, handler=scale) as fake:
        fake.inventories = [LOADING, TWO_READY]
        ran = stoker("scale", "primary", "+1", "--wait")
    assert ran == (0, "", "2 replicas asked for\nprimary: 2 of 2 ready\n")


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("hnag=true", "did you mean hang?"),
        ("hang", "expected hang=VALUE"),
        ("hang=maybe", "true or false, found 'maybe'"),
        ("slow_ms=fast", "number of milliseconds"),
        ("slow_ms=-1", "0 or more"),
        ("slow_ms=inf", "0 or more"),
    ],
)
def test_a_wrong_fault_is_a_usage_error(stoker: Stoker, pair: str, said: str) -> None:
    ran = stoker("faults", "primary/0", pair)
    assert ran.code == 2
    assert said in ran.err


def test_the_help_of_faults_names_every_key() -> None:
    from ui.cli.verbs.faults import KEYS, faults

    assert all(key in (faults.help or "") for key in KEYS)


# -------------------------------------------------------------------------------------- judging a wait


def judged(rows: Inventory) -> Done | Wait | Failed:
    return scaled("primary", 2)(rows)


def test_a_scale_is_done_when_all_are_ready_and_none_is_left_over() -> None:
    assert judged(TWO_READY) == Done("primary: 2 of 2 ready")


def test_a_scale_waits_for_those_that_come_up() -> None:
    rows = inventory(deployment(replica("primary/0"), replica("primary/1", "loading"), desired=2))
    assert judged(rows) == Wait("primary: 1 of 2 ready, primary/1 loading", 0.5)


def test_a_start_is_done_when_every_replica_of_every_deployment_is_ready() -> None:
    late = deployment(replica("other/0", "loading"), replica("other/1", "loading"), name="other")
    assert served(inventory(deployment(replica("primary/0")), late)) == Wait(
        "other: 0 of 2 ready, other/0 loading and 1 more", pytest.approx(1 / 3)
    )
    done = deployment(replica("other/0"), name="other")
    assert served(inventory(deployment(replica("primary/0")), done)) == Done(
        "primary: 1 of 1 ready, other: 1 of 1 ready"
    )


def test_a_start_with_a_replica_that_cannot_come_up_says_why() -> None:
    failed = deployment(replica("other/0", "failed", reason="no weights"), name="other")
    assert served(inventory(deployment(replica("primary/0", "loading")), failed)) == Failed(
        "other/0 failed: no weights"
    )


def test_a_scale_waits_for_those_that_leave() -> None:
    leaving = replica("primary/2", "draining", in_flight=3, in_state_s=12.0, drain_left_s=18.0)
    rows = inventory(deployment(replica("primary/0"), replica("primary/1"), leaving, desired=2))
    assert judged(rows) == Wait("primary: 2 of 2 ready, primary/2 draining, 3 left, 12s of 30s", 2 / 3)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            deployment(replica("primary/0", "failed", reason="SIGSEGV"), desired=2),
            "primary/0 failed: SIGSEGV",
        ),
        (
            deployment(replica("primary/0", "incompatible", reason="dim 8"), desired=2),
            "primary/0 incompatible: dim 8",
        ),
        (deployment(replica("primary/0", "stopped", cordoned=True), desired=2), "stoker restart primary/0"),
        (deployment(replica("primary/0"), desired=5), "asked for 5 replicas meanwhile"),
        (deployment(replica("other/0")), "primary is not served any more"),
    ],
)
def test_a_scale_that_cannot_be_done_says_why(rows: object, why: str) -> None:
    verdict = judged(inventory(rows))  # type: ignore[arg-type]
    assert isinstance(verdict, Failed)
    assert why in verdict.words


@pytest.mark.parametrize(
    ("row", "done"),
    [
        (replica("primary/1", "draining"), False),
        (replica("primary/1", "stopping"), False),
        (replica("primary/1", "stopped"), True),
        (replica("primary/1", "starting", incarnation=2), True),
        (replica("primary/2"), True),
    ],
)
def test_a_drain_is_done_when_that_incarnation_is_gone(row: object, done: bool) -> None:
    verdict = drained("primary/1", 1)(inventory(deployment(row)))  # type: ignore[arg-type]
    assert isinstance(verdict, Done if done else Wait)


def test_a_drain_is_as_far_as_its_time() -> None:
    row = replica("primary/1", "draining", in_flight=3, in_state_s=12.0, drain_left_s=18.0)
    assert drained("primary/1", 1)(inventory(deployment(row))) == Wait(
        "primary/1 draining, 3 left, 12s of 30s", pytest.approx(0.4)
    )


def test_a_restart_is_done_when_every_replica_is_ready_in_a_later_incarnation() -> None:
    judge = restarted({"primary/0": 1, "primary/1": 1})
    second = inventory(deployment(replica("primary/0", incarnation=2), replica("primary/1", "draining")))
    both = inventory(deployment(replica("primary/0", incarnation=2), replica("primary/1", incarnation=2)))
    failed = inventory(deployment(replica("primary/0", "failed", incarnation=2, reason="OOM"), replica("primary/1")))
    assert judge(TWO_READY) == Wait("0 of 2 restarted, primary/0 ready", 0.0)
    assert judge(second) == Wait("1 of 2 restarted, primary/1 draining", 0.5)
    assert judge(both) == Done("2 replicas restarted")
    assert judge(failed) == Failed("primary/0 failed: OOM")
    assert isinstance(judge(inventory(deployment(replica("primary/0", incarnation=2)))), Failed)


# --------------------------------------------------------------------------------------------- waiting


LOADING = inventory(deployment(replica("primary/0"), replica("primary/1", "loading"), desired=2))
BROKEN = inventory(deployment(replica("primary/0"), replica("primary/1", "failed", reason="no memory"), desired=2))


def test_scale_wait_returns_when_it_is_done(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.inventories = [LOADING, LOADING, TWO_READY]
        ran = stoker("scale", "primary", "2", "--wait")
    assert ran == (0, "", "Scale accepted\nprimary: 2 of 2 ready\n")


def test_scale_wait_fails_with_the_reason_of_the_replica(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.inventories = [LOADING, BROKEN]
        ran = stoker("scale", "primary", "2", "--wait")
    assert ran.code == 1
    assert ran.err.endswith("stoker: primary/1 failed: no memory\n")


def test_scale_wait_ends_at_its_timeout(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root, LOADING):
        ran = stoker("scale", "primary", "2", "--wait", "--timeout", "0.2")
    assert ran.code == 1
    assert "not done after 0.2s: primary: 1 of 2 ready, primary/1 loading; it goes on" in ran.err


def test_scale_wait_shows_on_a_terminal_how_far_it_is(root: Path) -> None:
    words = command("scale", "primary", "2", "--wait")
    with FakeSupervisor(root, LOADING) as fake, Terminal(words) as terminal:
        terminal.wait_for("━━━━━━━━━━────────── primary: 1 of 2 ready, primary/1 loading")
        fake.inventory = TWO_READY
        assert terminal.wait() == 0
    assert terminal.raw.count("\r\x1b[K") == 1, "the line is taken away"
    assert terminal.text.endswith("primary: 2 of 2 ready\n")


def test_a_wait_in_a_pipe_says_now_and_then_how_far_it_is(
    root: Path, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.cli.say.PIPE_S", 0.0)
    with FakeSupervisor(root) as fake:
        fake.inventories = [LOADING, LOADING, TWO_READY]
        ran = stoker("scale", "primary", "2", "--wait")
    assert ran == (
        0,
        "",
        "Scale accepted\nprimary: 1 of 2 ready, primary/1 loading\nprimary: 2 of 2 ready\n",
    )


def test_a_wait_whose_supervisor_leaves_is_exit_code_3(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root, LOADING) as fake:
        leave = threading.Timer(0.3, fake.leave)
        leave.start()
        ran = stoker("scale", "primary", "2", "--wait")
        leave.join()
    assert ran.code == 3


def test_drain_wait_says_how_the_drain_ended(root: Path, stoker: Stoker) -> None:
    def drain(command: AnyCommand) -> Answer | None:
        """An idle drain is over before its command is answered."""
        if isinstance(command, DrainReplica):
            fake.keep(DrainEnded(replica="primary/0", incarnation=1, seconds=9.0, cut=0))
            fake.keep(DrainEnded(replica="primary/1", incarnation=1, seconds=0.25, cut=2))
        return None

    with FakeSupervisor(root, handler=drain) as fake:
        fake.keep(DrainEnded(replica="primary/1", incarnation=1, seconds=5.0, cut=0))
        fake.inventories = [
            TWO_READY,
            inventory(deployment(replica("primary/0"), replica("primary/1", "draining", in_flight=1))),
            inventory(deployment(replica("primary/0"), replica("primary/1", "stopped", cordoned=True))),
        ]
        ran = stoker("drain", "primary/1", "--wait")
    assert ran.code == 0
    assert ran.err == "DrainReplica accepted\nprimary/1#1 drained in 0.250 s, 2 exchanges were cut\n"


def test_stop_wait_returns_when_the_lock_is_free(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        ran = stoker("stop", "--wait")
        assert fake.runtime.running() is None
    assert ran == (0, "", "Stop accepted\nthe supervisor 'default' is gone\n")
