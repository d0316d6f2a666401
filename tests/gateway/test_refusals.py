"""What a caller is told where no replica takes its request (spec 6, 11)."""

from __future__ import annotations

import msgspec

from tests.gateway.house import House, in_house, post


@in_house
async def test_a_503_names_the_backoff_after_an_engines_error_and_when_to_come_again(house: House) -> None:
    client = await house.connect()
    for _ in house.targets:
        client.send(post())
        ((target, number),) = await house.opened(1)
        house.answer(target, number, b'{"error": {"message": "poison"}}', status=500)
        assert (await client.answer()).status == 500
    client.send(post())
    answer = await client.answer()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "unavailable", "1")
    assert msgspec.json.decode(answer.body)["error"]["message"] == (
        "no replica of m is ready: 2 replicas back off after an error; the next request is taken in 0.1 s"
    )


@in_house
async def test_a_503_while_no_replica_runs_names_no_backoff(house: House) -> None:
    for target in house.targets:
        target.member.in_rotation = False
    client = await house.connect()
    client.send(post())
    answer = await client.answer()
    assert answer.status == 503
    assert msgspec.json.decode(answer.body)["error"]["message"] == "no replica of m is ready"
