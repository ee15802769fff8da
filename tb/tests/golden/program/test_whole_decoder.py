"""SmolLM2-135M, whole, on a golden core of 16 lanes: programs and memory, and a stream against the policy in FP32."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.inputs.decoder import N_LAYERS, Decoder
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.model_host import HEAD, blocks_needed
from openvrex.golden.program.score_stages import RetrievalShape
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.system_map import SystemMap
from openvrex.tb.library.decoder_model import TOKENS, core, decoder_host, layer_shape
from openvrex.tb.library.policy_passes import PolicyPasses, resv
from openvrex.tb.library.runner import ROOT

VOCABULARY = 49152
PROMPT, QUESTION = "You see a short film of a street.", "Is it day?"


def test_programs_and_memory():
    """A program for each phase and size of pass, whatever the layer and the KV head; the bytes of the weights.

    The tables of docs/run.md have them.
    """
    p, total = core(), 100
    s, f = layer_shape(p, total), p.dre.function()
    fmt, contexts = p.core_format(), N_LAYERS * Decoder.kv_heads
    blocks = blocks_needed(total, p.dre.kvmu.clusters, p.dre.layout().block_slots, contexts)
    head = HeadPlan(s, fmt, VOCABULARY)
    whole = SystemMap(
        Shares.of(s, fmt.lanes, 1, p.dre.kvmu.entry_bytes),
        fmt,
        RetrievalShape.of(p.dre.sizes(), f.centre),
        N_LAYERS,
        p.dre.sizes(blocks),
        ahead=False,
        more={"head weights": head.weights.size, "head work": head.work.size},
    )
    assert (whole.shares.groups, blocks) == (Decoder.kv_heads, contexts * total)
    longest, lengths = 0, {}
    for tokens in (TOKENS, 1):
        own = whole.of(tokens)
        assert own.regions == whole.regions
        for phase in own.phases():
            program = own.program(0, phase)
            assert program is not None
            assert all(own.program(0, phase, layer) is program for layer in range(N_LAYERS))
            longest = max(longest, len(program))
            lengths.setdefault(phase, []).append(f"{len(program)}")
    assert max(longest, len(head.program())) <= fmt.i_depth
    sizes = {r.name: r.size for r in whole.regions}
    layer = 2 * (576 * (9 + 2 * 3 + 9) * 64 + 3 * 576 * 1536)
    assert 0 < sizes["weights 0 of layer 0"] - layer < 1 << 20  # what tables have in memory beside the weights
    assert sizes["head weights"] - 2 * 576 * VOCABULARY < 1 << 14
    assert whole.regions[-1].end < 320 << 20

    page, width, inner = " ".join((ROOT / "docs/run.md").read_text().split()), Decoder.width, 1536
    loads = {"attention": width * 5 * 64, "output": width * width, "ffn": 2 * width * inner, "down": width * inner}
    for phase, weights in {"norm": 0, **loads}.items():
        runs = "3, a KV head each" if phase == "attention" else "1"
        loaded = f"{2 * weights / 1e3:,.0f} KB " if weights else ""
        assert f"| {phase} | {runs} | {' | '.join(lengths[phase])} | {loaded}|" in page
    assert f"| head | 1 after all layers | | {len(head.program())} | {2 * width * VOCABULARY / 1e3:,.0f} KB |" in page
    layer = 2 * (loads["attention"] * Decoder.kv_heads + loads["output"] + loads["ffn"] + loads["down"]) // 32
    cycles = f"take {layer:,} cycles in a layer, {N_LAYERS * layer:,} in a pass of any size, and "
    assert f"{cycles}{2 * width * VOCABULARY // 32:,} in the head" in page
    each = {name: size for name, size in sizes.items() if not name.startswith("weights")}
    assert all(f"| {name} | {size:,} |" in page for name, size in each.items())
    assert f"| weights 0 of layer 0 to {N_LAYERS - 1} | {sizes['weights 0 of layer 0']:,} each |" in page


@pytest.mark.nightly
def test_a_stream_chooses_the_tokens_of_the_policy(record_property):
    """A prompt in two passes, a frame, a question, two tokens; an entry leaves the ring, most contexts fetch it."""
    p, decoder = core(["recent=32"]), Decoder(n_tokens=128)
    first, question = decoder.embed(PROMPT), decoder.embed(QUESTION)
    frame = np.random.default_rng(1).normal(size=(TOKENS, Decoder.width)).astype(np.float32) * decoder.embeddings.std()
    given = [np.concatenate([first, first]), frame, question]
    total = sum(len(x) for x in given) + 1
    f = replace(p.dre.function(), sinks=0)
    h = decoder_host(decoder, p, total, f=f)
    plain = PolicyPasses(decoder, resv(decoder, f, p.core_format().dot))
    x, tokens, errors, fetched = np.concatenate(given), [], [], []
    for step in h.stream(given, 2):
        h.run(step)
        if step.phase == "attention":
            fetched.append(h.system.cores[0].registers[Register.ENTRIES])
        if step.phase == HEAD:
            tokens.append(int(np.argmax(plain.logits)))
            assert h.tokens == tokens[:-1]
            x = np.concatenate([x, decoder.inputs(tokens[-1:])])
        elif step.phase == "down" and step.layer == N_LAYERS - 1:
            plain.take_pass(x[step.start : step.start + step.tokens])
            have, want = h.hidden(step.tokens)[-1], plain.hidden
            errors.append(float(np.linalg.norm(have - want) / np.linalg.norm(want)))
    assert h.tokens == tokens
    record_property("text", decoder.tokenizer.decode(tokens))  # for `vrex report`
    record_property("errors", [round(error, 4) for error in errors])
    assert len(errors) == 5
    assert max(errors) < 0.03
    assert sum(fetched) > 60
