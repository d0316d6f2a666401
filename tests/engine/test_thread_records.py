"""Tables and certificates on disk (spec 9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.messages import Card, ThreadDrift, ThreadRange, ThreadTable
from engine.threads import records
from engine.threads.certificate import LEAST_SHAPES, grid
from engine.threads.shadows import is_certified


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "stoker" / "threads"


def key(reproducible: str | None = "AVX512,STRICT", encoder: str | None = "auto") -> records.HostKey:
    return records.host_key(
        Card(
            artifact="owner/name",
            engine="transformers",
            task="embed",
            device="cpu",
            dtype="float32",
            threads=2,
            max_num_seqs=1,
            max_num_batched_tokens=1,
            reproducible=reproducible,
            encoder=encoder,
            versions={"torch": "2.13.0"},
        )
    )


def table(*ranges: ThreadRange, drift: ThreadDrift | None = None, configured: int = 2) -> ThreadTable:
    return ThreadTable(mode=1, configured=configured, state="learned", ranges=list(ranges), drift=drift)


def certificate(counts: list[int], drift: list[ThreadDrift]) -> records.Certificate:
    return records.Certificate(key=key(), counts=counts, shapes=[(1, 4)], drift=drift, seconds=1.0, finished="now")


LEARNED = ThreadRange(label="<32", state="learned", learned=1, gain=0.2)
UNKNOWN = ThreadRange(label="<32", state="exploring")


def test_a_table_is_found_again_under_its_key_alone() -> None:
    records.write_table(key(), table(LEARNED))
    assert records.read_table(key()) == table(LEARNED)
    assert records.read_table(key(reproducible=None)) is None
    assert records.read_table(key(encoder="transformers")) is None


def test_a_file_that_is_torn_or_anothers_is_ignored_with_a_warning(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records.write_table(key(), table(LEARNED))
    (file,) = state.iterdir()
    other = file.with_name(f"{key(reproducible=None).name}.table.json")
    other.write_bytes(file.read_bytes())
    assert records.read_table(key(reproducible=None)) is None and not caplog.records
    file.write_bytes(file.read_bytes()[:-20])
    assert records.read_table(key()) is None
    assert str(file) in caplog.text


def test_what_another_replica_learned_or_met_is_not_lost() -> None:
    drift = ThreadDrift(count=1, lengths=[20])
    records.write_table(key(), table(LEARNED))
    records.write_table(key(), table(UNKNOWN))
    assert records.read_table(key()) == table(LEARNED)
    records.write_table(key(), table(UNKNOWN, drift=drift))
    records.write_table(key(), table(LEARNED))
    kept = records.read_table(key())
    assert kept is not None and kept.drift == drift


def test_a_folder_that_cannot_be_written_costs_only_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    records.write_table(key(), table(LEARNED))
    assert records.read_table(key()) is None and "could not be written" in caplog.text


def test_only_a_clean_certificate_of_all_counts_covers_a_replica() -> None:
    assert not is_certified(key(), 2)
    records.write_certificate(certificate([1, 2], []))
    assert is_certified(key(), 2) and not is_certified(key(), 4) and not is_certified(key(reproducible=None), 2)
    records.write_certificate(certificate([1, 2], [ThreadDrift(count=1, lengths=[64])]))
    assert not is_certified(key(), 2)


@pytest.mark.parametrize("limits", [(32, 512, 256), (32, 8192, 512), (8, 256, 128), (2, 64, 64)])
def test_a_grid_keeps_to_the_limits_and_has_80_shapes_where_they_allow_it(limits: tuple[int, int, int]) -> None:
    most_rows, most_tokens, longest = limits
    shapes = grid(most_rows, most_tokens, longest)
    assert len(shapes) == len(set(shapes)) >= LEAST_SHAPES
    assert all(rows <= most_rows and rows * tokens <= most_tokens and tokens <= longest for rows, tokens in shapes)
