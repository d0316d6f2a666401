"""Everything about one row as lines: what goes on, its numbers, card and limits, its last exit. And their widget."""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from supervisor.control.messages import (
    WITHHELD,
    DeploymentStatus,
    EjectionStatus,
    ReplicaStatus,
    ResultCacheStatus,
)
from ui.dashboard import words
from ui.dashboard.model import Batches, Model
from ui.dashboard.paint import Line, Painter, Piece, Tone
from ui.dashboard.rows import RowKey, key_of
from ui.dashboard.states import (
    deployment_look,
    goes_on,
    goes_on_in,
    goes_on_tone,
    replica_look,
)
from ui.dashboard.widgets.line_view import break_line
from ui.looks import shown_state

SIDE_BY_SIDE_FROM = 100
"""Terminal width from which three columns of facts, and two panes, stand side by side."""
_LIMITS = {"max_num_seqs": "rows", "max_num_batched_tokens": "tokens", "kv_cache_bytes": "kv cache"}
MOST_WRAPPED = 5
"""Lines that a reason may take."""
LAST_WORDS = 5
"""Lines of the incarnation before that are shown."""

Fact = tuple[str, str, Tone]


class Facts(Painter):
    """Paints the lines it is given, from the top."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> int:
        """Draw what differs; how many lines there are."""
        if lines != self._lines:
            self._lines = lines
            self.refresh()
        return len(lines)

    def render_line(self, y: int) -> Strip:
        return self.paint(self._lines[y] if y < len(self._lines) else (), self.size.width)


def facts_about(key: RowKey, model: Model, width: int, height: int) -> list[Line]:
    """The lines about a slot or a deployment, in as many columns as the width allows.

    Where that takes more than `height` lines, those of a replica come without its card.
    """
    if not key.is_replica:
        deployment = model.deployment(key.deployment)
        return _gone(key) if deployment is None else deployment_lines(deployment, width)
    replica = model.replica(key.replica)
    if replica is None:
        return _gone(key)
    details = model.details_of(replica.name)
    told = [
        *_batches(model.history.batches(replica.name)),
        *_ejection(details.ejection if details is not None else None, width),
        *_ending(replica, width),
    ]
    columns = [_process(replica), _traffic(replica)]
    whole = [*_head(replica, width), *_columns([*columns, _card(replica)], width), *told]
    return whole if len(whole) <= height else [*_head(replica, width), *_columns(columns, width), *told]


def _gone(key: RowKey) -> list[Line]:
    return [((f" {words.literal(str(key))}  ", Tone.KEY), ("○ gone: it was removed", Tone.DIM))]


def card_lines(replica: ReplicaStatus, width: int) -> list[Line]:
    """What the replica says of itself, for a pane of its own."""
    return _columns(_halves(_card(replica)), width)


def _head(replica: ReplicaStatus, width: int) -> list[Line]:
    state = shown_state(replica)
    look = replica_look(state)
    phrase = goes_on(replica)
    return [
        _title(str(key_of(replica)), f"{look.glyph} {state}", look.tone),
        *_phrase("" if phrase == state else phrase, goes_on_tone(replica), width),
    ]


def _batches(batches: Batches | None) -> list[Line]:
    """What its forwards were like lately."""
    if batches is None:
        return []
    rows, tokens = words.mean(batches.rows), words.mean(batches.tokens)
    pieces: list[Piece] = [(" batches    ", Tone.DIM), (f"{rows} rows", Tone.STRONG)]
    if batches.tokens:
        pieces.append((f", {tokens} tokens", Tone.STRONG))
    pieces.append((f" a forward · {words.plural(batches.forwards, 'forward')} in ", Tone.TEXT))
    pieces.append((f"{words.duration(batches.over_s)} · busy {batches.busy:.0%}", Tone.TEXT))
    return [tuple(pieces)]


def _ejection(ejection: EjectionStatus | None, width: int) -> list[Line]:
    """How it stands with `outlier_detection`."""
    if ejection is None:
        return []
    parts: list[str] = []
    if ejection.ejected_s > 0:
        by = " by hand" if ejection.by_hand else ""
        parts.append(f"out{by}, back in {words.duration(ejection.ejected_s)}")
    elif not ejection.needed:
        parts.append("off: consecutive_timeouts is 0")
    else:
        parts.append(f"{ejection.timeouts} of {words.plural(ejection.needed, 'timeout')} in a row")
    if ejection.withheld:
        parts.append(f"withheld: {WITHHELD.get(ejection.withheld, ejection.withheld)}")
    if ejection.needed:
        parts.append(f"the next lasts {words.duration(ejection.next_s)}")
    parts.append(f"ejected {words.times(ejection.ejections)}, back {words.times(ejection.readmissions)}")
    out = ejection.ejected_s > 0
    tone = Tone.OUT if out else (Tone.WARN if ejection.timeouts else Tone.DIM)
    label = " ejection   "
    return _wrapped(((label, Tone.DIM), (words.literal(" · ".join(parts)), tone)), width, len(label))


def deployment_lines(deployment: DeploymentStatus, width: int) -> list[Line]:
    """The facts of a deployment."""
    look = deployment_look(deployment.state)
    what: list[Fact] = [
        ("artifact", deployment.artifact or "", Tone.TEXT),
        ("engine", deployment.engine, Tone.TEXT),
        ("task", deployment.task, Tone.TEXT),
        *((name, _limit(name, value, deployment), Tone.TEXT) for name, value in deployment.limits.items()),
    ]
    traffic: list[Fact] = [
        ("req/s", words.rate(deployment.requests_per_s), Tone.STRONG),
        ("p50", words.milliseconds(deployment.p50_ms), Tone.TEXT),
        ("p99", words.milliseconds(deployment.p99_ms), Tone.TEXT),
        ("requests", words.grouped(deployment.requests), Tone.TEXT),
        ("failures", words.grouped(deployment.failures), Tone.BAD if deployment.failures else Tone.DIM),
        ("restarts", str(deployment.restarts), Tone.WARN if deployment.restarts else Tone.DIM),
        *_result_cache(deployment.result_cache),
    ]
    return [
        _title(deployment.name, f"{look.glyph} {deployment.state}", look.tone),
        *_phrase(goes_on_in(deployment), look.tone, width),
        *_columns([what, traffic], width),
        *(((f" ▲ {words.literal(warning)}", Tone.WARN),) for warning in deployment.warnings),
    ]


def _limit(name: str, configured: int | None, deployment: DeploymentStatus) -> str:
    """A limit as the config sets it; where it does not, what the replicas came to, and whose choice that is."""
    if configured is not None:
        return words.grouped(configured)
    cards = [replica.card for replica in deployment.replicas if replica.card is not None]
    if not cards:
        return "not set"
    held = sorted({value for card in cards if (value := getattr(card, name, None)) is not None})
    calibrated = any(name in card.calibrated for card in cards)
    values = " to ".join(words.grouped(value) for value in dict.fromkeys((*held[:1], *held[-1:])))
    return f"{values}, {'calibrated' if calibrated else 'the engine decides'}".removeprefix(", ")


def _result_cache(cache: ResultCacheStatus | None) -> list[Fact]:
    """Answers that are given again without a replica: how often that was so, and what they take."""
    if cache is None or not (cache.active or cache.hits):
        return []
    asked = cache.hits + cache.misses
    share = f"{cache.hits / asked:.0%} of {words.grouped(asked)} hit" if asked else "nothing asked yet"
    holds = f"{words.plural(cache.entries, 'answer')}, {words.size(cache.bytes)}" if cache.active else "now off"
    return [("result cache", share, Tone.STRONG), ("remembers", holds, Tone.TEXT)]


def _title(name: str, state: str, tone: Tone) -> Line:
    return ((f" {words.literal(name)}  ", Tone.KEY), (words.literal(state), tone))


def _phrase(text: str, tone: Tone, width: int) -> list[Line]:
    """Whole, since a table's cell may have cut it; nobody's reason takes the screen, though."""
    return _wrapped(((f" {words.literal(text)}", tone),), width, 1) if text else [()]


def _wrapped(line: Line, width: int, hang: int) -> list[Line]:
    lines = break_line(line, max(width - 2, 1), hang)
    return (
        lines
        if len(lines) <= MOST_WRAPPED
        else [*lines[: MOST_WRAPPED - 1], (*lines[MOST_WRAPPED - 1], ("…", Tone.DIM))]
    )


def _process(replica: ReplicaStatus) -> list[Fact]:
    ready_in = "" if replica.ready_after_s is None else f"in {replica.ready_after_s:.3g} s"
    started = " ".join(part for part in (replica.started_by or "", ready_in) if part)
    has_process = replica.pid is not None
    return _told(
        [
            ("pid", str(replica.pid) if has_process else "none", Tone.TEXT),
            ("endpoint", replica.endpoint or "", Tone.TEXT),
            ("device", replica.device, Tone.TEXT),
            ("age", words.duration(replica.age_s) if has_process else "", Tone.TEXT),
            ("in state", words.duration(replica.in_state_s), Tone.TEXT),
            ("started", started, Tone.TEXT),
            ("restarts", str(replica.restarts), Tone.WARN if replica.restarts else Tone.DIM),
            ("threads", str(replica.threads or "") if has_process or not replica.managed else "", Tone.TEXT),
            ("cpu", words.percent(replica.cpu_percent) if has_process else "", Tone.TEXT),
            ("memory", words.size(replica.rss_bytes or None), Tone.TEXT),
            ("gpu memory", words.size(replica.gpu_bytes or None), Tone.TEXT),
        ]
    )


def _traffic(replica: ReplicaStatus) -> list[Fact]:
    age = replica.forward_age_s
    running = f"for {words.milliseconds(age * 1000)}" if age else "none runs"
    return _told(
        [
            ("in flight", str(replica.in_flight), Tone.STRONG),
            ("bytes", words.size(replica.outstanding_bytes), Tone.TEXT),
            ("queued rows", str(replica.queued_rows), Tone.TEXT),
            ("forward", running, Tone.TEXT),
            ("req/s", words.rate(replica.requests_per_s), Tone.STRONG),
            ("p50", words.milliseconds(replica.p50_ms), Tone.TEXT),
            ("p99", words.milliseconds(replica.p99_ms), Tone.TEXT),
            ("requests", words.grouped(replica.requests), Tone.TEXT),
            ("failures", words.grouped(replica.failures), Tone.BAD if replica.failures else Tone.DIM),
            ("forwards", words.grouped(replica.forwards), Tone.TEXT),
            ("rows", words.grouped(replica.rows), Tone.TEXT),
            ("cached", _cached(replica), Tone.TEXT),
            ("cancelled", words.plural(replica.cancelled_rows, "row"), Tone.DIM),
        ]
    )


def _cached(replica: ReplicaStatus) -> str:
    """Rows that it had computed before, and their share of all that were asked of it."""
    if not replica.cached_rows:
        return ""
    share = replica.cached_rows / (replica.rows + replica.cached_rows)
    return f"{words.plural(replica.cached_rows, 'row')}, {share:.0%}"


def _card(replica: ReplicaStatus) -> list[Fact]:
    card = replica.card
    if card is None:
        return [("card", "known once it is up", Tone.DIM)]
    dimensions = "" if card.dimensions is None else f", {card.dimensions} dimensions"
    length = "" if card.max_model_len is None else words.plural(card.max_model_len, "token")
    batch = f"{words.plural(card.max_num_seqs, 'row')}, {words.plural(card.max_num_batched_tokens, 'token')}"
    golden = Tone.WARN if card.golden in ("unverified", "failed") else Tone.GOOD
    return _told(
        [
            ("artifact", card.artifact, Tone.TEXT),
            ("revision", (card.revision or "")[:12], Tone.TEXT),
            ("engine", f"{card.engine}, {card.dtype}", Tone.TEXT),
            ("task", f"{card.task}{dimensions}", Tone.TEXT),
            ("max length", length, Tone.TEXT),
            ("batch", batch, Tone.TEXT),
            ("digest", (card.weights_digest or "")[:16], Tone.TEXT),
            ("kv cache", words.size(card.kv_cache_bytes), Tone.TEXT),
            ("calibrated", _named(card.calibrated), Tone.TEXT),
            ("scoring", card.scoring or "", Tone.TEXT),
            ("deterministic", "yes" if card.deterministic else "no", Tone.TEXT),
            ("golden", card.golden, golden),
            ("exactness", card.reproducible or "", Tone.TEXT),
            *((name, version, Tone.DIM) for name, version in card.versions.items()),
        ]
    )


def _named(limits: Sequence[str]) -> str:
    """The limits that a replica found by itself, shorter than the config writes them."""
    return ", ".join(_LIMITS.get(limit, limit) for limit in limits)


def _told(facts: list[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact[1]]


def _columns(columns: list[list[Fact]], width: int) -> list[Line]:
    """Facts side by side; where three columns are too many, the last one goes below the others."""
    if width < SIDE_BY_SIDE_FROM and len(columns) > 2:
        return [*_columns(columns[:2], width), (), *_columns(_halves(columns[2]), width)]
    narrow = (width - 1) * 3 // 10 if len(columns) > 2 else (width - 1) // len(columns)
    each = [narrow] * (len(columns) - 1) + [width - 1 - narrow * (len(columns) - 1)]
    labels = [max(len(label) for label, _, _ in column) + 2 if column else 0 for column in columns]
    lines: list[Line] = []
    for index in range(max(len(column) for column in columns)):
        pieces: list[Piece] = [(" ", Tone.TEXT)]
        for column, cells, label_width in zip(columns, each, labels, strict=True):
            label, value, tone = column[index] if index < len(column) else ("", "", Tone.TEXT)
            shown = words.fit(words.literal(value), max(cells - label_width - 2, 0))
            pieces += [(words.fit(label, label_width), Tone.DIM), (shown, tone), ("  ", Tone.TEXT)]
        lines.append(tuple(pieces))
    return lines


def _halves(facts: list[Fact]) -> list[list[Fact]]:
    middle = (len(facts) + 1) // 2
    return [facts[:middle], facts[middle:]] if len(facts) > 1 else [facts]


def _ending(replica: ReplicaStatus, width: int) -> list[Line]:
    """How the incarnation before this one ended, and its last words."""
    if not replica.last_exit:
        return []
    label = " last exit  "
    told = "as above" if replica.last_exit in replica.reason else words.literal(replica.last_exit)
    last = _wrapped(((label, Tone.DIM), (told, Tone.BAD)), width, len(label))
    for text in replica.last_lines[-LAST_WORDS:]:
        last.append((("            ", Tone.DIM), (words.clip(words.literal(text), max(width - 13, 1)), Tone.TEXT)))
    return last
