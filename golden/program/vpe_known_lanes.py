"""Tracks which lanes of a VPE hold defined numbers, to catch programs that use a number nobody has written.

`Known` runs beside `golden.arithmetic.vector.Machine`, which computes the numbers themselves.
"""

import numpy as np
from openvrex.golden.arithmetic.vector import (
    FOREVER,
    SCALARS,
    Format,
    Instruction,
    Op,
    Reduce,
    Source,
    Swap,
    VectorFormat,
)
from openvrex.golden.program.sequencer_model import Issue


class Known:
    """Marks of the defined numbers in the banks and scalars of a VPE.

    banks : bool [3, depth, n], True where a number is defined; all False at first
    scalars : bool [16], all True at first, as the scalars start at zero

    A result is defined where all its operands are. `run` raises `LxeError` for an operand word without any defined
    number, and for an undefined number that is reduced or stored within `keep`.
    """

    def __init__(self, fmt: VectorFormat):
        self.fmt = fmt
        self.banks = np.zeros((3, fmt.depth, fmt.n), bool)
        self.scalars = np.ones(SCALARS, bool)

    def run(self, i: Issue, v: Instruction, came: np.ndarray | None) -> np.ndarray | None:
        """Follow one instruction.

        came : marks of the stream's words, bool [words, n]; None if the instruction takes none

        Returns the marks of the words that a STORE puts out, bool [words, n]; None for other instructions.
        """
        if v.op == Op.STORE:
            return self._store(i, v)
        count = v.words + 1
        reads: list[tuple[int, np.ndarray]] = []  # bank, words
        whole = came is None or bool(came.all())
        uses = (v.a, v.b, v.c) if v.op == Op.FMA else (v.a, None, v.c)
        for bank, (name, source) in enumerate(zip("abc", uses, strict=True)):
            if source == Source.BANK:
                at = self._words(getattr(v, f"addr_{name}"), getattr(v, f"span_{name}"), count)
                if bank == 1 and v.swap > Swap.HALF:
                    at = (at ^ 1 << v.swap - 3) & self.fmt.depth - 1
                reads.append((bank, at))
                whole &= bool(self.banks[bank, at].all())
            elif source == Source.SCALAR and not self.scalars[getattr(v, f"scalar_{name}")]:
                whole = False
        to = (v.addr_d + np.arange(count)) & self.fmt.depth - 1
        into = [bank for bank in range(3) if v.write >> bank & 1]
        if whole:
            self.banks[np.array(into, int)[:, None], to] = True
            if v.reduce:
                self.scalars[v.scalar_d] = True
            return None
        self._lanes(i, v, came, uses, reads, to, into)
        return None

    def _lanes(
        self,
        i: Issue,
        v: Instruction,
        came: np.ndarray | None,
        uses: tuple[int | None, ...],
        reads: list[tuple[int, np.ndarray]],
        to: np.ndarray,
        into: list[int],
    ) -> None:
        """Follow an instruction with undefined operands; each word sees what the words before it have written."""
        n = self.fmt.n
        scalars = all(
            self.scalars[getattr(v, f"scalar_{name}")]
            for name, source in zip("abc", uses, strict=True)
            if source == Source.SCALAR
        )
        apart: dict[int, int] = {Swap.NEIGHBOUR: 1, Swap.HALF: n // 2}
        swap = np.arange(n) ^ min(apart.get(v.swap, 0), n - 1)
        kept = True
        for k, d in enumerate(to):
            known = np.full(n, scalars)
            if came is not None:
                known &= came[k]
            for bank, at in reads:
                word = self.banks[bank, at[k]]
                if not word.any():
                    raise i.error(f"reads word {at[k]} of bank {'ABC'[bank]}, which was never written")
                known &= word[swap] if bank == 1 else word
            self.banks[into, d] = known
            last = k == len(to) - 1
            if v.reduce == Reduce.LAST:
                kept = bool(known[0])
            elif v.reduce and not (v.code and self.fmt.is_function(v.post)):
                bad = np.flatnonzero(~known[: v.keep + 1 if last else n])
                if len(bad):
                    raise i.error(f"reduces lane {bad[0]} of its word {k}, which depends on a number never written")
        if v.reduce:
            self.scalars[v.scalar_d] = kept

    def _store(self, i: Issue, v: Instruction) -> np.ndarray:
        bank = 2 if v.format == Format.WIDE else 1
        at = self._words(v.addr_c if bank == 2 else v.addr_b, FOREVER, v.words + 1)
        known = self.banks[bank, at]
        must = np.ones(known.shape, bool)
        must[-1, v.keep + 1 :] = False
        bad = np.argwhere(must & ~known)
        if len(bad):
            k, lane = bad[0]
            why = "was never written" if not known[k].any() else "depends on a number never written"
            raise i.error(f"stores lane {lane} of bank {'ABC'[bank]} word {at[k]}, which {why}")
        return known

    def _words(self, addr: int, span: int, count: int) -> np.ndarray:
        return (addr + (np.arange(count) & (1 << span) - 1)) & self.fmt.depth - 1
