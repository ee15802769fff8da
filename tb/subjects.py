"""What is mutated, and which tests judge a mutant: those of the unit's file, as they are, with it in place of the unit."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from unittest.mock import patch

from hdl.emit import Emitted


@dataclass(frozen=True)
class Subject:
    """Unit `unit` of tb/test_<unit>.py in one of its sizes.

    tests : (function without "test_", arguments) of that file, the quick ones first
    forget : functions of the file that keep results of the unit
    """

    unit: str
    tests: tuple[tuple, ...]
    forget: tuple[str, ...] = ()
    size: str = "tiny"
    by_name: bool = True  # whether `emitted` takes the size's name, not its parameters

    def module(self):
        return import_module(f"tb.test_{self.unit}")

    def _args(self) -> tuple:
        return (self.size,) if self.by_name else (self.module().SIZES[self.size],)

    def emitted(self) -> Emitted:
        """The unit."""
        return self.module().emitted(*self._args())

    def judge(self, mutant: Emitted) -> None:
        """Run the tests on a mutant. Raises what they raise."""
        module, own = self.module(), self._args()
        plain = module.emitted

        def emitted(*args):
            return mutant if args == own else plain(*args)

        for name in self.forget:
            getattr(module, name).cache_clear()
        with patch.object(module, "emitted", emitted):
            for test, *args in self.tests:
                getattr(module, f"test_{test}")(*args)


def _each(test: str, *values) -> tuple:
    return tuple((test, v) for v in values)


def _ignore(*_) -> None:
    """For pytest's `record_property`."""


_TRANSFERS = (
    ("faults",),
    ("equals_the_reference", "tiny"),
    ("cycles_equal_the_time_view", "tiny"),
    ("full_rate", "tiny"),
    ("reset_in_flight",),
)
SUBJECTS: dict[str, Callable[[], Subject]] = {
    "cluster_set": lambda: Subject("cluster_set", (("equals_sets_and_time_view", "tiny"),), by_name=False),
    "feeder": lambda: Subject(
        "feeder",
        (("equals_the_reference", "joined"), ("takes_the_cycles_of_the_time_view", "joined"), ("reset_in_flight",)),
        size="joined",
    ),
    "hcu": lambda: Subject(
        "hcu",
        (
            *_each("thresholds_at_their_ends", 17, 1, 0),
            ("equals_golden_and_time_view", "tiny"),
            *_each("reset_in_flight", 1, 7, 40, 101),
        ),
        by_name=False,
    ),
    "kvmu": lambda: Subject(
        "kvmu",
        (("equals_golden", "ragged"), ("cycles_equal_time_view", "ragged"), ("append_never_waits_for_bursts", "ragged")),
        forget=("results", "covered"),
        size="ragged",
        by_name=False,
    ),
    "wtu": lambda: Subject(
        "wtu",
        (
            ("reset_in_flight", "tiny"),
            ("equals_golden_and_time_view", "tiny"),
            ("counts_written_while_rows_run", "tiny"),
        ),
        by_name=False,
    ),
    "loader": lambda: Subject("loader", _TRANSFERS),
    "storer": lambda: Subject("storer", _TRANSFERS),
    "retriever": lambda: Subject(
        "retriever",
        (
            ("equals_the_reference", "tiny"),
            ("takes_the_cycles_of_the_time_view", "tiny"),
            ("full_rate",),
            ("faults",),
            ("reset_in_flight",),
        ),
    ),
    "sequencer": lambda: Subject(
        "sequencer",
        (
            ("statuses",),
            ("equals_interpreter_and_time_view", "tiny"),
            ("equals_interpreter_under_stalls", "tiny"),
            ("events",),
            ("watchdog",),
        ),
    ),
    "dpe": lambda: Subject(
        "dpe",
        (*_each("reset_in_flight", 3, 30, 77), ("cycles_equal_the_time_view", "tiny"), ("equals_golden", "tiny")),
        by_name=False,
    ),
    "vpe": lambda: Subject(
        "vpe",
        (("random_programs_equal_golden", "tiny"), ("cycles_equal_time_view", "tiny")),
        forget=("random_results",),
        by_name=False,
    ),
}
