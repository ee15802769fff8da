"""Predicts when the table port takes the requests of its clients, and when it hands out their items.

The clients are time views that yield the requests of `sim.units.table_time`. They run side by side, on one port and on
one memory of constant latency.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import DreParams
from openvrex.hdl.queues import PUTS, READS
from openvrex.sim.units.table_time import Ask, Put, Requests, Taken


class TablePortTime:
    """Time view of `hdl.retrieval.table_port.TablePort`, with a memory that takes a request and gives a beat a cycle.

    p : parameters of the DRE
    latency : cycles from an ask's transfer on `ar` to its first beat on `r`, and from a put's transfer on `w` to the
        response, at least 1

    taken : cycle and client of each request, in order
    reads, writes : cycle of each transfer on `ar`, and on `aw` and `w`
    items : cycle of each item, or word of counts, on `data`
    waits : number of cycles in which a request waits for the bus or for requests of the other kind
    """

    def __init__(self, p: DreParams, latency: int):
        self.latency, self.lanes = latency, p.kvmu.count_lanes
        self.step = min(self.lanes, p.table.bus_bytes // p.layout().bytes(Item.COUNT))  # counts picked in a cycle
        self.taken: list[tuple[int, int]] = []
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.items: list[int] = []
        self.waits = 0
        self._next: dict[int, int] = {}  # first cycle of each client's next request
        self._sent = 0  # first cycle in which the register of the waiting request can be loaded again
        self._begun: list[int] = []  # cycle in which each ask left the queue, to be the one whose items come
        self._responses: list[int] = []  # cycle of each put's response

    def run(self, clients: Sequence[Requests]) -> None:
        """Runs the clients, in the order of `hdl.retrieval.table_port.CLIENTS`, to their ends."""
        offers: dict[int, Ask | Put] = {}
        answers: dict[int, Taken | None] = dict.fromkeys(range(len(clients)))
        while offers or answers:
            for k, answer in answers.items():
                with suppress(StopIteration):
                    request = clients[k].send(answer) if answer else next(clients[k])
                    assert isinstance(request, Ask | Put), "a unit whose results a neighbour takes needs both views"
                    offers[k] = request
            answers.clear()
            if offers:
                k, taken = self.serve(offers)
                answers[k] = taken
                del offers[k]

    def serve(self, offers: Mapping[int, Ask | Put]) -> tuple[int, Taken]:
        """Takes the next of the requests that clients offer, and returns the client and the answer.

        A client offers a request at the earliest in the cycle after its last one was taken.
        """
        since = {k: max(offer.cycle, self._next.get(k, 0)) for k, offer in sorted(offers.items())}
        cycle = max(self._sent, min(since.values()))
        last = self.taken[-1][1] if self.taken else 0
        k = min((k for k in since if since[k] <= cycle), key=lambda k: k == last)
        self._next[k] = cycle + 1
        return k, self.take(k, cycle, offers[k])

    def take(self, client: int, cycle: int, request: Ask | Put) -> Taken:
        """Takes the request of a client in `cycle`."""
        goes = cycle + 1
        given = self.items[-1] - 1 if self.items else -1  # cycle in which the last item left its beat
        out = Taken(cycle)
        match request:
            case Ask():
                if self._responses:
                    goes = max(goes, self._responses[-1] + 1)
                if len(self._begun) >= READS:
                    goes = max(goes, self._begun[-READS] + 1)
                self._begun.append(max(goes + 1, given))
                self.reads.append(goes + 1)
                first = max(goes + 1 + self.latency, given + 1) + 1  # cycle behind that of the first pick
                comes = self._comes(request, first)
                self.items += comes
                out = Taken(cycle, comes)
            case Put():
                goes = max(goes, given + 1)
                if len(self._responses) >= PUTS:
                    goes = max(goes, self._responses[-PUTS] + 1)
                self.writes.append(goes + 1)
                self._responses.append(goes + 1 + self.latency)
        self.taken.append((cycle, client))
        self.waits += goes - cycle - 1
        self._sent = goes
        return out

    def _comes(self, ask: Ask, first: int) -> tuple[int, ...]:
        """The cycles in which the port hands out what an ask reads, of which it picks the first part by `first`."""
        if not ask.counts:
            return tuple(range(first, first + ask.items))
        picks = -(-ask.items // self.step)  # one a cycle
        each = self.lanes // self.step  # picks of a word
        return tuple(first + min(k + each, picks) - 1 for k in range(0, picks, each))
