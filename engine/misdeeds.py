"""Faults that a stub commits at once when they are set, so that every rule can be seen at work."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading

from engine.messages import Faults

STUBBORN_CHILD = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"child up\\n")
time.sleep(600)
"""


def act_on(faults: Faults) -> None:
    """Commit those that act at once."""
    for _ in range(faults.children):
        subprocess.Popen([sys.executable, "-c", STUBBORN_CHILD])
    if faults.say and faults.say_times == 1:
        _say(faults.say, 1)
    elif faults.say:
        threading.Thread(target=_say, args=(faults.say, faults.say_times), daemon=True).start()
    if faults.leave:
        os._exit(0)
    if faults.crash:
        crash()


def crash() -> None:
    """Die as a broken native library does. A core file would only cost disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("stub: crashing on request", file=sys.stderr, flush=True)
    signal.raise_signal(signal.SIGSEGV)  # in this very thread: before it can do anything else


def _say(text: str, times: int) -> None:
    """More than once on a thread of its own: whoever reads slowly must not hold up the socket."""
    data = text.encode("utf-8", "surrogatepass")
    for _ in range(times):
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
