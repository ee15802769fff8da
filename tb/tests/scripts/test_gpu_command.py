"""`vrex simulate gpu` on a processor, its kernels beside plain PyTorch, and what it says without PyTorch."""

import json
import os
import sys

import pytest

from openvrex.sim.system.gpu_figures import read
from tb.tests.commands import refuses, vrex

HF = "needs PyTorch: make hf"


def test_a_platform_file_of_a_processor(tmp_path):
    """All fields, whole frames beside their prediction, and a pass that takes the file."""
    pytest.importorskip("torch", reason=HF)
    path = tmp_path / "gpu.json"
    done = vrex("simulate", "gpu", "--processor", "-o", str(path))
    assert "these figures describe no GPU" in done.stdout
    figures = read(path)
    assert set(figures.steps_ms) == {"resv", "pages"}
    kinds = {(f.policy, f.home_bits, f.given) for f in figures.frames}
    retrieved = {(*kind, known) for kind in (("resv", 16), ("pages", 16), ("pages", 4)) for known in (False, True)}
    assert kinds == {("resident", 16, False), *retrieved}
    assert not figures.fitted
    assert not figures.watts
    for policy in ("resident", "flexgen", "resv", "pages"):
        words = ["--policy", policy, "--platform", str(path), "--cache", "512", "--json"]
        done = vrex("simulate", "pass", *words)
        out = json.loads(done.stdout)
        assert out["seconds"] > 0
        assert out["joules"] is None  # no driver tells watts
        assert any("describe no GPU" in remark for remark in out["remarks"])


def test_a_file_of_another_kind_is_kept(tmp_path):
    """Before anything is measured; a platform file may be measured again."""
    path = tmp_path / "gpu.json"
    path.write_text('{"mine": 1}')
    done = refuses("simulate", "gpu", "--processor", "-o", str(path))
    assert "is a file that holds no platform file, and would be lost" in done.stderr
    assert path.read_text() == '{"mine": 1}'


def test_without_pytorch(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = refuses("simulate", "gpu", "-o", str(tmp_path / "gpu.json"))
    assert done.stderr.strip() == "error: vrex simulate gpu needs torch: pip install 'openvrex[gpu]'"
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def both():
    """The kernels in Triton, run by its interpreter, and in PyTorch."""
    torch = pytest.importorskip("torch", reason=HF)
    os.environ["TRITON_INTERPRET"] = "1"
    pytest.importorskip("triton", reason="needs Triton, which PyTorch brings for GPUs: pip install triton")
    from openvrex.scripts.simulate.gpu_kernels import TorchKernels
    from openvrex.scripts.simulate.gpu_triton import TritonKernels

    torch.manual_seed(1)
    return torch, (TorchKernels(), TritonKernels())


@pytest.mark.parametrize("words", [9, 144, 512, 2048])
def test_gathers_are_equal(both, words):
    torch, kernels = both
    source, index = torch.randint(-(2**62), 2**62, (50, words)), torch.randint(0, 50, (3, 7))
    found = []
    for k in kernels:
        found.append(torch.zeros(3, 5 + 7 * words, dtype=torch.int64))
        k.gather(source, found[-1], index, words, 5)
    assert torch.equal(*found)
    assert torch.equal(found[0][:, 5:].view(3, 7, words), source[index])


@pytest.mark.parametrize("most", [3, 12, 16])
def test_clusters_are_equal(both, most):
    """Few join at 3 bits, nearly all at 16."""
    torch, kernels = both
    bits = torch.randint(-(2**31), 2**31 - 1, (3, 40), dtype=torch.int32)
    found = []
    for k in kernels:
        table, used, sizes = (torch.zeros(*n, dtype=torch.int32) for n in ((3, 100), (3,), (3, 100)))
        k.cluster(bits, table, used, sizes, most)
        found.append((table, used, sizes))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert (found[0][2].sum(-1) == 40).all()


@pytest.mark.parametrize(("rows", "tokens"), [(40, 256), (10, 136), (1, 1024)])
def test_scores_are_equal(both, rows, tokens):
    """In FP32: the interpreter has no products of BF16."""
    torch, kernels = both
    queries, signs = torch.randn(3, rows, 64), torch.randint(-(2**62), 2**62, (3, tokens))
    found = []
    for k in kernels:
        found.append(torch.zeros(3, tokens // 8))
        k.score(queries, signs, found[-1])
    assert torch.allclose(*found, atol=1e-4)
