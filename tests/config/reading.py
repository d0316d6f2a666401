"""Short ways to read a document and to expect its problems."""

from __future__ import annotations

import textwrap

import pytest

from supervisor.config.load import parse_config
from supervisor.config.problems import ConfigError, Problem
from supervisor.config.schema import Deployment

MINIMAL = "global: {model_catalog: {deployments: {stub: {artifact: stub}}}}\n"


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "stoker.yaml")
    return caught.value.problems


def deployment(lines: str) -> str:
    """A document with one deployment of these lines; the first of them is line 5."""
    head = "global:\n  model_catalog:\n    deployments:\n      primary:\n"
    return head + textwrap.indent(textwrap.dedent(lines).strip("\n"), " " * 8) + "\n"


def read(lines: str) -> Deployment:
    return parse_config(deployment(lines), "stoker.yaml").config.deployments["primary"]


def only_problem(text: str) -> Problem:
    (problem,) = problems_of(text)
    return problem
