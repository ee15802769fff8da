"""A user's GPTQ or AWQ checkpoint on the RTL of a core: memory equals golden, and that of the same weights in BF16."""

from collections.abc import Sequence

import pytest

from openvrex.golden.arithmetic.packed_weights import Matrix, Packing, Rule
from openvrex.golden.inputs.model_file import FileDecoder, open_model
from openvrex.golden.program.isa import Opcode, unpacks
from openvrex.golden.program.model_host import ModelHost
from openvrex.golden.program.share_plan import SharePlan
from openvrex.tb.library.decoder_model import decoder_host
from openvrex.tb.library.lxe_programs import Script
from openvrex.tb.library.model_stream import ModelStream
from openvrex.tb.library.random_layers import cut_as
from openvrex.tb.library.runner import emit
from openvrex.tb.library.small_models import params
from tb.tests.golden.inputs.checkpoints import folder

CORE = params("lxe.weights=true", "entry_bytes=64", "w_depth=64", "bus_bytes=8")
GENERATED = 2
RUNS = {
    "awq": ("awq", 128, False, Packing(Rule.ZERO, 128)),
    "gptq-ragged": ("gptq", 160, True, Packing(Rule.SCALE, 32)),
}
WEIGHTS = "weights 0", "head weights"  # regions that a run only reads; the first ones are smaller in 4 bits


class Whole(FileDecoder):
    """The same decoder, of which memory holds a copy in BF16."""

    def held(self, packed: bool) -> tuple[Sequence[dict[str, Matrix]], Packing | None]:
        return super().held(False)


def written(host: ModelHost) -> dict[str, bytes]:
    """What the core has in memory besides weights."""
    return {r.name: r.data.tobytes() for r in host.memory.regions if not r.name.startswith(WEIGHTS)}


@pytest.mark.parametrize("how", RUNS)
def test_a_checkpoint_equals_golden_and_its_bf16_copy(how, tmp_path, monkeypatch):
    """A prompt of two tokens and two generated ones. Groups of 128 that are ragged are held as groups of 32."""
    method, ffn, middle, packing = RUNS[how]
    folder(tmp_path, method, middle=middle, intermediate_size=ffn)
    own, file = [], open_model(tmp_path)
    monkeypatch.setattr(SharePlan, "_cut_share", cut_as(packing))
    for kind in (FileDecoder, Whole):
        decoder = kind(file, 1, 16)
        own.append(decoder_host(decoder, CORE, 8, 1))
    host, plain = own
    assert (host.shape.packing, plain.shape.packing) == (packing, None)
    given = [decoder.inputs([5, 9])]
    script, loads = Script(host.memory, [r.name for r in host.memory.regions]), 0
    streams = [one.stream(given, GENERATED) for one in own]
    for step, other in zip(*streams, strict=True):
        loads += sum(i.op == Opcode.LOAD and unpacks(i) for i in step.program)
        script.add(step.program, step.registers)
        host.run(step)
        script.expect()
        plain.run(other)
        assert written(host) == written(plain), step.phase
    assert loads > 20
    assert host.tokens == plain.tokens
    sizes = [sum(r.size for r in one.memory.regions if r.name.startswith("weights 0")) for one in own]
    assert sizes[0] < sizes[1] / 2
    ran, after = script.play(emit("core", CORE), ModelStream(host, [], 0).ports, 0.1)
    assert not script.differences(ran, after)
