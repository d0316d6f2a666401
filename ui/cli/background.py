"""A supervisor in a process and session of its own: out of reach of a frozen dashboard or closed terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.errors import StokerError
from supervisor.control.client import ControlClient, NoAnswer, NotRunning
from supervisor.control.events import Warned
from supervisor.control.messages import Events, GetEvents, GetLogs, Lines, SupervisorStatus
from supervisor.host.runtime import RuntimeDir
from ui.cli.reach import ask, inventory_of
from ui.cli.say import progress
from ui.cli.waiting import WaitFailed, served, wait_until

LOOK_S = 0.02
"""Between two looks whether it answers."""
ANSWER_S = 1.0
"""How long one answer may take while it starts."""
LEAVE_S = 10.0
"""How long a supervisor that is given up before it answered may take to leave."""
LAST_LINES = 20
"""Lines of its log that are shown where it did not come up."""
LOG_BYTES = 10 * 1024 * 1024
"""A longer log is put aside at the next start."""


class CouldNotStart(StokerError):
    """The supervisor ended before it answered; the text has its last lines."""


@dataclass(frozen=True, slots=True)
class Started:
    """A supervisor's process and its log; what it writes begins at byte `began_at`."""

    process: subprocess.Popen[bytes]
    log: Path
    began_at: int


@contextmanager
def started(arguments: Sequence[str], log: Path) -> Iterator[Started]:
    """Start `stoker ARGUMENTS` detached: own session, no standard input, its words at the end of `log`.

    It is ended where the block fails, and lives on where the block is done.
    """
    begun = _start(arguments, log)
    try:
        yield begun
    except BaseException:
        _give_up(begun.process)
        raise


def wait_until_it_answers(begun: Started, runtime: RuntimeDir) -> SupervisorStatus:
    """What it first says of itself. It listens then; its replicas may be on their way yet. Raises CouldNotStart."""
    with progress() as line:
        line.show(f"starting the supervisor {runtime.name!r}")
        while (supervisor := _answer(runtime, begun.process.pid)) is None:
            if (code := _exit_code(begun.process)) is not None:
                raise CouldNotStart(f"the supervisor ended with {_how(code)}; {_last_words(begun)}")
    return supervisor


def wait_until_served(begun: Started, runtime: RuntimeDir, timeout_s: float) -> str:
    """The words of it when every replica is ready. Raises WaitFailed with what the replicas printed, CouldNotStart."""
    try:
        with ControlClient(str(runtime.control)) as client:
            try:
                return wait_until(client, served, timeout_s)
            except WaitFailed as failed:
                raise WaitFailed("\n".join([str(failed), *_printed(client)])) from None
    except NotRunning:
        code = begun.process.wait(LEAVE_S)
        raise CouldNotStart(f"the supervisor ended with {_how(code)}; {_last_words(begun)}") from None


def warnings_so_far(runtime: RuntimeDir) -> list[str]:
    """What it warned of since it started, which a log that nobody reads yet would hide. Raises NotRunning, NoAnswer."""
    with ControlClient(str(runtime.control)) as client:
        events = ask(client, GetEvents(), Events).events
    return [event.message for event in events if isinstance(event, Warned)]


def address_of(runtime: RuntimeDir) -> str | None:
    """Where the supervisor of that name listens; None where it does not say."""
    try:
        with ControlClient(str(runtime.control)) as client:
            return inventory_of(client, ANSWER_S).supervisor.listen
    except (NotRunning, NoAnswer):
        return None


def _start(arguments: Sequence[str], log: Path) -> Started:
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StokerError(f"{error.filename}, for the supervisor's log: {error.strerror}") from error
    try:
        began_at = os.fstat(output).st_size
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ui.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)
    return Started(process, log, began_at)


def _answer(runtime: RuntimeDir, pid: int) -> SupervisorStatus | None:
    """What the supervisor says of itself, where it is that process and answers."""
    try:
        with ControlClient(str(runtime.control)) as client:
            supervisor = inventory_of(client, ANSWER_S).supervisor
    except (NotRunning, NoAnswer):
        return None
    return supervisor if supervisor.pid == pid else None


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code, or None where it still runs after a moment."""
    try:
        return process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return None


def _how(code: int) -> str:
    """An exit code, or the name of the signal that it stands for."""
    try:
        return str(code) if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _last_words(begun: Started) -> str:
    with begun.log.open("rb") as file:
        file.seek(begun.began_at)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join([f"the end of {begun.log}:", *lines[-LAST_LINES:]]) if lines else "it wrote nothing"


def _printed(client: ControlClient) -> list[str]:
    """The last lines of those deployments that are not all ready, each under its name."""
    said: list[str] = []
    for deployment in inventory_of(client).deployments:
        if deployment.ready_replicas < deployment.desired_replicas:
            lines = ask(client, GetLogs(deployment=deployment.name, lines=LAST_LINES), Lines).lines
            said += [f"the end of the log of {deployment.name}:"] if lines else []
            said += [f"{line.replica}#{line.incarnation} {line.text}" for line in lines]
    return said


def _give_up(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
