"""In flight as a foreign server counts it: which gauges, and what is no count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.links.foreign_metrics import FAMILIES, LLAMA_CPP, LOOKED_FOR, SGLANG, VLLM, Unreadable, in_flight_of

VLLM_TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 2.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 4.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-8B"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0
vllm:prompt_tokens_total{engine="0",model_name="a \\"quoted\\" } name"} 1.5e+06
python_gc_objects_collected_total{generation="0"} 10500.0
"""

SGLANG_TEXT = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 1.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m",tp_rank="0"} 0.28
"""

LLAMA_CPP_TEXT = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1235
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
"""


def test_vllm_is_running_and_waiting_over_all_engines() -> None:
    assert in_flight_of(VLLM_TEXT) == 9


def test_sglang_is_running_and_queued() -> None:
    assert in_flight_of(SGLANG_TEXT) == 3


def test_llama_cpp_is_processing_and_deferred() -> None:
    assert in_flight_of(LLAMA_CPP_TEXT) == 50


@pytest.mark.parametrize("labels", ["", '{model_name="m",tp_rank="0"}'])
@pytest.mark.parametrize("first", ["bootstrap", "prealloc"])
def test_the_four_queues_between_prefill_and_decode_count(first: str, labels: str) -> None:
    names = (f"prefill_{first}", "prefill_inflight", "decode_prealloc", "decode_transfer")
    queues = "".join(f"sglang:num_{name}_queue_reqs{labels} {10**place}\n" for place, name in enumerate(names, 1))
    assert in_flight_of(SGLANG_TEXT + queues) == 11113


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.running)
@pytest.mark.parametrize("labels", ["", '{engine="0"}', '{model_name="a b } \\"c\\""}'])
def test_each_gauge_counts_with_and_without_labels(family: Any, labels: str) -> None:
    page = "".join(f"{gauge}{labels} {10**place}.0\n" for place, gauge in enumerate(family.gauges))
    assert in_flight_of(page) == int("1" * len(family.gauges))


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("", LOOKED_FOR),
        ("<html>404</html>", LOOKED_FOR),
        ("stoker_in_flight 0\n", LOOKED_FOR),
        ("# HELP vllm:num_requests_running x\n", VLLM.running),
        ("vllm:num_requests_running 0\n", VLLM.waiting),
        ("vllm:num_requests_waiting 0\n", VLLM.running),
        ("sglang:num_running_reqs 1\n", SGLANG.waiting),
        ("sglang:num_queue_reqs 1\n", SGLANG.running),
        ("llamacpp:requests_processing 1\n", LLAMA_CPP.waiting),
        ("llamacpp:requests_deferred 1\n", LLAMA_CPP.running),
        ("vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n", VLLM.running),
        ("vllm:num_requests_running 0\nvllm:num_requests_waiting +Inf\n", VLLM.waiting),
        ("vllm:num_requests_running -1\nvllm:num_requests_waiting 0\n", VLLM.running),
        ('vllm:num_requests_running{a="1"} 2\nvllm:num_requests_running{a="2"} -1\n', VLLM.running),
        ("vllm:num_requests_running many\nvllm:num_requests_waiting 0\n", VLLM.running),
        ('vllm:num_requests_running{a="1\nvllm:num_requests_waiting 0\n', VLLM.running),
        (SGLANG_TEXT + SGLANG.handed_off[2] + " NaN\n", SGLANG.handed_off[2]),
    ],
)
def test_half_a_sum_is_no_count_and_says_which_half_is_missing(text: str, metric: str) -> None:
    assert in_flight_of(text) == Unreadable(metric)


@given(st.text(max_size=80), st.sampled_from([gauge for family in FAMILIES for gauge in family.gauges]))
def test_nonsense_is_unreadable_and_never_an_error(nonsense: str, gauge: str) -> None:
    found = in_flight_of(f"{gauge}{nonsense}")
    assert isinstance(found, Unreadable)


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=6), st.lists(st.integers(0, 10_000), min_size=1, max_size=6)
)
def test_the_count_is_the_sum_over_label_sets(running: list[int], waiting: list[int]) -> None:
    lines = [f'vllm:num_requests_running{{engine="{n}"}} {count:.1f}' for n, count in enumerate(running)]
    lines += [f'vllm:num_requests_waiting{{engine="{n}"}} {count:.1f}' for n, count in enumerate(waiting)]
    assert in_flight_of("\n".join(lines) + "\n") == sum(running) + sum(waiting)
