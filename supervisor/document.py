"""The config document of a running supervisor: read again on reload, edited by scale actions (spec 3).

Disk work runs on one thread of its own, in order: a slow disk delays neither a request nor another command, and two
edits never overtake each other. Each edit starts from the file as it is now, so a change that the user saved
meanwhile stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.errors import StokerError
from supervisor.config.load import LoadedConfig, load_config, parse_config, read_text
from supervisor.config.saving import save
from supervisor.config.schema import Placement
from supervisor.config.write_back import set_placements


class Document:
    """`path` None: the document lives in memory only, and nothing is ever saved."""

    def __init__(self, path: Path | None, text: str) -> None:
        self.path = path
        self.edits = 0
        """How often it was edited: what was read before one more edit was asked for is not the last word."""
        self._text = text
        self._closing = False
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="stoker-config")
        self._loop = asyncio.get_running_loop()

    def read(self) -> asyncio.Future[LoadedConfig]:
        """The document as it is now. The future raises ConfigError with every problem of the file."""
        return self._loop.run_in_executor(self._disk, self._read)

    def set_placements(self, deployment: str, placements: Sequence[Placement]) -> asyncio.Future[str | None]:
        """Write the replicas of a deployment back; why it was not saved, None where it was or needs not be."""
        self.edits += 1
        return self._loop.run_in_executor(self._disk, self._set_placements, deployment, tuple(placements))

    def close(self) -> None:
        """Finish what is being written; what was to be read is read no more."""
        self._closing = True
        self._disk.shutdown(wait=True)

    def _read(self) -> LoadedConfig:
        if self._closing:
            raise StokerError("the supervisor is stopping")
        return parse_config(self._text, "the document") if self.path is None else load_config(self.path)

    def _set_placements(self, deployment: str, placements: tuple[Placement, ...]) -> str | None:
        try:
            before = self._text if self.path is None else read_text(self.path)
            after = set_placements(before, deployment, placements)
            if self.path is not None and after != before:
                save(self.path, after)
        except StokerError as error:
            return str(error)
        self._text = after
        return None
