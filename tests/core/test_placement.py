"""Where replicas go: the table of spec 4, over all that `-dp`, `--device-ids`, `--platform` and a document can say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.placement import GPU_PLATFORMS, MOST_REPLICAS, PlacementError, check_count, place, resize

PLATFORMS = st.sampled_from(GPU_PLATFORMS)
COUNTS = st.integers(1, MOST_REPLICAS)
IDS = st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True)


def gpus(platform: str, count: int) -> list[str]:
    return ["cpu", *(f"{platform}:{number}" for number in range(count))]


@given(PLATFORMS, COUNTS, st.integers(0, 15))
def test_one_id_is_that_device_as_many_times_as_asked(platform: str, count: int, number: int) -> None:
    placed = place(count=count, device_ids=[number], platform=platform, authored=[], available=[])
    assert placed == [f"{platform}:{number}"] * count


@given(PLATFORMS, IDS, st.booleans())
def test_as_many_ids_as_replicas_are_taken_index_by_index(platform: str, ids: list[int], counted: bool) -> None:
    count = len(ids) if counted else None
    placed = place(count=count, device_ids=ids, platform=platform, authored=[], available=[])
    assert placed == [f"{platform}:{number}" for number in ids]


@given(PLATFORMS, IDS.filter(lambda ids: len(ids) > 1), COUNTS)
def test_another_number_of_ids_is_an_error_that_names_both(platform: str, ids: list[int], count: int) -> None:
    if len(ids) == count:
        return
    with pytest.raises(PlacementError, match=f"one id or {count} of them .*not {len(ids)}"):
        place(count=count, device_ids=ids, platform=platform, authored=[], available=[])


@given(PLATFORMS, IDS, st.data())
def test_a_repeated_id_is_an_error_with_the_hint_to_dp(platform: str, ids: list[int], data: st.DataObject) -> None:
    repeated = [*ids, data.draw(st.sampled_from(ids))]
    with pytest.raises(PlacementError, match="twice; use -dp N"):
        place(count=None, device_ids=repeated, platform=platform, authored=[], available=[])


@given(PLATFORMS, st.integers(1, 16), st.integers(0, 16))
def test_without_ids_the_first_gpus_one_each_and_too_few_is_an_error(platform: str, count: int, there: int) -> None:
    available = gpus(platform, there)
    if there >= count:
        placed = place(count=count, device_ids=None, platform=platform, authored=[], available=available)
        assert placed == available[1 : count + 1], "never two on one card unasked"
    else:
        with pytest.raises(PlacementError):
            place(count=count, device_ids=None, platform=platform, authored=[], available=available)


@given(st.lists(st.sampled_from(["cpu", "cuda:0", "cuda:3"]), min_size=1, max_size=8), COUNTS)
def test_an_authored_list_is_kept_in_its_order_and_repeated_in_turn(authored: list[str], count: int) -> None:
    placed = place(count=count, device_ids=None, platform=None, authored=authored, available=["cpu"])
    assert placed == [authored[index % len(authored)] for index in range(count)] == resize(authored, count)
    same = place(count=None, device_ids=None, platform=None, authored=authored, available=["cpu"])
    assert same == authored, "without a number it stays as it is"


@given(PLATFORMS, st.integers(1, 4))
def test_another_platform_than_the_authored_one_begins_anew(platform: str, count: int) -> None:
    placed = place(count=count, device_ids=None, platform=platform, authored=["cpu"], available=gpus(platform, 4))
    assert placed == [f"{platform}:{number}" for number in range(count)]


@given(COUNTS)
def test_nothing_said_is_the_cpu(count: int) -> None:
    assert place(count=count, device_ids=None, platform=None, authored=[], available=["cpu"]) == ["cpu"] * count


@given(st.integers().filter(lambda count: not 1 <= count <= MOST_REPLICAS))
def test_other_numbers_than_1_to_64_are_refused(count: int) -> None:
    with pytest.raises(PlacementError, match="1 to 64"):
        check_count(count)
