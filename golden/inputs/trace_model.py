"""What a trace says of its model beside queries, keys and values: how keys are turned, and the norms' constant."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

PAIRS = "halves"  # numbers i and i + head size / 2 of a head turn together
ORDER = "grouped"  # query head h reads KV head h // (query heads / KV heads)


@dataclass(frozen=True)
class Model:
    """Constants of the decoder that a trace was recorded with.

    A policy that moves stored keys to other positions turns them by `turns`; the base alone does not say how, as most
    long-context models scale their frequencies.
    """

    epsilon: float  # of the RMS norms
    rotary_base: float
    frequencies: tuple[float, ...] | None  # radians a position, [head size / 2]; None: positions are not token numbers
    turned: tuple[bool, ...]  # of each recorded layer, whether it turns its queries and keys at all
    scaling: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})  # as the model's configuration

    @property
    def turns(self) -> tuple[tuple[float, ...], ...] | None:
        """Frequencies of each recorded layer, 0 in one that turns nothing."""
        if self.frequencies is None:
            return None
        return tuple(self.frequencies if on else (0.0,) * len(self.frequencies) for on in self.turned)

    def header(self, heads: int, kv_heads: int, head_size: int) -> dict[str, Any]:
        """What a trace's file holds of it."""
        rotary = {"base": self.rotary_base, "scaling": self.scaling, "pairs": PAIRS, "turned": list(self.turned)}
        rotary["frequencies"] = None if self.frequencies is None else list(self.frequencies)
        return {
            "heads": {"query": heads, "kv": kv_heads, "size": head_size, "order": ORDER},
            "rotary": rotary,
            "norm": {"kind": "rms", "epsilon": self.epsilon},
        }

    @classmethod
    def read(cls, header: dict[str, Any], heads: int, kv_heads: int, head_size: int) -> "Model":
        """The model of `header`; `ValueError` for another layout, or numbers that do not fit the tensors."""
        rotary, turns = header["rotary"], header["rotary"]["frequencies"]
        model = cls(
            epsilon=float(header["norm"]["epsilon"]),
            rotary_base=float(rotary["base"]),
            frequencies=None if turns is None else tuple(map(float, turns)),
            turned=tuple(map(bool, rotary["turned"])),
            scaling=dict(rotary["scaling"]),
        )
        want = model.header(heads, kv_heads, head_size)
        for part in want:
            if header[part] != want[part]:
                raise ValueError(f"{part} is {header[part]}, not {want[part]}")
        return model


def frequencies(base: float, size: int) -> tuple[float, ...]:
    """Rotary frequencies without scaling, of a head of `size` numbers: base^(-2 i / size)."""
    return tuple((1.0 / base ** (np.arange(0, size, 2) / size)).tolist())
