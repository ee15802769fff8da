"""The matrices that code keys and turn queries, of each layer and KV head: derived from a text, kept in a file.

A key, less its mean, is coded in the basis in which few numbers say most of what queries ask. Let C be the covariance
of such keys, and Q the second moment of the queries that look back far. With A = Q^(w / 2), the eigenvectors U of A C A
that have the largest eigenvalues are that basis: a number of the code is u' A (key - mean), scaled to variance 1, and a
query's part of it is its product with A^-1 u, scaled back. The weight w says how much the queries count, 0 to 1.

Source: this project. Principal parts of keys are known from Loki, codes that weigh queries from A2ATS.
"""

import json
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.atomic_files import replacing
from openvrex.golden.function_params import ParamError, check

HERE = Path(__file__).parent
MEND = "make it with 'vrex papers calibrate'"
FAR = 512  # tokens that a query must have before it to count


@dataclass(frozen=True)
class KeyMatrices:
    """Matrices of one layer, BF16 [kv_heads, numbers, head_size] each.

    code : a key's numbers are its products with these rows
    query : a query's parts of the numbers; they hold attention's scale, 1 / sqrt(head_size), and the value of
    the number 1 of a code at gain 2^0
    """

    code: np.ndarray
    query: np.ndarray


def plain(kv_heads: int, numbers: int, size: int, one: float) -> KeyMatrices:
    """Matrices that know no model: `numbers` rows of a Hadamard matrix of the next power of two, scaled to length 1.

    one : value of the number 1 of a code at gain 2^0
    """
    matrix = np.ones((1, 1))
    while len(matrix) < max(size, numbers):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    rows = matrix[np.random.default_rng(2025).permutation(len(matrix))[:numbers], :size] / sqrt(size)
    own = np.broadcast_to(rows, (kv_heads, numbers, size))
    return KeyMatrices(to_bf16(own), to_bf16(own * (one / sqrt(size))))


class Moments:
    """Sums of one layer: second moments of queries and of keys less their means, float64 [kv_heads, size, size]."""

    def __init__(self, kv_heads: int, size: int):
        self.queries, self.keys = (np.zeros((kv_heads, size, size)) for _ in range(2))
        self.rows = self.tokens = 0

    def add_queries(self, q: np.ndarray) -> None:
        """Add queries [T, heads, size] of tokens that have `FAR` tokens before them."""
        rows = q.astype(np.float64).reshape(len(q), len(self.queries), q.shape[1] // len(self.queries), q.shape[2])
        self.queries += np.einsum("tgrd,tgre->gde", rows, rows, optimize=True)
        self.rows += rows.shape[0] * rows.shape[2]

    def add_keys(self, rest: np.ndarray) -> None:
        """Add keys less their mean [T, kv_heads, size]."""
        keys = rest.astype(np.float64)
        self.keys += np.einsum("tgd,tge->gde", keys, keys, optimize=True)
        self.tokens += len(keys)

    def matrices(self, numbers: int, weight: float, one: float) -> KeyMatrices:
        """The matrices for codes of so many numbers.

        weight : of the queries, 0 to 1 · one : value of the number 1 of a code at gain 2^0

        Raises `ParamError` for moments of no query or of no key.
        """
        kv_heads, size = self.keys.shape[:2]
        check(self.rows > 0, "rows", self.rows, f"no query has {FAR} tokens before it: take a longer text")
        check(self.tokens > 0, "tokens", self.tokens, "no key has a mean: take a longer text")
        e, u = np.linalg.eigh(self.queries / self.rows)
        e = np.maximum(e, 1e-9 * e.max(axis=1, keepdims=True))
        to, back = ((u * e[:, None] ** power) @ u.swapaxes(1, 2) for power in (weight / 2, -weight / 2))
        spread, basis = np.linalg.eigh(to @ (self.keys / self.tokens) @ to)
        basis, spread = basis[:, :, ::-1][:, :, :numbers], np.maximum(spread[:, ::-1][:, :numbers], 1e-12)
        length = np.sqrt(spread)[:, :, None]
        code, query = (to @ basis).swapaxes(1, 2) / length, (back @ basis).swapaxes(1, 2) * length
        return KeyMatrices(to_bf16(code), to_bf16(query * (one / sqrt(size))))


def save(path: Path, layers: list[KeyMatrices], provenance: dict[str, Any]) -> None:
    """Write the matrices of all layers, with where they come from: at least the name of the `model`."""
    arrays = {
        name: np.stack([getattr(m, name).view(np.uint16) for m in layers]) for name in ("code", "query")
    }  # BF16 as its bits: NumPy's files know no BF16
    with replacing(path) as file:
        np.savez_compressed(file, **arrays, provenance=np.array(json.dumps(provenance)))  # type: ignore[arg-type]


def kept(model: str) -> Path | None:
    """The file of this folder with the matrices of a model, if there is one."""
    file = HERE / f"{model}.npz"
    return file if model and file.exists() else None


def load(path: Path, layers: int, kv_heads: int, numbers: int, size: int, model: str = "") -> list[KeyMatrices]:
    """The matrices of a file of `save`: of its numbers the first ones, which matter most.

    Raises `ParamError` if it is not such a file, or not one for this model and code.

    model : name of the decoder, whose first `layers` layers are read; empty where it is not known, and then all sizes
    must be equal
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            code, query = (file[name] for name in ("code", "query"))
            own = json.loads(str(file["provenance"]))["model"]
    except (OSError, EOFError, TypeError, ValueError, KeyError, BadZipFile) as e:
        raise ParamError(f"matrices={str(path)!r}: not a file of 'vrex papers calibrate': {e}") from None
    check(not model or own == model, "matrices", str(path), f"is of {own}, not of {model}: {MEND}")
    want = layers, kv_heads, numbers, size
    for a in (code, query):
        ok = a.ndim == 4 and a.shape[2] >= numbers and (a.shape[0] >= layers if model else a.shape[0] == layers)
        enough = ok and (layers, a.shape[1], numbers, a.shape[3]) == want
        fits, finite = enough and a.dtype == np.uint16, (a & 0x7F80 != 0x7F80).all()
        what = "layers, KV heads, numbers, numbers of a head"
        mend = f"{MEND[:-1]} --numbers {numbers}'"
        check(fits, "matrices", str(path), f"is for {list(a.shape)} {what}, not {list(want)}: {mend}")
        check(bool(finite), "matrices", str(path), f"holds infinity or NaN: {MEND}")
    code, query = (a[:layers, :, :numbers].view(BF16) for a in (code, query))
    return [KeyMatrices(c, q) for c, q in zip(code, query, strict=True)]
