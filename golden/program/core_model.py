"""Golden model of a core: executes a program on an LXE with the DRE beside it (V-Rex Fig. 10).

STORE sends hash bits and score codes to the DRE; RETRIEVE takes its results.
"""

from collections import deque

import numpy as np

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import ADDR_BITS, LxeFormat, Retrieve, Status
from openvrex.golden.program.lxe_model import Lxe, Memory
from openvrex.golden.program.regions import Allow
from openvrex.golden.program.sequencer_model import Issue
from openvrex.golden.retrieval import kv4
from openvrex.golden.retrieval.clustering import Joined
from openvrex.golden.retrieval.dre_model import DreModel
from openvrex.golden.retrieval.kvmap import Burst, Move, Placed


class Core(Lxe):
    """An LXE that sends HASH and SCORE words to `dre`, and whose RETRIEVEs take the results in order.

    `memory` holds device memory and offload memory; `dre.kv` says where rings and blocks lie.

    joined, placed, sets : results that no RETRIEVE has taken yet: of the HCU with the number of clusters of its
        context, places of the KVMU, bursts of each cluster set
    """

    def __init__(self, fmt: LxeFormat, memory: Memory, dre: DreModel):
        super().__init__(fmt, memory)
        self.dre = dre
        self.joined: deque[tuple[int, Joined]] = deque()
        self.placed: deque[Placed] = deque()
        self.sets: deque[list[Burst]] = deque()
        self._first = 0  # first cluster that keys of the batch look at
        self._rows: list[np.ndarray] = []  # rows of the query block that is not complete yet
        self._parts: list[np.ndarray] = []  # the row that is not complete yet
        self._read: list[tuple[np.ndarray, bool]] = []  # the readings of a row that was not offered often enough

    def hash(self, i: Issue, signs: np.ndarray, row: int) -> None:
        """Send a token's hash bits to the HCU, and its cluster to the KVMU."""
        ctx = self._context(i)
        n_hp = self.dre.params.n_hp
        if len(signs) < n_hp:
            raise i.error(f"sends {len(signs)} of {n_hp} hash bits: raise words", Status.RANGE)
        if row % self.dre.frame == 0:  # the HCU begins a batch
            self._first = self.dre.newest(ctx) if i["wide"] else 0
        joined, placed = self.dre.key(ctx, sum(1 << b for b in np.flatnonzero(signs[:n_hp]).tolist()), self._first)
        self.joined.append((self.dre.level(ctx), joined))
        self.placed.append(placed)

    def score(self, i: Issue, codes: np.ndarray, last: bool, more: bool) -> None:
        """Send a row of score codes to the WTU, or with `more` a part of it.

        The program sends each row `dre.readings` times. After the last row of a query block the DRE knows its bursts.
        """
        dre = self.dre
        self._parts.append(codes.astype(np.int64))
        if more:
            return
        codes, self._parts = np.concatenate(self._parts), []
        if len(codes) != len(dre.counts):
            reason = (
                f"but context {dre.ctx} had {len(dre.counts)} clusters at the last SWITCH: let a SWITCH stand before"
            )
            raise i.error(f"sends a row of {len(codes)} score codes, {reason}", Status.LENGTH)
        if self._read and not (np.array_equal(self._read[0][0], codes) and self._read[0][1] == last):
            raise i.error(
                f"sends another row, but the WTU has read the one before {len(self._read)} times: send it again"
            )
        self._read.append((codes, last))
        if len(self._read) < dre.readings:
            return
        self._rows.append(codes)
        self._read = []
        if last:
            try:
                query = dre.query(np.stack(self._rows))
            except ParamError as e:
                raise i.error(str(e)) from None
            self.sets.append(query.bursts)
            self._rows = []

    def retrieve(self, i: Issue) -> int:
        """Execute a RETRIEVE: copy entries and set registers; returns the number of copied entries."""
        match i["action"]:
            case Retrieve.CLUSTER:
                return self._cluster(i)
            case Retrieve.PLACE:
                return self._place(i)
            case Retrieve.FETCH:
                return self._fetch(i)
        if i["action"] == Retrieve.BUDGET and not self.dre.budgets:
            raise i.error("is BUDGET, but this core's WTU has no budgets: set wtu.budget=true", Status.RANGE)
        ctx = self._context(i)
        if self.joined or self.placed:
            reason = "waits behind tokens whose cluster or place was not taken: let CLUSTER and PLACE stand before"
            raise i.error(reason, Status.DEADLOCK)
        if i["action"] != Retrieve.CLEAR:
            self._set(i["level"], self.dre.switch(ctx, i["rows"] if i["action"] == Retrieve.BUDGET else 0))
        else:
            self._set(i["level"], self.dre.level(ctx))
            for block in self.dre.clear(ctx):
                self.write(block.dst, np.zeros(block.bytes, np.uint8), np.ones(block.bytes, bool), Allow.ENTRY_WRITE)
        return 0

    def _cluster(self, i: Issue) -> int:
        if not self.joined:
            raise i.error(
                "asks for the cluster of a token, but no token is hashed: let a STORE with target HASH stand before",
                Status.DEADLOCK,
            )
        level, joined = self.joined.popleft()
        self._set(i["to"], i.addr + (joined.cluster << i["shift"]))
        self._set(i["level"], level)
        return 0

    def _place(self, i: Issue) -> int:
        size = self.dre.kv.entry_bytes
        for k in range(i["rows"]):
            if not self.placed:
                raise i.error(
                    "places an entry, but no hashed token is left without its entry: lower rows", Status.DEADLOCK
                )
            placed = self.placed.popleft()
            if not placed.ok:
                kv = self.dre.kv
                none = f"the map has no free block among {kv.blocks}: raise blocks"
                spent = f"its context holds its quota of {kv.quota} blocks: raise quota, or clear the context"
                raise i.error(spent if kv.quota and kv.free else none, Status.FULL)
            if placed.move:
                self._move(placed.move)
            self._copy(i.addr + k * size, placed.device, size, read=self._named(Allow.LOAD))
        return i["rows"]

    def _fetch(self, i: Issue) -> int:
        if not self.sets:
            raise i.error(
                "fetches a cluster set, but none is chosen: let a STORE with target SCORE stand before", Status.DEADLOCK
            )
        at, bursts = i.addr, self.sets.popleft()
        entries = sum(burst.bytes for burst in bursts) // self.dre.kv.home_bytes
        if entries > i["rows"]:
            reason = f"fetches {entries} entries, but there is room for {i['rows']}: make more room behind the ring"
            raise i.error(reason, Status.FULL)
        kept = []
        for burst in bursts:
            size = self._bring(burst, at)
            kept += [] if burst.keep is None else [(at, burst.keep, size)]
            at += size
        for copy in kept:
            self._copy(*copy, read=self._named(Allow.LOAD))
        self._set(i["to"], entries)
        self._set(i["level"], entries << i["shift"])
        return entries

    def _move(self, move: Move) -> None:
        """Send an entry home, packed if homes are."""
        group = self.dre.kv.sizes.kv4_group
        if group:
            data, known = self.read(move.src, 1, move.bytes, 0, Allow.ENTRY_READ)
            packed = kv4.pack(data[0].view(np.uint16), group)
            whole = known[0].reshape(-1, 2 * group).all(axis=1)  # a group with an unknown byte is unknown
            self.write(move.dst, packed, whole.repeat(group // 2), Allow.ENTRY_WRITE)
        else:
            self._copy(move.src, move.dst, move.bytes)

    def _bring(self, burst: Burst, at: int) -> int:
        """Copy a burst of entries to the device, expanded if homes are packed; returns the bytes written there."""
        group = self.dre.kv.sizes.kv4_group
        if burst.near or not group:
            size = burst.bytes * (kv4.RATIO if group else 1)
            self._copy(burst.addr, at, size, write=self._named(Allow.STORE))
            return size
        data, known = self.read(burst.addr, 1, burst.bytes, 0, Allow.ENTRY_READ)
        numbers = kv4.expand(data[0], group).view(np.uint8)
        whole = known[0].reshape(-1, group // 2).all(axis=1)
        self.write(at, numbers, whole.repeat(2 * group), self._named(Allow.STORE))
        return len(numbers)

    def _copy(
        self, src: int, dst: int, size: int, read: Allow = Allow.ENTRY_READ, write: Allow = Allow.ENTRY_WRITE
    ) -> None:
        data, known = self.read(src, 1, size, 0, read)
        self.write(dst, data[0], known[0], write)

    def _named(self, program: Allow) -> Allow:
        """What a region must allow where the program names the address: `program`, if users share."""
        if self.dre.kv.sizes.shared:
            return program
        return Allow.ENTRY_READ if program == Allow.LOAD else Allow.ENTRY_WRITE

    def _set(self, register: int, value: int) -> None:
        if register:
            self.registers[register] = value % (1 << ADDR_BITS)

    def _context(self, i: Issue) -> int:
        if not self.dre.first <= i.addr < self.dre.kv.n_ctx:
            last = self.dre.kv.n_ctx - 1
            raise i.error(
                f"names context {i.addr}: must be {self.dre.first} to {last}, which have tables", Status.RANGE
            )
        return i.addr
