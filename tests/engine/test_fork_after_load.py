"""`load` may be followed by a fork: no thread exists after it, and a child computes in parallel (spec 5)."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, msgspec, numpy as np
from engine.backends.transformers import TransformersBackend
from tests.engine.conftest import embed, launch

lean = TransformersBackend(launch())
lean.load()
light = "transformers" not in sys.modules
padded = TransformersBackend(launch(options={"encoder": "transformers"}))
padded.load()
threads = len(os.listdir("/proc/self/task"))
body = msgspec.json.encode({"input": ["some words to make a forward worth its threads " * 8] * 4})
reader, writer = os.pipe()
if os.fork() == 0:
    for backend in (lean, padded):
        backend.adopt(launch(threads=2, replica="primary/1"))
        backend.warm()
        os.write(writer, embed(backend, body)[1].tobytes())
    os._exit(0)
os.close(writer)
with open(reader, "rb") as pipe:
    children = np.frombuffer(pipe.read(), np.float32)
own = np.concatenate([embed(backend, body)[1].ravel() for backend in (lean, padded)])
print(light, threads, children.size == own.size and float(np.abs(children - own).max()) < 1e-5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_fork_of_a_loaded_process_computes_with_two_threads() -> None:
    """With both encoders; the lean one has not even imported transformers."""
    environ = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.split() == ["True", "1", "True"], done.stderr
