"""A supervisor in a process and session of its own, so that neither a frozen dashboard nor a closed terminal
reaches it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import StokerError
from supervisor.control.client import ControlClient, NoAnswer, NotRunning
from supervisor.host.runtime import RuntimeDir
from ui.cli.exits import Exit
from ui.cli.reach import inventory_of
from ui.cli.say import progress

LOOK_S = 0.02
"""Between two looks whether it answers."""
LEAVE_S = 10.0
"""How long a supervisor that is given up before it answered may take to leave."""
LAST_LINES = 20
"""Lines of its log that are shown where it did not come up."""
LOG_BYTES = 10 * 1024 * 1024
"""A longer log is put aside at the next start."""


class CouldNotStart(StokerError):
    """The supervisor ended before it answered; the text has its last lines. `code`: its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `stoker ARGUMENTS` detached: own session, no standard input, its words into `log`."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StokerError(
            f"the log of the supervisor cannot be written ({error.filename}): {error.strerror}"
        ) from error
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ui.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)


def wait_until_it_answers(
    child: subprocess.Popen[bytes], runtime: RuntimeDir, log: Path, began_at: int
) -> None:
    """Return when the control socket answers. Raises CouldNotStart; a wait that is broken off ends the child.

    began_at: size of the log before the start, in bytes.
    """
    try:
        with progress() as line:
            line.show(f"starting the supervisor {runtime.name!r}")
            while not _answers(runtime, child.pid):
                try:
                    code = child.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
                raise CouldNotStart(
                    _last_words(log, began_at) or f"it ended with {code}; its log is {log}", code
                )
    except BaseException:
        _give_up(child)
        raise


def size_of(log: Path) -> int:
    """Bytes that the log has now; what a start writes comes after them."""
    try:
        size = log.stat().st_size
    except OSError:
        return 0
    return 0 if size > LOG_BYTES else size


def exit_of(error: CouldNotStart) -> Exit:
    """The child's own exit code where it has one of ours, else a failure."""
    return Exit(error.code) if error.code in (Exit.USAGE, Exit.NOT_RUNNING) else Exit.FAILED


def _answers(runtime: RuntimeDir, pid: int) -> bool:
    try:
        with ControlClient(str(runtime.control)) as client:
            return inventory_of(client, 1.0).supervisor.pid == pid
    except (NotRunning, NoAnswer):
        return False


def _last_words(log: Path, began_at: int) -> str:
    with log.open("rb") as file:
        file.seek(began_at)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-LAST_LINES:])


def _give_up(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
