"""The engine `transformers`: models of the transformers library, one task a file (spec 10).

- `load`: files to weights on the CPU, on one thread. Once a deployment: a template may do it, and be forked.
- `warm`: threads, device, a first forward. Once a replica, on the thread that runs the forwards.
- `forward`: rows of any requests together; `step`: the next token of all texts that are being written.

`load` never runs a parallel region (spec 5): OpenMP's threads do not survive a fork, and a child of a process
that has them hangs in its first parallel forward. So torch is set to one thread before the first tensor is
touched, transformers loads its weights without its thread pool, and tqdm's watcher thread is never started.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine import calibration, reference
from engine.backends.artifacts import Artifact, read_json, resolve, weights_digest
from engine.backends.base import Backend, Generation, Job, LoadError, RequestError, Row
from engine.backends.checkpoint import Checkpoint, Options
from engine.backends.meters import meter_of
from engine.backends.tasks import Generating, Task, load_task, task_of
from engine.calibration import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Pass
from engine.messages import Card, LaunchSpec, Route

CPU_SEQS, CPU_TOKENS = 32, 512
"""Limits of a forward on a CPU before it is calibrated: MiniLM's tokens/s on one thread rise up to forwards of 256 to
512 tokens (5600/s for texts of 16), and fall by a seventh up to 2048, while each row waits four times as long."""

GPU_SEQS, GPU_TOKENS = 256, 16384
"""The same on a GPU."""

LEAST_GPU_TOKENS = 512
"""What a GPU's calibration begins with."""

READ_TOKENS = 32
"""Tokens of the prompt that a model which writes reads while it is loaded, to see how long that takes on one thread."""

_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


class TransformersBackend(Backend):
    """The model of a launch specification; its `options` are `Options`. Raises LoadError."""

    repeatable = True
    _artifact: Artifact
    _task: Task
    _digest: str
    _rehearsal: Sequence[bytes] = ()
    _reading: Sequence[Pass] = ()
    _known: Sequence[reference.Example] = ()

    def __init__(self, spec: LaunchSpec) -> None:
        try:
            self._options = msgspec.convert(spec.options, Options)
        except msgspec.ValidationError as error:
            raise LoadError(f"engine_args: {error}", final=True) from error
        self.adopt(spec)

    def load(self) -> None:
        """See Backend: weights on the CPU, one thread, no parallel region, so that a fork may follow."""
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are beyond the budget, and die in a fork
        self._artifact = resolve(self._spec.artifact, self._spec.revision)
        folder = self._artifact.path
        name = task_of(folder) if self._spec.task == "auto" else self._spec.task
        self._dtype = _dtype(self._spec.dtype, self._device, folder)
        served = self._spec.replica.partition("/")[0]
        checkpoint = Checkpoint(folder, self._spec, self._options, self._device, self._dtype, served)
        self._task = self._load_task(name, checkpoint)
        self._digest = weights_digest(folder)
        self.repeatable = not isinstance(self._task, Generating)
        self._read_known()
        if isinstance(self._task, Generating) and self._device.type == "cpu":
            self._rehearsal = self._rehearse()
            self._reading = [self._timed(READ_TOKENS)]

    def adopt(self, spec: LaunchSpec) -> None:
        """See Backend: in a fork, the loaded weights become another replica's."""
        self._spec = spec
        self._device = _device(spec)
        self._warm = False
        self._calibrated: list[str] = []
        self._kv_cache_bytes: int | None = None
        self._set_limits()

    def warm(self) -> None:
        """See Backend. `forward` does it where nobody did."""
        self._warm = True
        self._read_known()
        torch.set_num_threads(max(1, self._spec.threads))
        if torch.get_num_interop_threads() != 1:
            with contextlib.suppress(RuntimeError):  # can be set once a process, and only before it is used
                torch.set_num_interop_threads(1)
        self._task.to(self._device)
        prepared = self.prepare(self.golden_route(), self._task.golden()[-1], False)
        if isinstance(prepared, Job):  # a generation's first forward is the golden check's: each reads all weights
            self.forward(prepared.rows)

    def calibrate(self, passes: Sequence[Pass]) -> None:
        """See Backend, and `engine.calibration`."""
        limits = {name: getattr(self._spec, name) for name in (MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS)}
        self._calibrated = [name for name, limit in limits.items() if limit is None]
        if MAX_NUM_BATCHED_TOKENS in self._calibrated:
            self.max_num_batched_tokens = self._token_budget(passes)
        texts = self._bound_texts() if isinstance(self._task, Generating) else None
        if MAX_NUM_SEQS in self._calibrated:
            self.max_num_seqs = texts or calibration.rows_for(self.max_num_batched_tokens)

    def card(self) -> Card:
        """See Backend."""
        spec = self._spec
        return Card(
            artifact=spec.artifact,
            engine="transformers",
            task=self._task.name,
            device=spec.device,
            dtype=str(self._dtype).removeprefix("torch."),
            threads=spec.threads,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            revision=self._artifact.revision,
            dimensions=self._task.dimensions,
            max_model_len=self._task.max_model_len,
            weights_digest=self._digest,
            reproducible=os.environ.get("MKL_CBWR"),
            deterministic=not isinstance(self._task, Generating),
            versions=_versions(),
            calibrated=self._calibrated,
            kv_cache_bytes=self._kv_cache_bytes,
            encoder=self._options.encoder,
            scoring=self._task.scoring,
        )

    @property
    def normalised(self) -> bool:
        """Whether the vectors have unit length, which the golden check then holds them to."""
        return self._task.normalised

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        """See Backend."""
        if route not in self._task.routes:
            does = ", ".join(route.name.lower() for route in self._task.routes)
            raise RequestError(f"this model answers {does}, not {route.name.lower()}", status=404)
        return self._task.prepare(route, body, stream)

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        """See Backend."""
        if not self._warm:
            self.warm()
        return self._task.forward(rows)

    def step(self, generations: Sequence[Generation]) -> None:
        """See Backend."""
        if not isinstance(self._task, Generating):
            raise NotImplementedError
        if not self._warm:
            self.warm()
        with torch.inference_mode():
            self._task.step(generations, self.max_num_batched_tokens)

    def release(self, generation: Generation) -> None:
        """See Backend."""
        if isinstance(self._task, Generating):
            self._task.release(generation)

    def golden(self) -> Sequence[bytes]:
        """See Backend: where answers are known, the requests that they are known of."""
        return [msgspec.json.encode(one.request) for one in self._known] or self._task.golden()

    def golden_answers(self) -> Sequence[bytes]:
        """See golden.Referenced."""
        return [msgspec.json.encode(one.answer) for one in self._known]

    def rehearsal(self) -> Sequence[bytes]:
        """See golden.Rehearsed."""
        return self._rehearsal if self._device.type == "cpu" else []

    def golden_route(self) -> Route:
        """See Backend."""
        return min(self._task.routes)

    def gpu_bytes(self) -> int:
        """See Backend: what torch's allocator holds."""
        return torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0

    def _load_task(self, name: str, checkpoint: Checkpoint) -> Task:
        """As `load_task`; a model that cannot be read without its own code says what to do about it."""
        try:
            return load_task(name, checkpoint)
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise LoadError(
                f"{self._spec.artifact}: this model needs Python code of its own, which is not run unasked; "
                "read that code, then set engine_args.trust_remote_code: true",
                final=True,
            ) from error

    def _read_known(self) -> None:
        """The known answers as they are now: a replica that is forked later must not be held to a file of before."""
        file = reference.find(self._artifact.path, self._options.golden)
        self._known = () if file is None else reference.read(file)

    def _rehearse(self) -> list[bytes]:
        """The golden answers, on the one thread that loads: a fork of it then computes them once instead of twice."""
        answers = []
        for body in self.golden():
            try:
                generation = self._task.prepare(self.golden_route(), body, False)
            except RequestError as error:
                raise LoadError(f"golden check: {error}", final=True) from error
            assert isinstance(generation, Generation) and isinstance(self._task, Generating)
            while not generation.done:
                self._task.step([generation], self.max_num_batched_tokens)
                if generation.error is not None:
                    raise LoadError(f"golden check: {generation.error}", final=True)
            answers.append(generation.answer())
            self._task.release(generation)
        return answers

    def _token_budget(self, passes: Sequence[Pass]) -> int:
        """On a CPU what can be computed in time, on a GPU what fits its memory."""
        free = self._free() if self._device.type == "cuda" else None
        if free is not None:
            room = int(free * calibration.FORWARD_SHARE)

            def fits(tokens: int) -> bool:
                peak = self._peak(tokens)
                return peak is not None and peak <= room

            return calibration.largest_that_fits(fits, LEAST_GPU_TOKENS, calibration.MOST_GPU_TOKENS)
        writes = isinstance(self._task, Generating)
        bound = calibration.WRITING_BOUND_S if writes else calibration.READING_BOUND_S
        measured = self._reading if writes else passes
        threads = max(1, self._spec.threads)
        return calibration.tokens_in_time(measured, threads, bound) or self.max_num_batched_tokens

    def _bound_texts(self) -> int | None:
        """Bound the memory of the texts that are being written; how many of them may be at once, None for no bound."""
        assert isinstance(self._task, Generating)
        on_gpu = self._device.type == "cuda"
        self._kv_cache_bytes = self._options.kv_cache_bytes or self._memory_for_texts()
        if self._kv_cache_bytes is None:
            return None
        most = calibration.MOST_GPU_TEXTS if on_gpu else calibration.MOST_CPU_TEXTS
        return calibration.texts_for(self._task.bound(self._kv_cache_bytes), most)

    def _memory_for_texts(self) -> int | None:
        """A share of what is free, on a GPU without what a forward needs; None where nothing says what is free."""
        free, tokens = self._free(), self.max_num_batched_tokens
        if free is None:
            return None
        if self._device.type != "cuda":
            return int(free * calibration.CPU_CACHE_SHARE)
        forward = self._peak(tokens)
        if forward is None:
            raise LoadError(
                f"a forward of {tokens} tokens does not fit the {free >> 20} MiB that are free on {self._spec.device}; "
                "set a smaller max_num_batched_tokens, or use another card"
            )
        return max(0, int(free * calibration.GPU_CACHE_SHARE) - forward)

    def _free(self) -> int | None:
        """This replica's part of its device's free memory, in bytes."""
        free = meter_of(self._device).free_bytes()
        return None if free is None else free // max(1, self._spec.sharing)

    def _peak(self, tokens: int) -> int | None:
        """Memory that a forward of so many tokens needs for a moment, in bytes; None where it does not fit."""
        return meter_of(self._device).peak_bytes(lambda: self._try(tokens))

    def _timed(self, tokens: int) -> Pass:
        before = time.process_time()
        self._try(tokens)
        return Pass(tokens, time.process_time() - before)

    def _try(self, tokens: int) -> None:
        """A forward of about so many tokens, in rows as long as the model reads them."""
        longest = max(1, min(self._task.max_model_len - 1, tokens))
        count = max(1, tokens // longest)
        with torch.inference_mode():
            if not isinstance(self._task, Generating):
                self._task.forward([self._long_row(longest)] * count)
                return
            body = msgspec.json.encode({"prompt": [0] * longest, "max_tokens": 1, "temperature": 0})
            texts = [self._task.prepare(Route.COMPLETIONS, body, False) for _ in range(count)]
            generations = [text for text in texts if isinstance(text, Generation)]
            self._task.step(generations, tokens)
            for generation in generations:
                self._task.release(generation)

    def _long_row(self, tokens: int) -> Row:
        """A row of that length, or the longest that the model reads."""
        text = "time " * tokens
        route = self.golden_route()
        body = {"query": "time", "documents": [text]} if route is Route.RERANK else {"input": [text]}
        job = self._task.prepare(route, msgspec.json.encode(body), False)
        assert isinstance(job, Job)
        return job.rows[-1]

    def _set_limits(self) -> None:
        seqs, tokens = (CPU_SEQS, CPU_TOKENS) if self._device.type == "cpu" else (GPU_SEQS, GPU_TOKENS)
        self.max_num_seqs = self._spec.max_num_seqs or seqs
        self.max_num_batched_tokens = self._spec.max_num_batched_tokens or tokens


def _device(spec: LaunchSpec) -> torch.device:
    """Where to compute. A GPU replica sees only its own card, so inside it is number 0 (spec 4)."""
    kind = "cpu" if spec.simulated else spec.device.partition(":")[0]
    match kind:
        case "cpu":
            return torch.device("cpu")
        case "cuda" | "rocm":
            return torch.device("cuda", 0)
        case "mps":
            return torch.device("mps")
    raise LoadError(f"device: expected cpu, cuda:N, rocm:N or mps, found {spec.device}", final=True)


def _dtype(wanted: str, device: torch.device, folder: Path) -> torch.dtype:
    """`auto`: float32 on a CPU; elsewhere what the checkpoint says it is stored as."""
    if wanted == "auto":
        has_config = device.type != "cpu" and (folder / "config.json").exists()  # a GGUF file has none
        config = read_json(folder / "config.json") if has_config else {}
        wanted = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if wanted not in _DTYPES:
        raise LoadError(f"dtype: expected auto or one of {', '.join(_DTYPES)}, found {wanted}", final=True)
    return _DTYPES[wanted]


def _versions() -> dict[str, str]:
    """Versions of what computes; transformers only where it was imported."""
    names = ("torch", "tokenizers", "transformers")
    return {name: version(name) for name in names if name in sys.modules}
