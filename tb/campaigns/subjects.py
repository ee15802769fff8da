"""Subjects of mutation: each unit with the checks that judge its mutants, by running with the mutant in its place."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from types import ModuleType
from unittest.mock import patch

from openvrex.golden.program.isa import Engine, Retrieve, Status
from openvrex.hdl.emit import Emitted, component_of, params_of
from openvrex.hdl.params import preset
from openvrex.hdl.ports import ports
from openvrex.tb.campaigns import stress


class _OtherSizeError(Exception):
    """Random traffic is of a size that is not asked for."""


@dataclass(frozen=True)
class Subject:
    """A unit in one of the SIZES of its checks, tb/checks/<unit>_checks.py.

    tests : (function without "check_", arguments) of that file; they take the unit from its function `emitted`
    forget : functions of the file that cache results of the unit
    named : whether `emitted` takes the name of the size, or its parameters
    more : further arguments of `emitted`
    care : defined bits of payloads, as in `tb.formal.mutant_equivalence.Miter`
    module : the only module to mutate: the logic that joins units, which are subjects themselves
    beside : the size without a feature; only what the feature adds to the Verilog is mutated
    sized : whether `emitted` takes arguments
    name : of the subject, where a unit has several; that of the unit if not given
    """

    unit: str
    tests: tuple[tuple, ...]
    size: str | int = "tiny"
    forget: tuple[str, ...] = ()
    named: bool = True
    more: tuple = ()
    care: dict[str, str] = field(default_factory=dict)
    module: str = ""
    beside: str | int = ""
    sized: bool = True
    name: str = ""

    def _module(self) -> ModuleType:
        return import_module(f"openvrex.tb.checks.{self.unit}_checks")

    def _arguments(self, size: str | int) -> tuple:
        if not self.sized:
            return ()
        return (size if self.named else self._module().SIZES[size], *self.more)

    def emitted(self) -> Emitted:
        """The unit."""
        return self._module().emitted(*self._arguments(self.size))

    def plain(self) -> Emitted | None:
        """The unit without the feature, where only the feature is mutated."""
        return self._module().emitted(*self._arguments(self.beside)) if self.beside else None

    def stress(self, unit: Emitted, count: int, draws: int) -> None:
        """Play random traffic of this size on `unit`: `count` seeds of the first `draws`. Raises as `play`."""
        module, own, played = self._module(), self._arguments(self.size), 0

        whole = _whole(module.emitted)

        def only(*size: object) -> Emitted:
            if whole(size) != whole(own):
                raise _OtherSizeError
            return unit

        with patch.object(module, "emitted", only):
            for seed in range(1, draws + 1):
                traffic = stress.drawn(self.unit, seed)
                with suppress(_OtherSizeError):
                    traffic.check(traffic.play())
                    played += 1
                if played == count:
                    return

    def judge(self, mutant: Emitted) -> None:
        """Run the checks on a mutant. Raises what they raise, and `UnusedError` for a check that takes another unit."""
        module, own = self._module(), self._arguments(self.size)
        plain, whole, asked = module.emitted, _whole(module.emitted), 0
        caches = [getattr(module, name) for name in self.forget]
        for cache in caches:
            cache.cache_clear()

        def one(*size: object) -> Emitted:
            nonlocal asked
            mine = whole(size) == whole(own)
            asked += mine
            return mutant if mine else plain(*size)

        with patch.object(module, "emitted", one):
            for test, *args in self.tests:
                before = asked + sum(cache.cache_info().hits for cache in caches)
                getattr(module, f"check_{test}")(*args)
                if before == asked + sum(cache.cache_info().hits for cache in caches):
                    raise UnusedError(
                        f"{self.name or self.unit}: check_{test}{tuple(args)} takes the unit in another size"
                    )


class UnusedError(Exception):
    """A check never asked for the unit that it should judge, or for what it did."""


def _whole(emitted: Callable[..., Emitted]) -> Callable[[tuple], tuple]:
    """Arguments as `emitted` gets them: with the defaults of those that are left out."""

    def whole(args: tuple) -> tuple:
        bound = signature(emitted).bind(*args)
        bound.apply_defaults()
        return bound.args

    return whole


def _unrecorded(name: str, value: object) -> None:
    """Takes the place of pytest's `record_property`."""


def _each(test: str, *values: int) -> tuple:
    return tuple((test, v) for v in values)


def _transfers(size: str) -> tuple:
    return tuple(
        (test, size) for test in ("equals_the_reference", "cycles_equal_the_time_view", "faults", "reset_in_flight")
    )


_TRANSFERS = (
    ("reset_in_flight", "tiny"),
    ("cycles_equal_the_time_view", "tiny"),
    ("full_rate", "tiny"),
    ("equals_the_reference", "tiny"),
    ("faults", "tiny"),
    ("long_instructions",),
    ("every_count_of_rows", "tiny"),
)
_DONE = {"done": "done[0] ? ~0 : 17'h1"}  # its signal is defined while it is valid
_STORED = _DONE | {"d_ctx": "d_target == 2 ? ~0 : 0"}  # of HASH alone


def _heads() -> dict[str, str]:
    """A beat of the sequencer that is skipped has only its head."""
    sequencer = component_of("sequencer", params_of("sequencer", preset("tiny")))
    names = [e.name.lower() for e in Engine]
    fields = [p for p in ports(sequencer) if p.get("role") == "payload" and p["stream"] in names]
    rest = [p for p in fields if not p["name"].endswith(("_skip", "_wait", "_signal"))]
    return {p["name"]: f"{p['stream']}_skip ? 0 : ~0" for p in rest}


_SUBJECTS = (
    Subject("cluster_set", (("equals_sets_and_time_view", "tiny"),), named=False),
    Subject("motion_mask", (("equals_golden_and_time_view", "tiny"),), named=False),
    Subject(
        "feeder",
        (
            ("equals_the_reference", "joined"),
            ("takes_the_cycles_of_the_time_view", "joined"),
            ("two_beats_wait", "joined"),
            ("reset_in_flight",),
        ),
        "joined",
        care={
            "k_hash": "k_op ? 0 : ~0",  # an order has none
            # Of a row's last word, lanes up to `keep`; other words have no `keep`.
            "s_row_keep": "{3{s_row_last}}",
            "s_row_scores": "{88{~s_row_last}} | ~({88{1'b1}} << 11 << 11 * s_row_keep)",
        },
    ),
    Subject(
        "hcu",
        (
            *_each("thresholds_to_their_ends", 17, 11, 6, 3, 1, 0),
            ("equals_golden_and_time_view", "tiny"),
            ("words_hold_while_a_key_waits",),
            *_each("reset_in_flight", 1, 7, 40, 101),
        ),
        named=False,
    ),
    Subject(
        "kvmu",
        (
            ("equals_golden", "ragged"),
            ("cycles_equal_time_view", "ragged"),
            ("append_never_waits_for_bursts", "ragged"),
        ),
        "ragged",
        forget=("results", "covered"),
        named=False,
    ),
    Subject(  # what keeps blocks
        "kvmu",
        (("equals_golden", "kept"), ("cycles_equal_time_view", "kept")),
        "kept",
        forget=("results", "covered"),
        named=False,
        beside="two-slots",
        name="kvmu_kept",
    ),
    Subject(
        "wtu",
        (
            ("reset_in_flight", "tiny"),
            ("equals_golden_and_time_view", "tiny"),
            ("every_bit_of_a_weight_decides", "tiny"),
            ("counts_that_come_while_rows_run", "tiny"),
            ("equal_codes_cross_in_every_lane", "tiny"),
            ("many_rows", "tiny"),
        ),
        named=False,
    ),
    Subject("loader", _TRANSFERS, care=_DONE),
    Subject(  # what expands codes
        "loader",
        _transfers("codes"),
        "codes",
        care=_DONE,
        beside="sixteen",
        name="loader_codes",
    ),
    Subject(  # what expands packed weights
        "loader",
        _transfers("weights"),
        "weights",
        care=_DONE,
        module="loader",
        beside="sixteen",
        name="loader_weights",
    ),
    Subject("weight_expander", (("words_of_several_groups_and_stalls", 16, 5500),), 16),
    Subject("storer", _TRANSFERS, care=_STORED),
    Subject(  # what sets registers
        "storer",
        (*_transfers("registers"), ("every_shift_of_a_number",), ("every_count_of_rows", "registers")),
        "registers",
        care=_STORED | {"store_set": "store_set[0] ? ~0 : 45'h1"},
        beside="tiny",
        name="storer_registers",
    ),
    Subject(  # what packs signs
        "storer",
        (*_transfers("codes"), ("every_count_of_rows", "codes")),
        "codes",
        care=_STORED,
        beside="sixteen",
        name="storer_codes",
    ),
    Subject(
        "table_port",
        (
            ("reset_in_flight",),
            ("takes_the_cycles_of_the_time_view", "tiny"),
            ("full_rate",),
            ("equals_the_reference", "tiny"),
            ("faults", "none"),
            ("stops_at_any_cycle",),
        ),
    ),
    Subject(
        "retriever",
        (
            ("full_rate",),
            ("many_instructions",),
            ("takes_the_cycles_of_the_time_view", "tiny"),
            ("reset_in_flight",),
            ("equals_the_reference", "tiny"),
            ("faults",),
            ("stops_at_any_cycle",),
            ("sets_of_many_entries",),
            ("orders",),
            ("answers_of_another_kind",),
        ),
    ),
    Subject(  # what keeps blocks
        "retriever",
        (
            ("takes_the_cycles_of_the_time_view", "kept"),
            ("equals_the_reference", "kept"),
            ("blocks_are_kept_when_they_have_come",),
            ("reset_in_flight_kept",),
            ("faults_kept",),
            ("stops_kept",),
        ),
        "kept",
        beside="blocks",
        name="retriever_kept",
    ),
    Subject(
        "kv4_codec",
        (
            ("equals_golden_and_time_view", "four"),
            ("real_entries", "four"),
            *(("reset_in_flight", "four", cut) for cut in (5, 18, 40)),
        ),
        "four",
    ),
    Subject(
        "kv4_codec",
        (("equals_golden_and_time_view", "half"), ("real_entries", "half")),
        "half",
        name="kv4_codec_half",
    ),
    Subject(
        "sequencer",
        (
            ("statuses",),
            ("every_semaphore_for_everyone",),
            ("instructions_hold_while_they_wait",),
            ("loops_in_loops",),
            ("every_bit_of_a_register",),
            ("equals_interpreter_and_time_view", "tiny"),
            ("equals_interpreter_under_stalls", "tiny"),
            ("events",),
            ("faults_beside_a_program",),
            ("every_register",),
            ("watchdog",),
        ),
        care=_heads(),
    ),
    Subject(  # the second write port of the registers
        "sequencer",
        (
            ("a_store_sets_registers",),
            ("stores_between_instructions",),
            ("equals_interpreter_and_time_view", "registers"),
        ),
        "registers",
        care=_heads(),
        beside="tiny",
        name="sequencer_registers",
    ),
    Subject(
        "dpe",
        (
            *_each("reset_in_flight", 3, 30, 77),
            ("chunks_far_from_each_other", (60, -70)),
            ("long_sums",),
            ("addresses_that_wrap_are_counted",),
            ("many_operands",),
            ("results_fill_their_queue",),
            ("a_sum_of_zero_is_zero", "tiny"),
            ("one_special_number_in_each_lane", "tiny"),
            ("no_bit_of_an_exponent_makes_a_number_special", "tiny"),
            ("cycles_equal_the_time_view", "tiny"),
            ("equals_golden", "tiny"),
        ),
        named=False,
    ),
    Subject(
        "vpe",
        (
            ("random_programs_equal_golden", "tiny"),
            ("cycles_equal_time_view", "tiny"),
            ("rounding_up_to_a_power_of_two",),
            ("every_result_is_stored", "tiny"),
        ),
        forget=("random_results",),
        named=False,
    ),
    Subject(  # the functions of a scan, which share a lane's elementwise logic
        "vpe",
        (
            ("random_programs_equal_golden", "hybrid"),
            ("cycles_equal_time_view", "hybrid"),
            ("every_result_is_stored", "hybrid"),
            ("functions_over_every_operand",),
        ),
        "hybrid",
        forget=("random_results",),
        named=False,
        module="vpe_lane__elementwise",
        name="vpe_hybrid",
    ),
    Subject(
        "arbiter",
        (
            ("cycles_equal_the_time_view", 2),
            ("every_answer_goes_to_whoever_asked", _unrecorded),
            ("full_buffers_keep_their_beats",),
            ("no_manager_holds_up_another",),
        ),
        2,
        forget=("two_cores",),
        more=((),),
    ),
    Subject(
        "arbiter",
        (
            ("cycles_equal_the_time_view", 3, 1),
            ("reads_of_a_group_go_to_memory_once",),
            ("a_group_that_waits_goes_on_when_nothing_is_common",),
        ),
        3,
        more=((), True),
        name="arbiter_common",
    ),
    Subject(
        "arbiter",
        (("ports_answer_in_order",), ("cycles_equal_the_time_view", 2, None, 2)),
        2,
        more=((), False, 2),
        module="arbiter_interleaver",
        name="arbiter_ports",
    ),
    Subject(
        "register_block",
        (
            ("cycles_are_those_of_the_data_sheet",),
            ("accesses_by_hand", "core_ip"),
            ("accesses_are_as_described", "tiny", "core_ip", _unrecorded),
        ),
        more=("core_ip",),
    ),
    # Joins: the logic between their units.
    Subject("dre", (("reset_in_flight", 60), ("equals_golden", "tiny", _unrecorded)), module="dre"),
    Subject("lxe", (("faults",), ("a_layer_equals_golden",)), module="core__lxe", sized=False),
    Subject(
        "core",
        (
            ("errors_and_resets_leave_a_core_that_works",),
            ("nothing_outside_its_regions_is_touched",),
            ("a_context_is_forgotten", ()),
        ),
        module="core",
        sized=False,
    ),
    Subject(
        "motion_mask_ip",
        (("a_wrong_number_of_blocks_is_refused",), ("equals_golden_and_time_view", "tiny", _unrecorded)),
        module="motion_mask_ip",
        named=False,
    ),
    Subject(
        "dre_ip",
        (("wrong_streams_are_refused", 1, 0.0, 0.0, _unrecorded), ("rows_of_an_empty_context_are_refused",)),
        module="dre_ip__engine__dre__row_check",
        sized=False,
        name="row_check",
    ),
    Subject(
        "dre_ip",
        (
            ("a_reset_while_a_command_runs", 3),
            ("a_fault_ends_in_a_status_and_a_reset_mends_it", {"action": Retrieve.CLEAR, "base": 3}, Status.RANGE),
            ("frames_equal_golden", 1, 0.0, 0.0, _unrecorded),
            ("wrong_streams_are_refused", 1, 0.0, 0.0, _unrecorded),
        ),
        module="dre_ip",
        sized=False,
    ),
    Subject(
        "core_ip",
        (("faults_and_resets_leave_a_core_that_works",), ("layers_equal_golden", 2, 0.0, 2, _unrecorded)),
        module="core_ip",
        sized=False,
    ),
)
SUBJECTS = {s.name or s.unit: s for s in _SUBJECTS}
