"""A command in a pseudo-terminal: what a person would see, and the keys that a person would press."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

PATIENCE_S = 20.0
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Terminal:
    """Use as a context manager; the process is ended with it. `raw`: every byte so far, `text`: without
    sequences.
    """

    def __init__(
        self,
        words: Sequence[str],
        columns: int = 80,
        lines: int = 24,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=dict(environ) | {"TERM": "xterm-256color", "COLUMNS": "", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._bytes = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def raw(self) -> str:
        return self._bytes.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        return _SEQUENCES.sub("", self.raw).replace("\r\n", "\n")

    def wait_for(self, text: str) -> None:
        """Return when that text was written."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} did not come, only:\n{self.text}"
            assert self._read(0.1), f"{text!r} did not come before the end, only:\n{self.text}"

    def wait(self) -> int:
        """The exit code, and all output read."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(0.05):
            assert time.monotonic() < deadline, f"it did not end:\n{self.text}"
        return self._process.wait(5)

    def press(self, keys: str) -> None:
        """Keys, as the terminal sends them."""
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C, as the terminal sends it."""
        self.press("\x03")

    def hang_up(self) -> None:
        """The terminal is closed."""
        os.kill(self._process.pid, signal.SIGHUP)

    def _read(self, patience_s: float) -> bool:
        """Take what is there; False once the process is gone and all is read."""
        if not select.select([self._ours], [], [], patience_s)[0]:
            return self._process.poll() is None
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        self._bytes += data
        return bool(data)
