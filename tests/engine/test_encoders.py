"""Linear layers packed by MKL: the numbers of plain ones, for any number of tokens, and back again to the bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from engine.backends import encoders
from engine.backends.encoders import _Linear, _PackedLinear, can_pack

SIZES = [(384, 384), (384, 1152), (384, 1536), (1536, 384), (312, 1200), (33, 17)]

BITS = """
import torch
from engine.backends.encoders import _Linear, _PackedLinear

torch.manual_seed(0)
for inputs, outputs in ((384, 384), (384, 1536), (1536, 384)):
    bias, weight = torch.randn(outputs), torch.randn(outputs, inputs)
    packed, plain = _PackedLinear.of(bias, weight), _Linear.of(bias, weight)
    for tokens in (1, 8, 37, 256, 512):
        x = torch.randn(tokens, inputs)
        torch.set_num_threads(1)
        expected = plain(x)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            print(torch.equal(packed(x), expected))
"""


@pytest.fixture
def packing() -> None:
    if not can_pack():  # another BLAS, or no x86: what holds there is the next best layer, tested below
        pytest.skip("this torch packs no weights with MKL")


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_a_packed_layer_computes_what_a_plain_one_does_for_any_number_of_tokens(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    bias, weight = torch.randn(outputs), torch.randn(outputs, inputs)
    packed = _PackedLinear.of(bias, weight)
    for tokens in (*range(1, 35), 64, 100, 255, 256, 257, 1024):
        x = torch.randn(tokens, inputs)
        expected = functional.linear(x.double(), weight.double(), bias.double())
        assert (packed(x) - expected).abs().max() < 1e-3


@pytest.mark.usefixtures("packing")
def test_a_packed_weight_can_be_had_back_to_the_bit() -> None:
    """A template may have packed it before the replica became a GPU's."""
    bias, weight = torch.randn(1152), torch.randn(1152, 384)
    moved = _PackedLinear.of(bias, weight).to(torch.device("cpu"))
    assert isinstance(moved, _Linear)
    assert torch.equal(moved.weight, weight.t())
    assert torch.equal(moved.bias, bias)


@pytest.mark.usefixtures("packing")
def test_a_packed_layer_has_the_bits_of_a_plain_one_at_any_thread_count() -> None:
    flags = torch.backends.cpu.get_cpu_capability()
    if flags not in ("AVX512", "AVX2"):
        pytest.skip(f"MKL has no strict mode for {flags}")
    environ = {"MKL_CBWR": f"{flags},STRICT", "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", BITS], capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.split() == ["True"] * 45, done.stderr


def test_where_weights_cannot_be_packed_layers_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators outside torch's public interface: one that is gone, or computes something else, is not used."""
    monkeypatch.setattr(_PackedLinear, "of", lambda bias, weight: wrong)
    assert not can_pack()
    assert encoders._product_of(torch.float32) == _Linear.of
    assert encoders._product_of(torch.bfloat16) == _Linear.of


def wrong(x: torch.Tensor) -> torch.Tensor:
    """A product that forgets all rows but the first."""
    return torch.zeros(x.shape[0], 96)
