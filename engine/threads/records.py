"""What is known of thread counts on this host, on disk: learned tables and certificates (spec 9).

Both hold for one key only: the CPU model, the version of torch, the artifact and its revision, the number format, the
encoder, and the flags that choose MKL's code. Files lie under `$XDG_STATE_HOME/stoker/threads`, are written aside and
renamed, and carry their key; one that cannot be read, or is another key's, is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import re
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.messages import Card, ThreadDrift, ThreadTable

log = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")


class HostKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a record holds for."""

    cpu: str
    torch: str
    artifact: str
    revision: str | None
    dtype: str
    encoder: str | None
    flags: str

    @property
    def name(self) -> str:
        """A file name of its own."""
        digest = hashlib.blake2b(msgspec.json.encode(self, order="deterministic"), digest_size=8).hexdigest()
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", self.artifact).strip("-.")[-48:]
        return f"{readable}-{digest}"


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A grid of shapes (rows, tokens of each) that was computed at every count. drift: those whose bits differed."""

    key: HostKey
    counts: list[int]
    shapes: list[tuple[int, int]]
    drift: list[ThreadDrift]
    seconds: float
    finished: str

    @property
    def clean(self) -> bool:
        """Whether every shape had the same bits at every count."""
        return bool(self.shapes) and not self.drift


class Step(msgspec.Struct, frozen=True, tag="step"):
    """A certificate is being made: one more shape is done."""

    done: int
    of: int
    rows: int
    tokens: int
    drifted: bool


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """All shapes are done, and the certificate is written."""

    certificate: Certificate
    file: str


Said = Step | Verdict


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    key: HostKey
    table: ThreadTable


Record = TypeVar("Record", Certificate, _Kept)


def host_key(card: Card) -> HostKey:
    """The key of what a replica serves here."""
    return HostKey(
        cpu=cpu_model(),
        torch=card.versions.get("torch", ""),
        artifact=card.artifact,
        revision=card.revision,
        dtype=card.dtype,
        encoder=card.encoder,
        flags=f"MKL_CBWR={card.reproducible or ''}",
    )


def cpu_model(cpuinfo: Path = CPUINFO) -> str:
    """The CPU's own name for itself."""
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def folder() -> Path:
    """Where the records lie."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "stoker" / "threads"


def read_table(key: HostKey) -> ThreadTable | None:
    """What was learned under that key, None where nothing was."""
    kept = _read(folder() / f"{key.name}.table.json", key, _Kept)
    return kept.table if kept is not None else None


def write_table(key: HostKey, table: ThreadTable) -> None:
    """Keep a table. A drift that another replica met stays, and so does a range that only another one learned."""
    before = read_table(key)
    if before is not None and before.configured == table.configured:
        if before.drift is not None and table.drift is None:
            return
        known = {each.label: each for each in before.ranges if each.learned is not None}
        ranges = [known.get(each.label, each) if each.learned is None else each for each in table.ranges]
        table = msgspec.structs.replace(table, ranges=ranges)
    _write(folder() / f"{key.name}.table.json", _Kept(key=key, table=table))


def read_certificate(key: HostKey) -> Certificate | None:
    """The certificate of that key, None where there is none."""
    return _read(folder() / f"{key.name}.certificate.json", key, Certificate)


def write_certificate(certificate: Certificate) -> Path:
    """Keep a certificate; its file. Raises OSError."""
    file = folder() / f"{certificate.key.name}.certificate.json"
    _write(file, certificate, must=True)
    return file


def _read(file: Path, key: HostKey, kind: type[Record]) -> Record | None:
    try:
        record = msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("threads: %s is ignored: %s", file, error)
        return None
    return record if record.key == key else None


def _write(file: Path, record: Certificate | _Kept, *, must: bool = False) -> None:
    """Aside, then renamed. Where it fails the record is only not kept, unless it `must` be."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as aside:
            aside.write(data)
        os.replace(aside.name, file)
    except OSError as error:
        if must:
            raise
        log.warning("threads: %s could not be written: %s", file, error)
