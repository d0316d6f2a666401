"""How much memory this machine has left."""

from __future__ import annotations

import psutil

SHORT_SHARE = 0.10
"""Memory is short below this share of the whole."""


def memory_is_short() -> bool:
    """Whether little memory is available."""
    memory = psutil.virtual_memory()
    return memory.available < SHORT_SHARE * memory.total
