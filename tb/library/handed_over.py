"""Turns code that hands items to a call-back into an iterator, so that the consumer acts between two items.

A policy calls its arithmetic from deep inside, and a player of passes wants to be asked for one after the other. The
code runs in a thread of its own, but never at the same time as the consumer.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _StopError(BaseException):
    """Ends the code whose consumer has gone."""


class _Hand(Generic[Item]):
    """What both sides share: whose turn it is, the item, the error of the code."""

    def __init__(self) -> None:
        self.mine, self.yours = threading.Semaphore(0), threading.Semaphore(0)
        self.items: list[Item] = []
        self.error: BaseException | None = None
        self.over = self.gone = False

    def give(self, item: Item) -> None:
        """Hand an item over, and wait until the consumer asks for the next."""
        self.items.append(item)
        self.mine.release()
        self.yours.acquire()
        if self.gone:
            raise _StopError


def handed_over(work: Callable[[Callable[[Item], None]], None]) -> Iterator[Item]:
    """The items that `work` hands to the function it is given. It goes on when the next item is asked for.

    An error of `work` is raised at the consumer. If the consumer closes the iterator, `work` ends at its last item.
    """
    hand: _Hand[Item] = _Hand()

    def run() -> None:
        hand.yours.acquire()
        try:
            if not hand.gone:
                work(hand.give)
        except _StopError:
            pass
        except BaseException as e:
            hand.error = e
        hand.over = True
        hand.mine.release()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while True:
            hand.yours.release()
            hand.mine.acquire()
            if hand.over:
                break
            yield hand.items.pop()
    finally:
        if not hand.over:
            hand.gone = True
            hand.yours.release()
        thread.join()
    if hand.error is not None:
        raise hand.error
