"""Code that hands items over is an iterator: order, turns, errors, a consumer that leaves."""

import pytest

from openvrex.tb.library.handed_over import handed_over


def test_sides_take_turns():
    """The code sees what the consumer has done with each item before it goes on."""
    done: list[int] = []

    def work(give):
        for i in range(5):
            give(i)
            assert done == list(range(i + 1))

    for item in handed_over(work):
        done.append(item)
    assert done == list(range(5))


def test_an_error_reaches_the_consumer():
    def work(give):
        give(1)
        raise ValueError("why")

    items = handed_over(work)
    assert next(items) == 1
    with pytest.raises(ValueError, match="why"):
        next(items)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_consumer_that_leaves_ends_the_code(taken):
    seen = []

    def work(give):
        try:
            for i in range(5):
                give(i)
        finally:
            seen.append("ended")

    items = handed_over(work)
    for _ in range(taken):
        next(items)
    items.close()
    assert seen == ["ended"] * (taken > 0)


def test_code_without_items():
    assert list(handed_over(lambda give: None)) == []
