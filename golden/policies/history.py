"""Keys and values of a layer as they arrive."""

import numpy as np

from openvrex.golden.policies.blocks import Shape
from openvrex.golden.retrieval import kv4


class Growing:
    """An array of BF16 values, held in FP32, that grows along its middle axis: [lead, n, width].

    Growing costs constant time per token, whatever n is. The array is pickled as BF16.
    """

    def __init__(self, lead: int, width: int):
        self._data = np.zeros((lead, 256, width), np.float32)
        self.n = 0

    def resize(self, n: int) -> None:
        """Make the array n long; new values are zero."""
        while n > self._data.shape[1]:
            self._data = np.concatenate([self._data, np.zeros_like(self._data)], axis=1)
        self.n = n

    def append(self, x: np.ndarray) -> None:
        """Append x [lead, T, width]."""
        start = self.n
        self.resize(start + x.shape[1])
        self.data[:, start:] = x

    @property
    def data(self) -> np.ndarray:
        """The values, [lead, n, width]."""
        return self._data[:, : self.n]

    def __getstate__(self) -> tuple[np.ndarray, int]:
        used = self._data[:, : max(self.n, 1)]  # at least one, so that it can double
        return (used.view(np.uint32) >> 16).astype(np.uint16), self.n

    def __setstate__(self, state: tuple[np.ndarray, int]) -> None:
        bits, self.n = state
        self._data = (bits.astype(np.uint32) << 16).view(np.float32)


class History:
    """All keys and values of one layer that have arrived."""

    def __init__(self, shape: Shape):
        self._k, self._v = (Growing(shape.kv_heads, shape.head_size) for _ in range(2))

    def write(self, tokens: np.ndarray, k: np.ndarray, v: np.ndarray, n: int) -> None:
        """Write K and V [T, kv_heads, head_size] of tokens [T], new or refreshed, of a stream of n tokens."""
        for store, x in ((self._k, k), (self._v, v)):
            store.resize(n)
            store.data[:, tokens] = x.swapaxes(0, 1)

    def pack(self, going: np.ndarray, group: int) -> None:
        """Replace the entries of `going` [kv_heads, n] by what their 4-bit form stands for (`golden.retrieval.kv4`)."""
        for store in (self._k, self._v):
            store.data[going] = kv4.copied(store.data[going], group)

    def put_keys(self, at: np.ndarray, k: np.ndarray) -> None:
        """Replace the keys of `at` [kv_heads, n], in their order, by `k` [count, head_size]."""
        self._k.data[at] = k

    @property
    def k(self) -> np.ndarray:
        """Keys, read-only, [kv_heads, n, head_size]."""
        return _sealed(self._k.data)

    @property
    def v(self) -> np.ndarray:
        """Values, read-only, [kv_heads, n, head_size]."""
        return _sealed(self._v.data)


def _sealed(a: np.ndarray) -> np.ndarray:
    a = a.view()
    a.flags.writeable = False
    return a
