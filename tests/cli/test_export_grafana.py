"""`stoker export grafana`: every metric that it names is exported, and every exported one is in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Stoker
from tests.conftest import Serve
from tests.support import stub_config
from ui.cli.export.grafana import LEFT_OUT, WIDTH, dashboard

PANELS: list[dict[str, Any]] = dashboard()["panels"]  # type: ignore[assignment]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in GRAPHS for target in panel["targets"]]


def named() -> set[str]:
    return {name for text in EXPRESSIONS for name in re.findall(r"stoker_[a-z_]+", text)}


def test_it_shows_every_metric_of_a_running_supervisor_and_no_other(serve: Serve) -> None:
    running = serve(stub_config(1))
    running.wait_ready(1)
    families = list(text_string_to_metric_families(running.get("/metrics").body.decode()))
    samples = {
        "counter": lambda name: {f"{name}_total"},
        "gauge": lambda name: {name},
        "histogram": lambda name: {f"{name}_bucket"},
    }
    exported = {family.name: samples[family.type](family.name) for family in families}
    assert len(exported) > 15
    assert named() <= set().union(*exported.values()), "a panel would stay empty"
    left = {name for name, queried in exported.items() if not queried & named()}
    assert left == set(LEFT_OUT), "show it in a panel, or say in LEFT_OUT why not"


def test_every_query_is_about_the_chosen_deployments() -> None:
    for text in EXPRESSIONS:
        for metric, chosen in re.findall(r"(stoker_[a-z_]+)(\{[^}]*\})?", text):
            assert metric == "stoker_bad_frames_total" or 'deployment=~"$deployment"' in chosen, text


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_brackets_are_closed(text: str) -> None:
    stack = []
    for letter in re.sub(r'"[^"]*"', "", text):
        if letter in "([{":
            stack.append(letter)
        elif letter in ")]}":
            assert stack and stack.pop() + letter in ("()", "[]", "{}"), text
    assert not stack


def test_panels_do_not_overlap_and_fit() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= WIDTH and not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_verb_prints_it_and_takes_no_config(stoker: Stoker) -> None:
    ran = stoker("export", "grafana")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == json.loads(json.dumps(dashboard()))
    assert stoker("export", "grafana", "-c", "stoker.yaml").code == 2
    assert stoker("export", "grafana", "--image", "x").code == 2
