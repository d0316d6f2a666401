"""How many files this process may have open: its limit is raised, and clients get half of it."""

from __future__ import annotations

import subprocess
import sys

TRIAL = """
import resource
from supervisor.host.descriptors import for_clients, raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), for_clients())
"""


def test_the_limit_is_raised_as_far_as_the_system_lets_us_and_half_of_it_is_for_clients() -> None:
    said = subprocess.run([sys.executable, "-c", TRIAL], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["300", "300", "150"]
