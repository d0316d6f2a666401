"""The threads of a fleet as lines: the budget, what each replica may use, and what the learning came to. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import CountTime, ThreadRange, ThreadTable
from supervisor.control.messages import DeploymentStatus, Inventory, ReplicaStatus
from ui.dashboard import words
from ui.dashboard.paint import Line, Piece, Tone
from ui.looks import shown_state

MODES = {0: "off", 1: "learn and report", 2: "learn and serve"}
STATE_TONES = {
    "exploring": Tone.BUSY,
    "learned": Tone.GOOD,
    "transition": Tone.BUSY,
    "serving": Tone.GOOD,
    "retired": Tone.BAD,
}
RANGE_WIDTH, STATE_WIDTH, FORWARDS_WIDTH, LEARNED_WIDTH, GAIN_WIDTH = 8, 10, 8, 7, 5
BAR = 24
HOW_TO_SWITCH_ON = (
    "Nothing adapts: each replica serves with the threads it was given.",
    "To learn which count is the fastest, write into the deployment",
    "    cpu: {adaptive: 1}      1: learn and report, 2: also serve what was learned",
    "then `stoker reload`; or start with STOKER_CPU_ADAPTIVE_THREADS=1.",
)


def thread_lines(inventory: Inventory | None) -> list[Line]:
    """The whole view: the budget, how to switch learning on where it is off, then each deployment's replicas."""
    if inventory is None:
        return []
    lines: list[Line] = [budget_line(inventory), ()]
    if not any(each.thread_table is not None for one in inventory.deployments for each in one.replicas):
        lines += [*(((f" {text}", Tone.DIM),) for text in HOW_TO_SWITCH_ON), ()]
    for deployment in inventory.deployments:
        lines += [_of_deployment(deployment)]
        for replica in deployment.replicas:
            lines += _of_replica(replica)
        lines.append(())
    return lines[:-1]


def replica_thread_lines(replica: ReplicaStatus, inventory: Inventory | None) -> list[Line]:
    """The same for one replica."""
    lines = [budget_line(inventory), *_of_replica(replica)] if inventory is not None else _of_replica(replica)
    if replica.thread_table is None:
        lines += [(), *(((f" {text}", Tone.DIM),) for text in HOW_TO_SWITCH_ON)]
    return lines


def budget_line(inventory: Inventory) -> Line:
    """How many threads are given out, of how many this process may really use."""
    used, budget = inventory.supervisor.cpu_threads_used, inventory.supervisor.cpu_budget
    share = used / budget if budget else 0.0
    full = min(max(round(share * BAR), 1 if used else 0), BAR)
    over = used > budget
    pieces: list[Piece] = [
        (" budget  ", Tone.DIM),
        ("━" * full, Tone.WARN if over else Tone.GOOD),
        ("─" * (BAR - full), Tone.FAINT),
        (f" {used} of {words.plural(budget, 'thread')} given out", Tone.WARN if over else Tone.TEXT),
    ]
    if over:
        pieces.append((": they take turns", Tone.WARN))
    return tuple(pieces)


def _of_deployment(deployment: DeploymentStatus) -> Line:
    tables = [replica.thread_table for replica in deployment.replicas if replica.thread_table is not None]
    pieces: list[Piece] = [(f" {words.literal(deployment.name)}", Tone.STRONG)]
    if not tables:
        return (*pieces, ("  learning off", Tone.DIM))
    pieces.append((f"  {MODES.get(tables[0].mode, str(tables[0].mode))}", Tone.TEXT))
    certified = [table.certified for table in tables if table.certified is not None]
    if certified:
        clean = all(certified)
        text = "certified" if clean else "uncertified: run `stoker threads certify`"
        pieces.append((f"  {text}", Tone.GOOD if clean else Tone.WARN))
    return tuple(pieces)


def _of_replica(replica: ReplicaStatus) -> list[Line]:
    threads = "" if replica.threads is None else words.plural(replica.threads, "thread")
    cores = f" on cores {_cores(replica.cores)}" if replica.cores else ""
    head: list[Piece] = [(f"  {words.literal(replica.name)}", Tone.KEY), (f"  {threads}{cores}", Tone.TEXT)]
    if replica.managed and replica.pid is None:
        head[1:] = [(f"  {words.literal(shown_state(replica))}: no process", Tone.DIM)]
    table = replica.thread_table
    if table is None:
        return [tuple(head)]
    return [(*head, *_summary(table)), *table_lines(table)]


def _summary(table: ThreadTable) -> Line:
    tone = STATE_TONES.get(table.state, Tone.DIM)
    cost = table.explored_s / table.busy_s if table.busy_s else 0.0
    checks = f", checks {table.checked_s / table.busy_s:.1%}" if table.busy_s and table.checked_s else ""
    return (
        (f"  {words.literal(table.state)}", tone),
        (f"  exploring cost {cost:.1%} of busy time{checks}", Tone.DIM),
    )


def table_lines(table: ThreadTable) -> list[Line]:
    """What was learned by range of padded tokens: a row for each range that saw a forward."""
    seen = [each for each in table.ranges if each.forwards]
    lines: list[Line] = []
    if table.drift is not None:
        lines.append(
            (
                ("   retired  ", Tone.BAD),
                (
                    f"{table.drift.shape} had other bits with {words.plural(table.drift.count, 'thread')} "
                    f"than with {table.configured}",
                    Tone.TEXT,
                ),
            )
        )
    if not seen:
        return [*lines, (("   no forward yet", Tone.DIM),)]
    return [*lines, _titles(), *(_row(each) for each in seen)]


def _titles() -> Line:
    return (
        (
            "   "
            + words.fit("TOKENS", RANGE_WIDTH)
            + words.fit("STATE", STATE_WIDTH + 1)
            + words.fit("FORWARDS", FORWARDS_WIDTH, right=True)
            + words.fit("LEARNED", LEARNED_WIDTH + 2, right=True)
            + words.fit("GAIN", GAIN_WIDTH + 1, right=True)
            + "  TIME BY THREADS (SAMPLES)",
            Tone.TITLE,
        ),
    )


def _row(each: ThreadRange) -> Line:
    learned = "" if each.learned is None else str(each.learned)
    gain = "" if each.learned is None else f"{each.gain:.0%}"
    return (
        ("   " + words.fit(words.literal(each.label), RANGE_WIDTH), Tone.TEXT),
        (words.fit(words.literal(each.state), STATE_WIDTH + 1), STATE_TONES.get(each.state, Tone.DIM)),
        (words.fit(words.grouped(each.forwards), FORWARDS_WIDTH, right=True), Tone.TEXT),
        (words.fit(learned, LEARNED_WIDTH + 2, right=True), Tone.STRONG),
        (words.fit(gain, GAIN_WIDTH + 1, right=True), Tone.GOOD if each.gain > 0 else Tone.DIM),
        ("  ", Tone.TEXT),
        *_times(each.times, each.learned),
    )


def _times(times: Sequence[CountTime], learned: int | None) -> list[Piece]:
    pieces: list[Piece] = []
    for time in times:
        tone = Tone.STRONG if time.count == learned else Tone.TEXT
        pieces.append((f"{time.count}: {words.milliseconds(time.seconds * 1000)}", tone))
        pieces.append((f" ({time.samples})  ", Tone.DIM))
    return pieces


def _cores(cores: Sequence[int]) -> str:
    """`0-3,8`: runs of neighbours."""
    runs: list[tuple[int, int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], core)
        else:
            runs.append((core, core))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
