"""The terminal that the dashboard draws on, also one that goes away while it draws (spec 14).

Textual's driver does not see a terminal go. Its reading thread gets end of file again and again, and spins; its writing
thread ends with the first write that fails, and the app waits for room in the queue before it for ever; and with each
SIGCONT, which the kernel sends after the SIGHUP of a hang-up, both are started once more. So here a watcher waits for
the hang-up, ends the reading, and tells the app; what is written after that goes nowhere. A SIGCONT takes the terminal
anew only after it was given back. Nor is a terminal believed to be larger than one can be: every cell would be drawn.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

WIDEST, HIGHEST = 500, 200
"""Cells that are drawn at most: more than a large screen shows at a size that can be read."""


class TerminalGone(Message):
    """Nobody sees anything of this any more."""


def sane_size(width: int, height: int) -> tuple[int, int]:
    """A size as it is drawn."""
    return max(1, min(width, WIDEST)), max(1, min(height, HIGHEST))


class Paper:
    """A terminal to write on. Once it is gone nothing that is written matters any more, and nothing fails."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._is_gone = False

    def write(self, text: str) -> None:
        """Write, as long as somebody reads."""
        self._attempt(lambda: self._file.write(text))

    def flush(self) -> None:
        """Send what waits, as long as somebody reads."""
        self._attempt(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()

    def _attempt(self, work: Callable[[], object]) -> None:
        if self._is_gone:
            return
        try:
            work()
        except OSError:
            self._is_gone = True  # the watcher tells the app


class Terminal(LinuxDriver):
    """Textual's driver of Linux and macOS. It tells its app when the terminal is gone."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._file: Any = Paper(self._file)
        threading.Thread(target=self._watch, name="terminal-watch", daemon=True).start()

    def _get_terminal_size(self) -> tuple[int, int]:
        return sane_size(*super()._get_terminal_size())

    def _sigcont_application(self, *_: object) -> None:
        """Somebody woke the process: by `fg`, by a SIGCONT after a SIGSTOP, or the kernel as the terminal went."""
        if _hangs_up(self.fileno, within_ms=0):
            return
        if self._key_thread is not None and self._key_thread.is_alive():
            self.suspend_application_mode()
        super()._sigcont_application()

    def _watch(self) -> None:
        if _hangs_up(self.fileno, within_ms=None):
            self.exit_event.set()  # ends the reading
            self._app.post_message(TerminalGone())


def _hangs_up(terminal: int, within_ms: int | None) -> bool:
    """Whether the terminal is gone within a time; None: wait for it. A poll that knows no terminals (macOS) says no."""
    poll = select.poll()
    poll.register(terminal, 0)  # a hang-up is told without being asked for
    return any(what & (select.POLLHUP | select.POLLERR) for _, what in poll.poll(within_ms))
