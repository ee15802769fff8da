"""Regions of memory that a core may reach: pages, permissions, the nearest ones joined."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.bus_memory import Memory, Region
from openvrex.golden.program.isa import ADDR_BITS
from openvrex.golden.program.regions import EVERYTHING, PAGE, Allow, Reach, around, enclosing, packed, reaches

LAST = (1 << ADDR_BITS) - 1


def test_a_page_is_allowed_as_a_whole():
    regions = [Reach(PAGE + 5, 2 * PAGE, Allow.LOAD | Allow.STORE), Reach(4 * PAGE, 4 * PAGE, Allow.LOAD)]
    assert reaches(regions, PAGE, 2 * PAGE, Allow.STORE)
    assert not reaches(regions, PAGE - 1, 2, Allow.STORE)
    assert not reaches(regions, 3 * PAGE - 1, 2, Allow.STORE)
    assert reaches(regions, 5 * PAGE - 1, 1, Allow.LOAD)
    assert not reaches(regions, 5 * PAGE - 1, 1, Allow.STORE)
    assert not reaches([], 0, 1, Allow.LOAD)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=12), st.integers(1, 5))
def test_few_regions_hold_all(spans, most):
    """Whatever the spans allow stays allowed, in at most `most` regions."""
    spans = [Reach(a * PAGE, (a + n) * PAGE) for a, n in spans]
    found = enclosing(spans, most)
    assert len(found) <= most
    assert all(reaches(found, s.first, s.last - s.first + 1, EVERYTHING) for s in spans)


def test_the_widest_gap_stays_closed():
    memory = Memory([Region("a", 0, PAGE), Region("b", 2 * PAGE, 1), Region("c", 9 * PAGE, 1)])
    assert around(memory, 2) == [Reach(0, 2 * PAGE), Reach(9 * PAGE, 9 * PAGE)]


def test_regions_as_the_port_takes_them():
    assert packed([Reach(PAGE, 3 * PAGE, Allow.STORE), Reach(0, LAST)]) == (
        1 | 3 << 28 | 2 << 56 | ((1 << 28) - 1) << 62 + 28 | 63 << 62 + 56
    )


@pytest.mark.parametrize(("first", "last", "name"), [(-1, 0, "first"), (5, 4, "last"), (0, LAST + 1, "last")])
def test_a_region_that_cannot_be(first, last, name):
    with pytest.raises(ParamError, match=f"^{name}="):
        Reach(first, last)
