"""Tracks which lanes of a VPE hold defined numbers, to catch programs that use a number nobody has written.

`Known` runs beside `golden.arithmetic.vector.Machine`, which computes the numbers themselves.
"""

import numpy as np

from openvrex.golden.arithmetic.vector import (
    SCALARS,
    Instruction,
    Op,
    Reduce,
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
        reads, to = v.places(self.fmt.depth), v.results(self.fmt.depth)
        scalars = all(self.scalars[register] for register in v.scalars)
        whole = scalars and (came is None or bool(came.all()))
        if whole and all(self.banks[bank, at].all() for bank, at in reads):
            self.banks[np.array(v.into, int)[:, None], to] = True
            if v.reduce:
                self.scalars[v.scalar_d] = True
            return None
        self._lanes(i, v, came, scalars, reads, to)
        return None

    def _lanes(
        self,
        i: Issue,
        v: Instruction,
        came: np.ndarray | None,
        scalars: bool,
        reads: list[tuple[int, np.ndarray]],
        to: np.ndarray,
    ) -> None:
        """Follow an instruction with undefined operands; each word sees what the words before it have written."""
        n, kept = self.fmt.n, True
        for k, d in enumerate(to):
            known = np.full(n, scalars)
            if came is not None:
                known &= came[k]
            for bank, at in reads:
                word = self.banks[bank, at[k]]
                if not word.any():
                    raise i.error(f"reads word {at[k]} of bank {'ABC'[bank]}, which was never written")
                known &= word[v.partners(n)] if bank == 1 else word
            self.banks[v.into, d] = known
            last = k == len(to) - 1
            if v.reduce == Reduce.LAST:
                kept = bool(known[0])
            elif v.reduce and not self.fmt.scores(v):
                bad = np.flatnonzero(~known[: v.keep + 1 if last else n])
                if len(bad):
                    raise i.error(f"reduces lane {bad[0]} of its word {k}, which depends on a number never written")
        if v.reduce:
            self.scalars[v.scalar_d] = kept

    def _store(self, i: Issue, v: Instruction) -> np.ndarray:
        bank, at = v.store_places(self.fmt.depth)
        known = self.banks[bank, at]
        must = np.ones(known.shape, bool)
        must[-1, v.keep + 1 :] = False
        bad = np.argwhere(must & ~known)
        if len(bad):
            k, lane = bad[0]
            why = "was never written" if not known[k].any() else "depends on a number never written"
            raise i.error(f"stores lane {lane} of bank {'ABC'[bank]} word {at[k]}, which {why}")
        return known
