"""`load` may be followed by a fork: no thread exists after it, and a child computes in parallel (spec 5)."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import os, sys, msgspec, numpy as np
from engine.messages import Route
from engine.backends.transformers import TransformersBackend
from tests.engine.conftest import embed, launch

backend = TransformersBackend(launch(options={"encoder": sys.argv[1]}))
backend.load()
threads = len(os.listdir("/proc/self/task"))
lean = "transformers" not in sys.modules
body = msgspec.json.encode({"input": ["some words to make a forward worth its threads " * 8] * 4})
reader, writer = os.pipe()
if os.fork() == 0:
    backend.adopt(launch(threads=2, replica="primary/1"))
    backend.warm()
    os.write(writer, embed(backend, body)[1].tobytes())
    os._exit(0)
os.close(writer)
with open(reader, "rb") as pipe:
    child = np.frombuffer(pipe.read(), np.float32)
own = embed(backend, body)[1].ravel()
print(threads, lean, child.size == own.size and float(np.abs(child - own).max()) < 1e-5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(("encoder", "lean"), [("auto", "True"), ("transformers", "False")])
def test_a_fork_of_a_loaded_process_computes_with_two_threads(encoder: str, lean: str) -> None:
    command = [sys.executable, "-c", CHILD, encoder]
    environ = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.split() == ["1", lean, "True"], done.stderr
