"""Words about names that are not there: pure, and the same for every verb."""

from __future__ import annotations

import pytest

from supervisor.names import MOST_LISTED, Fleet, listed, nearest, no_deployment, no_replica, no_such

FLEET: Fleet = {"stub": ["stub/0", "stub/1"], "minilm": ["minilm/0"]}


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ([], "there is none"),
        (["a"], "there is: a"),
        (["a", "b"], "there are: a, b"),
        ([f"n{number}" for number in range(64)], "there are 64: " + "n0, n1, n2"),
    ],
)
def test_what_there_is_is_counted_and_listed(known: list[str], said: str) -> None:
    assert listed(known).startswith(said)
    assert listed(known).count(",") <= MOST_LISTED


def test_the_nearest_name_is_offered_whatever_its_case_and_none_where_none_is_like_it() -> None:
    assert no_such("deployment", "STBU", ["stub", "minilm"]) == (
        "no deployment 'STBU'; did you mean 'stub'? (there are: stub, minilm)"
    )
    assert no_such("deployment", "nope", ["stub"]) == "no deployment 'nope' (there is: stub)"
    assert nearest("x" * 100_000, ["x" * 99_999]) is None, "guessing takes time quadratic in the length"


def test_a_replica_is_guessed_by_its_deployment_and_never_another_number() -> None:
    assert "did you mean 'stub/1'?" in no_replica("stbu/1", FLEET)
    assert "did you mean" not in no_replica("stub/7", FLEET)
    assert "did you mean" not in no_replica("stbu/7", FLEET)
    assert no_replica("nope", {}) == "no replica 'nope' (there is none)"


def test_one_taken_for_the_other_is_said_so() -> None:
    assert no_deployment("stub/1", FLEET) == "'stub/1' is a replica; expected a deployment, such as 'stub'"
    assert no_replica("minilm", FLEET) == (
        "'minilm' is a deployment; expected one of its replicas (there is: minilm/0)"
    )
