"""The expander of codes, every number and gain at every place: against golden, and golden against powers of two."""

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval.coded_pages import CodeWords
from openvrex.golden.retrieval.coded_pages import words as packed
from openvrex.hdl.execution.code_expander import CodeExpander
from openvrex.tb.library.simulated import simulated

SIZES = [(64, 18), (32, 14), (16, 5), (4, 2), (4, 1), (64, 40)]  # lanes, numbers


@pytest.mark.parametrize(("lanes", "numbers"), SIZES)
def test_equals_golden_over_every_number_and_gain(lanes, numbers):
    """Each field of each place has every number with every gain."""
    own = CodeWords(lanes, numbers)
    values = np.arange(-7, 8, 2)
    turns = [(gain, turn) for gain in range(64) for turn in range(8)]
    codes = [
        (values[(np.arange(numbers) + turn + place) % 8], (gain + 29 * place) % 64)
        for gain, turn in turns
        for place in range(own.places)
    ]
    fields, gains = (np.array([code[k] for code in codes]) for k in range(2))
    raw = packed(fields.astype(np.int8), gains.astype(np.uint8)).view(np.uint8).reshape(len(turns), -1)
    assert raw.shape[1] == own.places * own.code_bytes
    more = np.zeros((-len(turns) % own.many, raw.shape[1]), np.uint8)
    memory = np.concatenate([raw, more]).reshape(-1, 2 * lanes)
    want = own.expanded(memory).reshape(-1, lanes)[: len(turns)]

    exact = np.zeros((len(codes), lanes // own.places))
    exact[:, :numbers] = fields * np.exp2(gains / 8 - 4)[:, None]
    exact[:, numbers : numbers + 2] = 1
    np.testing.assert_array_equal(want, to_bf16(exact).view(np.uint16).reshape(-1, lanes))

    dut, got = CodeExpander(own), []

    async def bench(ctx):
        for row in raw:
            ctx.set(dut.i.as_value(), int.from_bytes(row.tobytes(), "little"))
            got.append(ctx.get(dut.o.as_value()))

    simulated(dut, bench)
    assert got == [int.from_bytes(row.tobytes(), "little") for row in want]


@pytest.mark.parametrize(
    ("lanes", "numbers", "reason"),
    [
        (4, 3, "numbers of a code=3: must be at most 2"),
        (64, 50, "numbers of a code=50: has 24 bytes, which must be a power of two"),
    ],
)
def test_codes_that_do_not_fit_are_refused(lanes, numbers, reason):
    with pytest.raises(ParamError, match=reason):
        CodeWords(lanes, numbers)
