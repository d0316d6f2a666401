"""In flight as a foreign server counts it: which gauges, and what is no count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.links.foreign_metrics import SGLANG, VLLM, Unreadable, in_flight_of

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


def test_vllm_is_running_and_waiting_over_all_engines() -> None:
    assert in_flight_of(VLLM_TEXT) == 9


def test_sglang_is_running_and_queued() -> None:
    assert in_flight_of(SGLANG_TEXT) == 3


def test_the_queues_between_prefill_and_decode_count() -> None:
    queues = "".join(f'{name}{{tp_rank="0"}} {10**place}\n' for place, name in enumerate(SGLANG.handed_off, 1))
    assert in_flight_of(SGLANG_TEXT + queues) == 11113


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("", VLLM.running),
        ("<html>404</html>", VLLM.running),
        ("# HELP vllm:num_requests_running x\n", VLLM.running),
        ("vllm:num_requests_running 0\n", VLLM.waiting),
        ("vllm:num_requests_waiting 0\n", VLLM.running),
        ("sglang:num_running_reqs 1\n", SGLANG.waiting),
        ("sglang:num_queue_reqs 1\n", SGLANG.running),
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


@given(st.text(max_size=80), st.sampled_from([*VLLM.gauges, *SGLANG.gauges]))
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
