"""The constants of the decoder that a trace was recorded with: the layout of its heads, rotary embedding and norms.

Whoever replays a trace needs them, for example to move stored keys to other positions.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

PAIRS = "halves"  # the rotary embedding turns numbers i and i + head size / 2 of a head as a pair
ORDER = "grouped"  # query head h reads KV head h // (query heads / KV heads)


@dataclass(frozen=True)
class Model:
    """Constants of the decoder that a trace was recorded with.

    A policy that moves stored keys to other positions turns them by `turns`. The rotary base alone is not enough for
    this, because most long-context models scale their frequencies.
    """

    epsilon: float  # constant of the RMS norms
    rotary_base: float
    # Radians per position, [head size / 2]. None if positions are not token numbers or no one set fits all keys.
    frequencies: tuple[float, ...] | None
    turned: tuple[bool, ...]  # for each recorded layer, whether it has a rotary embedding
    scaling: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})  # from the model's configuration

    @property
    def turns(self) -> tuple[tuple[float, ...], ...] | None:
        """Rotary frequencies of each recorded layer, zeros for a layer without rotary embedding; None if unknown."""
        if self.frequencies is None:
            return None
        return tuple(self.frequencies if on else (0.0,) * len(self.frequencies) for on in self.turned)

    def header(self, heads: int, kv_heads: int, head_size: int) -> dict[str, Any]:
        """The constants as a trace file stores them in its JSON header."""
        rotary = {"base": self.rotary_base, "scaling": self.scaling, "pairs": PAIRS, "turned": list(self.turned)}
        rotary["frequencies"] = None if self.frequencies is None else list(self.frequencies)
        return {
            "heads": {"query": heads, "kv": kv_heads, "size": head_size, "order": ORDER},
            "rotary": rotary,
            "norm": {"kind": "rms", "epsilon": self.epsilon},
        }

    @classmethod
    def read(cls, header: dict[str, Any], heads: int, kv_heads: int, head_size: int) -> "Model":
        """Read the constants from a trace's JSON header.

        Raises `ValueError` for another layout of the heads, for numbers that do not fit the tensors' shape, and for
        constants that are not finite.
        """
        rotary, turns = header["rotary"], header["rotary"]["frequencies"]
        model = cls(
            epsilon=float(header["norm"]["epsilon"]),
            rotary_base=float(rotary["base"]),
            frequencies=None if turns is None else tuple(map(float, turns)),
            turned=tuple(map(bool, rotary["turned"])),
            scaling=dict(rotary["scaling"]),
        )
        for name, values in (
            ("epsilon", [model.epsilon]),
            ("base", [model.rotary_base]),
            ("frequencies", model.frequencies or ()),
        ):
            if not np.isfinite(values).all():
                raise ValueError(f"{name} is not finite")
        want = model.header(heads, kv_heads, head_size)
        for part in want:
            if header[part] != want[part]:
                raise ValueError(f"{part} is {header[part]}, not {want[part]}")
        return model


def frequencies(base: float, size: int) -> tuple[float, ...]:
    """Unscaled rotary frequencies of a head of `size` numbers, [size / 2]: base^(-2 i / size) radians per position."""
    return tuple((1.0 / base ** (np.arange(0, size, 2) / size)).tolist())
