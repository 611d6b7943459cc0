"""The traffic that the policy is timed with keeps to what the engine does with its pages."""

from __future__ import annotations

import pytest
from policy import Traffic


@pytest.mark.parametrize("shared", [False, True])
def test_every_page_has_one_owner_while_requests_come_and_go(shared: bool) -> None:
    traffic = Traffic(20, shared=shared)
    evicted = steps = 0
    while evicted == 0:
        traffic.step()
        evicted, steps = traffic.memory.evicted, steps + 1
        assert steps < 300
    for _ in range(5):
        traffic.step()
    traffic.memory.check(traffic._running)
