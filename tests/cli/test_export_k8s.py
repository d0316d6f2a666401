"""`stoker export k8s`: manifests that say what the config says, and give a drain the time it may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.core.grace import stop_grace_s
from tests.cli.conftest import Stoker
from ui.cli.export import kubernetes

PLAIN = """\
# a comment  
global:
  model_catalog:
    deployments:
      a: {artifact: stub, drain_timeout_s: 600.5, cpu: {threads: 1}, replicas: [{device: cpu}, {device: cpu}]}
      b: {artifact: stub, cpu: {threads: 1}}
    system: {decision_model: {deployment: a}}
stoker: {name: Two_x, api_key_env: TWO_KEY, listen: "127.0.0.1:9000"}
"""  # noqa: W291
ONE = "global: {model_catalog: {deployments: {a: {artifact: stub, replicas: [{device: cpu}, {device: cpu}]}}}}\n"
CARDS = """\
global:
  model_catalog:
    deployments:
      a: {artifact: stub, replicas: [{device: cuda}, {device: "cuda:0"}, {device: "cuda:2"}]}
"""


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_CPU_THREADS", raising=False)


def exported(stoker: Stoker, folder: Path, text: str, *words: str) -> tuple[dict[str, Any], str]:
    """The manifests by kind, and what was said."""
    file = folder / "stoker.yaml"
    file.write_text(text)
    ran = stoker("export", "k8s", "-c", str(file), *words)
    assert ran.code == 0, ran.err
    return {each["kind"]: each for each in yaml.safe_load_all(ran.out)}, ran.err


def container(manifests: dict[str, Any]) -> dict[str, Any]:
    (found,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_it_is_a_config_map_a_deployment_and_a_service_that_belong_together(stoker: Stoker, tmp_path: Path) -> None:
    manifests, _ = exported(stoker, tmp_path, PLAIN, "--image", "reg/stoker:1", "--namespace", "models")
    assert [*manifests] == ["ConfigMap", "Deployment", "Service"]
    assert {(each["metadata"]["name"], each["metadata"]["namespace"]) for each in manifests.values()} == {
        ("stoker-two-x", "models")
    }
    spec = manifests["Deployment"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"]
    assert spec["template"]["spec"]["volumes"][0]["configMap"]["name"] == "stoker-two-x"
    assert manifests["Service"]["spec"]["ports"][0] == {"name": "http", "port": 9000, "targetPort": "http"}


@pytest.mark.parametrize("text", [PLAIN, ONE, ONE.rstrip("\n"), f"\n  \n{ONE}", ONE.replace("\n", "\r\n")])
def test_the_config_arrives_as_it_was_written(stoker: Stoker, tmp_path: Path, text: str) -> None:
    manifests, _ = exported(stoker, tmp_path, text)
    inside = manifests["ConfigMap"]["data"]["stoker.yaml"]
    assert inside.rstrip("\n") == text.rstrip("\n")


def test_it_serves_that_config_on_all_addresses_of_the_pod(stoker: Stoker, tmp_path: Path) -> None:
    manifests, _ = exported(stoker, tmp_path, PLAIN)
    found = container(manifests)
    assert found["command"] == ["stoker", "serve", "--headless", "--name", "Two_x", "-c", "/etc/stoker/stoker.yaml"]
    assert found["args"] == ["--listen", "0.0.0.0:9000"]
    assert found["volumeMounts"][0] == {"name": "config", "mountPath": "/etc/stoker", "readOnly": True}


def test_it_asks_health_for_life_and_ready_for_traffic(stoker: Stoker, tmp_path: Path) -> None:
    found = container(exported(stoker, tmp_path, ONE)[0])
    paths = {probe: found[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    assert found["readinessProbe"]["failureThreshold"] == 1, "a stop is seen at the next look"


@pytest.mark.parametrize(("text", "drains"), [(ONE, [30.0]), (PLAIN, [600.5, 30.0])])
def test_the_grace_follows_the_longest_drain_and_covers_the_sleep_before_it(
    stoker: Stoker, tmp_path: Path, text: str, drains: list[float]
) -> None:
    manifests, _ = exported(stoker, tmp_path, text)
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == stop_grace_s(drains)
    asleep = container(manifests)["lifecycle"]["preStop"]["exec"]["command"]
    assert asleep[0] == "sleep" and 0 < int(asleep[1]) < 15


def test_its_cpu_is_the_threads_of_all_replicas_and_one_core(stoker: Stoker, tmp_path: Path, cpu: None) -> None:
    found = container(exported(stoker, tmp_path, PLAIN)[0])
    assert found["resources"] == {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}
    assert "STOKER_CPU_THREADS" not in {each["name"] for each in found["env"]}, "the config says"


def test_threads_that_the_config_leaves_open_are_those_that_the_cpu_was_counted_for(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.slots.making.budget.threads_for", lambda budget, configured: 3)
    found = container(exported(stoker, tmp_path, ONE)[0])
    assert found["resources"]["limits"] == {"cpu": "7"}
    assert {"name": "STOKER_CPU_THREADS", "value": "3"} in found["env"]


def test_gpus_are_counted_by_card_and_their_numbers_looked_at(stoker: Stoker, tmp_path: Path) -> None:
    manifests, said = exported(stoker, tmp_path, CARDS)
    assert container(manifests)["resources"]["limits"] == {"cpu": "4", "nvidia.com/gpu": "2"}
    assert "the config names cuda:0, cuda:2" in said


def test_the_api_key_comes_from_a_secret(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWO_KEY", "a-secret")
    manifests, said = exported(stoker, tmp_path, PLAIN)
    wanted = {"secretKeyRef": {"name": "stoker-two-x-api-key", "key": "TWO_KEY"}}
    assert {"name": "TWO_KEY", "valueFrom": wanted} in container(manifests)["env"]
    assert "a-secret" not in str(manifests) + said
    assert "no API key" in exported(stoker, tmp_path, ONE)[1]


def test_it_runs_as_nobody_special(stoker: Stoker, tmp_path: Path) -> None:
    manifests, _ = exported(stoker, tmp_path, ONE)
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    assert container(manifests)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    written = {each["mountPath"] for each in container(manifests)["volumeMounts"] if not each.get("readOnly")}
    assert written == {"/tmp", kubernetes.HOME}


def test_a_forgotten_image_is_said_and_cannot_be_pulled(stoker: Stoker, tmp_path: Path) -> None:
    manifests, said = exported(stoker, tmp_path, ONE)
    assert container(manifests)["image"] == "SET-YOUR-IMAGE"
    assert "no --image was given" in said
    assert container(exported(stoker, tmp_path, ONE, "--image", "reg/a:1")[0])["image"] == "reg/a:1"


def test_another_config_makes_another_pod(stoker: Stoker, tmp_path: Path) -> None:
    def digest(text: str) -> str:
        template = exported(stoker, tmp_path, text)[0]["Deployment"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["stoker/config"])

    assert digest(ONE) == digest(ONE) != digest(ONE.replace("{device: cpu}, ", ""))


@pytest.mark.parametrize(
    ("name", "found"),
    [("default", "stoker"), ("stoker", "stoker"), ("A_b.c", "stoker-a-b-c"), ("x" * 64, "stoker-" + "x" * 56)],
)
def test_names_are_such_that_kubernetes_takes_them(name: str, found: str) -> None:
    assert kubernetes.object_name(name) == found


def test_a_config_with_errors_is_exit_code_2_and_no_manifest(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "stoker.yaml").write_text("stoker: {port: 80}\n")
    ran = stoker("export", "k8s", "-c", str(tmp_path / "stoker.yaml"))
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--image", "two words", "--image: expected a name such as registry.example/stoker:1, found 'two words'"),
        ("--namespace", "Bad NS", "--namespace: expected 1 to 63 of a-z, 0-9 and '-', found 'Bad NS'"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(stoker: Stoker, option: str, value: str, said: str) -> None:
    ran = stoker("export", "k8s", option, value)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
