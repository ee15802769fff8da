"""Holds what a core with coded pages chooses and fetches against `golden.retrieval.coded_pages`, bit for bit."""

from collections import Counter

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import fma
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.model_host import ModelHost, ModelStep
from openvrex.golden.retrieval.coded_pages import CodedKeys, PageParams, resident_sum
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.golden.retrieval.scores import scores

Where = tuple[int, int, int]  # layer, KV head, stream


class PageWatch:
    """Follows the stream of a host, step by step: keys and queries are those of the core, all else is defined anew.

    events : attentions that fetched, pages fetched whole and in part, those of sinks, pages at home that stayed there,
        means completed
    """

    def __init__(self, host: ModelHost, params: PageParams):
        self.host, self.params = host, params
        self.keys: dict[Where, CodedKeys] = {}
        self.entries: dict[Where, np.ndarray] = {}
        self.events: Counter[str] = Counter()

    def take(self, step: ModelStep) -> list[str]:
        """What differs after a step that has been run: scores of pages, and entries behind the ring."""
        if step.layer is None or step.phase != "attention":
            return []
        system, where = self.host.running(step), (step.layer, step.group, step.stream)
        plan, own = system.plans[0][step.layer], self._append(step)
        s = plan.shape

        def get(name: str) -> np.ndarray:
            return system.get(0, name, *where)

        q = get("q").reshape(s.tokens, s.group, s.head_size)
        near = scores(q, get("ring")[:, : s.head_size], 1, plan.fmt.dot).reshape(s.rows, s.recent)
        logits = fma(near, to_bf16(np.full(near.shape, plan.scale)), np.full(near.shape, -0.0, np.float32))
        sums = resident_sum(logits, np.repeat(plan.seen(step.start), s.group, axis=0), plan.fmt.lanes)
        sums = sums.reshape(s.tokens, s.group)
        out, name = [], f"pass {step.number}, layer {step.layer}, KV head {step.group}"
        old = max(0, own.length - self.params.recent)
        ranks = own.page_scores(q, sums)[0, : -(-old // self.params.page)]
        if not np.array_equal(get("ranks")[0, : len(ranks)].view(np.uint32), ranks.view(np.uint32)):
            out.append(f"{name}: scores of pages")
        want = own.choose(q, sums)[0]
        count = self.host.system.cores[0].registers[Register.ENTRIES]
        found = get("behind")[:count]
        if not np.array_equal(found.view(np.uint16), self.entries[where][want].view(np.uint16)):
            out.append(f"{name}: entries fetched")
        self._count(want, old)
        return out

    def told(self) -> dict[str, int]:
        """The events, as a report names them."""
        names = {
            "means completed, and their keys coded": "means",
            "pages fetched whole": "whole pages",
            "pages fetched in part": "parts of pages",
            "pages of sinks fetched": "pages of sinks",
            "pages left out": "left out",
        }
        out = {text: int(self.events[name]) for text, name in names.items()}
        kv = self.host.system.cores[0].dre.kv
        if kv.sizes.kept:
            out |= {"blocks found in device memory": kv.events["found"], "blocks kept there": kv.events["kept"]}
            out["of them given up"] = kv.events["given up"]
        return out

    def _append(self, step: ModelStep) -> CodedKeys:
        """Take the entries of the pass from the ring."""
        assert step.layer is not None
        system, where = self.host.running(step), (step.layer, step.group, step.stream)
        plan = system.plans[0][step.layer]
        s, group = plan.shape, slice(step.group, step.group + 1)
        if where not in self.keys:
            matrices = self.host.weights.matrices[step.layer]
            assert isinstance(matrices, KeyMatrices)
            own = KeyMatrices(matrices.code[group], matrices.query[group])
            self.keys[where] = CodedKeys(self.params, own, plan.fmt.dot)
            self.entries[where] = np.zeros((0, s.entry), BF16)
        own, slots = self.keys[where], (step.start + np.arange(s.tokens)) % s.recent
        new = system.get(0, "ring", *where)[slots]
        self.entries[where] = np.concatenate([self.entries[where], new])
        self.events["means"] -= own.means.shape[1]
        own.append(new[:, : s.head_size].reshape(-1, 1, s.head_size))
        self.events["means"] += own.means.shape[1]
        return own

    def _count(self, want: np.ndarray, old: int) -> None:
        page, events = self.params.page, self.events
        pages = np.add.reduceat(want, np.arange(0, len(want), page))
        events["fetches"] += bool(want.any())
        events["whole pages"] += np.count_nonzero(pages == page)
        events["parts of pages"] += np.count_nonzero((pages > 0) & (pages < page))
        events["left out"] += -(-old // page) - np.count_nonzero(pages)
        events["pages of sinks"] += np.count_nonzero(pages[: self.params.pinned])
