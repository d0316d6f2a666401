"""`check`, `devices`, and what `serve` makes of its flags and a config file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from supervisor.core.placement import PlacementError
from tests.cli.conftest import Stoker
from ui.cli.document import Flags, NotAModel, NothingToServe, NotResizable, prepare

SAMPLES = Path(__file__).parents[2] / "sample-configs"

TWO = """\
# mine
global:
  model_catalog:
    deployments:
      primary:
        artifact: owner/name   # the model
        revision: 0123456789012345678901234567890123456789
        replicas:
          - device: cuda:0
          - device: cuda:1
"""
ATTACHED = """\
global: {model_catalog: {deployments: {primary: {endpoint: "http://127.0.0.1:8000"}}}}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_SIMULATE_DEVICES", "cuda:4")


def devices_of(flags: Flags) -> list[str | None]:
    prepared = prepare(flags)
    return [placement.device for placement in prepared.loaded.config.deployments["primary"].replicas]


# ------------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        (Flags(model="stub"), ["auto"]),
        (Flags(model="stub", count=2), ["cuda:0", "cuda:1"]),
        (Flags(model="stub", count=2, platform="cpu"), ["cpu", "cpu"]),
        (Flags(model="stub", count=2, device_ids=(3,)), ["cuda:3", "cuda:3"]),
        (Flags(model="stub", device_ids=(1, 3)), ["cuda:1", "cuda:3"]),
    ],
)
def test_a_model_alone_makes_a_document_in_memory(flags: Flags, devices: list[str], tmp_path: Path) -> None:
    assert devices_of(flags) == devices
    prepared = prepare(flags)
    prepared.save()
    assert prepared.path is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        (Flags(), ["cuda:0", "cuda:1"]),
        (Flags(count=3), ["cuda:0", "cuda:1", "cuda:0"]),
        (Flags(count=1), ["cuda:0"]),
        (Flags(device_ids=(2, 3)), ["cuda:2", "cuda:3"]),
        (Flags(platform="cpu"), ["cpu", "cpu"]),
        (Flags(model="owner/other"), ["cuda:0", "cuda:1"]),
    ],
)
def test_flags_are_written_into_the_file(flags: Flags, devices: list[str], tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    flags = Flags(flags.model, file, flags.count, flags.device_ids, flags.platform)
    assert devices_of(flags) == devices
    assert file.read_text() == TWO, "preparing writes nothing"
    prepared = prepare(flags)
    prepared.save()
    assert file.read_text() == prepared.loaded.text
    assert file.read_text().startswith("# mine\n")
    assert prepared.edited is (flags.model is not None or flags.place)
    assert prepare(Flags(file=file)).edited is False


def test_another_model_drops_the_old_revision(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    deployment = prepare(Flags("owner/other", file)).loaded.config.deployments["primary"]
    assert (deployment.artifact, deployment.revision) == ("owner/other", None)
    same = prepare(Flags("owner/name", file))
    assert same.loaded.text == TWO


def test_a_file_that_is_not_there_is_made_for_a_model(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    prepare(Flags("stub", file, count=2)).save()
    assert devices_of(Flags(file=file)) == ["cuda:0", "cuda:1"]


def test_without_anything_the_file_of_this_folder_is_taken(tmp_path: Path) -> None:
    with pytest.raises(NothingToServe, match="MODEL"):
        prepare(Flags())
    (tmp_path / "stoker.yaml").write_text(TWO)
    assert prepare(Flags()).path == Path("stoker.yaml")
    assert prepare(Flags(model="stub")).path is None


@pytest.mark.parametrize("flags", [Flags(count=2), Flags(model="stub"), Flags(platform="cpu")])
def test_nothing_resizes_what_somebody_else_runs(flags: Flags, tmp_path: Path) -> None:
    file = tmp_path / "attached.yaml"
    file.write_text(ATTACHED)
    with pytest.raises(NotResizable, match="attached"):
        prepare(Flags(flags.model, file, flags.count, flags.device_ids, flags.platform))
    assert prepare(Flags(file=file)).edited is False


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            Flags(model="stub", count=9),
            "-dp 9 needs 9 cuda devices of its own, found 4; pass --device-ids",
        ),
        (Flags(model="stub", count=3, device_ids=(0, 1)), "one id or 3 of them"),
        (Flags(model="stub", device_ids=(1, 1)), "twice; use -dp"),
        (Flags(model="stub", platform="cpu", device_ids=(1,)), "--platform cuda or rocm"),
    ],
)
def test_replicas_that_cannot_be_placed_are_told(flags: Flags, said: str) -> None:
    with pytest.raises(PlacementError, match=said):
        prepare(flags)


def test_flags_need_a_default_deployment(tmp_path: Path) -> None:
    file = tmp_path / "several.yaml"
    file.write_text("global: {model_catalog: {deployments: {a: {artifact: stub}, b: {artifact: stub}}}}\n")
    assert prepare(Flags(file=file)).edited is False
    with pytest.raises(NothingToServe, match="decision_model"):
        prepare(Flags(file=file, count=2))


def test_a_model_of_no_known_form_is_refused_with_the_forms_there_are() -> None:
    forms = r"owner/name, a path \(./NAME\), pkg:NAME/path, package.module:Class or stub$"
    with pytest.raises(NotAModel, match=f"MODEL 'not a model': expected {forms}"):
        prepare(Flags(model="not a model"))
    with pytest.raises(NotAModel, match=r"MODEL 'stbu': expected .*; did you mean stub\?"):
        prepare(Flags(model="stbu"))
    with pytest.raises(NotAModel, match=r"on the hub it is named with its owner: OWNER/all-MiniLM-L6-v2$"):
        prepare(Flags(model="all-MiniLM-L6-v2"))


def test_a_config_file_given_as_a_model_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "stub.yaml").touch()
    with pytest.raises(NotAModel, match=r"is a config file, and no MODEL: `stoker serve -c configs/stub\.yaml`"):
        prepare(Flags(model="configs/stub.yaml"))
    with pytest.raises(NotAModel, match=r"`stoker serve \./configs`"):
        prepare(Flags(model="configs"))


# ------------------------------------------------------------------------------------------- the verbs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], "expected a MODEL"),
        (["serve", "not a model"], "owner/name"),
        (["serve", "-c", "missing.yaml"], "missing.yaml: there is no such file"),
        (["serve", "stub", "-dp", "0"], "-dp: expected a whole number from 1 to 64, found '0'"),
        (["serve", "stub", "--device-ids", "0;1"], "expected numbers with commas between them"),
        (["serve", "stub", "--listen", "nowhere"], "expected HOST:PORT"),
        (["serve", "stub", "--name", "a/b"], "1 to 64 letters"),
        (["serve", "stub", "-dp", "5"], "pass --device-ids"),
        (["serve", "stub", "--platform", "tpu"], "'cpu', 'cuda', 'rocm', 'mps'"),
        (
            ["serve", "stub", "--port", "8000"],
            "no such option '--port'; the address is one option: --listen 127.0.0.1:8000",
        ),
        (["serve", "stub", "--host=0.0.0.0", "--port=80"], "--listen 0.0.0.0:80\nsee `stoker serve --help`"),
        (["serve", "stub", "--platfrom", "cpu"], "Did you mean '--platform'?"),
        (["serve", "stub", "--wait"], "--wait goes with --daemon"),
        (["serve", "stub", "--platform", "rocm"], "there is no rocm device on this machine, see `stoker devices`"),
    ],
)
def test_a_wrong_serve_is_exit_code_2_before_anything_starts(stoker: Stoker, words: list[str], said: str) -> None:
    ran = stoker(*words)
    assert ran.code == 2
    assert said in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("file", sorted(SAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_every_sample_config_checks(stoker: Stoker, file: Path) -> None:
    ran = stoker("check", str(file), "--syntax-only")
    assert ran.code == 0
    assert ran.out.startswith("DEPLOYMENT")
    assert "is fine" in ran.err


def test_check_shows_what_would_run(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    ran = stoker("check", str(file))
    assert ran.out.splitlines()[1].split() == [
        "primary",
        "transformers",
        "auto",
        "2",
        "cuda:0,",
        "cuda:1",
        "owner/name",
    ]
    assert ran.err.endswith("1 deployment, 2 replicas, requests without a model go to primary\n")
    plan = msgspec.json.decode(stoker("check", str(file), "--json").out)
    assert plan["deployments"][0]["replicas"] == ["cuda:0", "cuda:1"]


def test_check_warns_of_devices_that_are_not_here(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_SIMULATE_DEVICES", "cuda:1")
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    ran = stoker("check", str(file))
    assert ran.code == 0
    assert "warning: primary: there is no device cuda:1 on this machine, only cpu, cuda:0\n" in ran.err


def test_check_says_every_problem_at_once(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(TWO.replace("artifact", "artefact").replace("cuda:1", "CUDA1"))
    ran = stoker("check", str(file))
    assert ran.code == 2
    assert ran.out == ""
    assert f"{file}:6:" in ran.err
    assert f"{file}:10:" in ran.err


def test_devices_are_listed_for_people_and_for_programs(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_SIMULATE_DEVICES", "rocm:2")
    rows = stoker("devices").out.splitlines()
    assert [row.split()[0] for row in rows] == ["DEVICE", "cpu", "rocm:0", "rocm:1"]
    ids = [device["id"] for device in msgspec.json.decode(stoker("devices", "--json").out)]
    assert ids == ["cpu", "rocm:0", "rocm:1"]
    monkeypatch.setenv("STOKER_SIMULATE_DEVICES", "nonsense")
    assert stoker("devices").code == 1
