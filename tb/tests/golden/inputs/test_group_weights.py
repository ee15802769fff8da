"""GPTQ and AWQ checkpoints: matrices equal their exact weights, rounded once; what is refused names the tensor."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from openvrex.golden.arithmetic.packed_weights import GROUPS, PackedMatrix, Packing, Rule, alike
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.group_weights import READ, GroupFormat
from openvrex.golden.inputs.model_file import MATRICES, FileDecoder, open_model
from tb.tests.golden.inputs.checkpoints import QUANTIZATION, awq, exact, folder, gptq, numbers

METHODS = list(QUANTIZATION)
Q = "model.layers.0.self_attn.q_proj"


def read(method: str, tensors: dict, group: int, inputs: int, outputs: int) -> PackedMatrix:
    kind = GroupFormat.of(QUANTIZATION[method] | {"group_size": group}, "m")
    return kind.matrix({f"w.{name}": x for name, x in tensors.items()}, "w", "m", inputs, outputs)


def tensors_of(method: str, q: np.ndarray, z: np.ndarray, d: np.ndarray, group: int) -> dict:
    return awq(q, z, d) if method == "awq" else gptq(q, z, d, group, method == "gptq_v2")


@pytest.mark.parametrize("group", READ)
@pytest.mark.parametrize("method", METHODS)
def test_a_matrix_is_the_exact_one_rounded_once(method, group):
    """All q, zero points from the least to the greatest that the format stores, one group and several."""
    rng, least = np.random.default_rng(group), 1 if method == "gptq" else 0
    for inputs, outputs in ((128, 16), (256, 8), (128, 40)):
        q, z, d = numbers(rng, inputs, outputs, group, False)
        z[0] = np.resize([least, least + 15], outputs)
        got = read(method, tensors_of(method, q, z, d, group), group, inputs, outputs)
        assert got.packing == Packing(Rule.ZERO, group if group in GROUPS else 32)
        assert (got.bf16.astype(float) == exact(q, z, d, group)).all()
    assert z.max() == least + 15
    assert set(q.flat) == set(range(16))


@pytest.mark.parametrize("method", METHODS)
def test_zero_points_of_8_need_no_memory(method):
    q, z, d = numbers(np.random.default_rng(1), 128, 16, 128, True)
    got = read(method, tensors_of(method, q, z, d, 128), 128, 128, 16)
    assert got.packing == Packing(Rule.SCALE, 128)
    assert (got.bf16.astype(float) == exact(q, z, d, 128)).all()


def test_the_formats_of_gptq_differ_by_one():
    q, z, d = numbers(np.random.default_rng(1), 128, 8, 128, False)
    own = gptq(q, z, d, 128)
    assert (read("gptq", own, 128, 128, 8).bf16.astype(float) == exact(q, z, d, 128)).all()
    assert (read("gptq_v2", own, 128, 128, 8).bf16.astype(float) == exact(q, z - 1, d, 128)).all()


def test_the_last_group_of_gptq_may_be_ragged():
    """160 inputs are a group of 128 and one of 32, which are five groups of 32; AWQ has whole groups."""
    q, z, d = numbers(np.random.default_rng(1), 160, 8, 128, False)
    own = read("gptq", gptq(q, z, d, 128), 128, 160, 8)
    assert own.scales.shape == (2, 8, 2)
    [held] = alike([own], [160])
    assert held.packing == Packing(Rule.ZERO, 32)
    assert held.scales.shape[0] == 5
    assert (held.bf16.astype(float) == exact(q, z, d, 128)).all()
    with pytest.raises(ParamError, match="m: w: inputs=160: must be a multiple of 128, as the format has it"):
        read("awq", awq(q, z, d), 128, 160, 8)


def test_scales_of_another_type_must_be_fp16_numbers():
    q, z, d = numbers(np.random.default_rng(1), 128, 8, 128, False)
    own = gptq(q, z, d, 128)
    assert (read("gptq", own | {"scales": d.astype(np.float32)}, 128, 128, 8).bf16 == exact(q, z, d, 128)).all()
    with pytest.raises(ParamError, match=r"m: w\.scales='8 of 8': must be FP16 numbers: save the scales as FP16"):
        read("gptq", own | {"scales": d.astype(np.float32) * np.float32(1 + 2**-20)}, 128, 128, 8)
    spoilt = d.copy()
    spoilt[0, 3] = np.inf
    with pytest.raises(ValueError, match=r"m: w\.scales\[0, 3\]=inf: must be finite"):
        read("gptq", own | {"scales": spoilt}, 128, 128, 8)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"bits": 3}, "m: bits=3: must be 4, as LOAD expands"),
        ({"group_size": 96}, "m: group_size=96: must be 32 or 64 or 128, groups that LOAD expands"),
        ({"group_size": -1}, "m: group_size=-1: must be 32 or 64 or 128"),
        ({"quant_method": "bitsandbytes"}, "m: quant_method='bitsandbytes': must be gptq or awq"),
        ({"checkpoint_format": "marlin"}, "m: checkpoint_format='marlin': must be gptq or gptq_v2"),
        ({"pack_dtype": "int16"}, "m: pack_dtype='int16': must be int32"),
        ({"quant_method": "awq", "version": "GEMV"}, "m: version='gemv': must be gemm"),
    ],
)
def test_formats_that_are_refused(change, line):
    with pytest.raises(ParamError) as e:
        GroupFormat.of(QUANTIZATION["gptq"] | change, "m")
    assert str(e.value).startswith(line)


def changed(path: Path, **change) -> Path:
    """The folder with other tensors; None leaves one out."""
    file = path / "model.safetensors"
    own = load_file(file) | change
    save_file({name: x for name, x in own.items() if x is not None}, file)
    return path


def reordered() -> np.ndarray:
    """Groups by the order of activations."""
    return np.array([1 - i // 128 for i in range(256)], np.int32)


REFUSED = {
    "a permuted group": ({f"{Q}.g_idx": reordered()}, {"hidden_size": 256}, r"q_proj\.g_idx\[0\]=1: must be 0"),
    "a tensor that is not there": ({f"{Q}.scales": None}, {}, r"q_proj\.scales=None: must be in the checkpoint"),
    "words of 8 bits": (
        {f"{Q}.qweight": np.zeros((32, 128), np.int32)},
        {},
        r"q_proj\.qweight: shape=\[32, 128\]: must be \[16, 128\], for 128 inputs and 128 outputs of 4 bits",
    ),
    "floats": ({f"{Q}.qzeros": np.zeros((1, 16), np.float32)}, {}, r"q_proj\.qzeros: type='float32': must be int32"),
    "integers": ({f"{Q}.scales": np.zeros((1, 128), np.int32)}, {}, r"q_proj\.scales: type='int32': must be float16"),
    "a bias": ({f"{Q}.bias": np.ones(128, np.float16)}, {}, r"q_proj\.bias='128 numbers': must be 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_that_are_refused(name, tmp_path):
    """One line, which names the tensor, its value and what is taken."""
    tensors, config, line = REFUSED[name]
    folder(tmp_path, "gptq", **config)
    with pytest.raises(ParamError, match=line) as e:
        FileDecoder(open_model(changed(tmp_path, **tensors)), 1, 4)
    assert len(str(e.value).splitlines()) == 1


def test_a_bias_of_zeros_is_taken(tmp_path):
    """AutoGPTQ writes one for each layer, also where the model has none."""
    folder(tmp_path, "gptq")
    changed(tmp_path, **{f"{Q}.bias": np.zeros(128, np.float16)})
    assert FileDecoder(open_model(tmp_path), 1, 4).held(True)[1] == Packing(Rule.ZERO, 128)


@pytest.mark.parametrize("method", METHODS)
def test_a_decoder_has_the_exact_weights(method, tmp_path):
    """Also side by side, in parts of several files, and held in 4 bits."""
    want = folder(tmp_path, method, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=2)
    tensors = load_file(tmp_path / "model.safetensors")
    second = {name: tensors.pop(name) for name in list(tensors) if ".1." in name}
    save_file(tensors, tmp_path / "model.safetensors")
    save_file(second, tmp_path / "model-00002.safetensors")
    decoder = FileDecoder(open_model(tmp_path), None, 16)
    held, packing = decoder.held(True)
    assert packing == Packing(Rule.ZERO, 128)
    assert len(held) == decoder.n_layers == 2
    for i in range(2):
        exact_ones = [want[f"model.layers.{i}.{name}"] for name in MATRICES.values()]
        q, k, v, output, gate, up, down = exact_ones
        joined = {
            "qkv": np.hstack([q, k, v]),
            "attn_output": output,
            "gate_up": np.hstack([gate, up]),
            "ffn_down": down,
        }
        for name, x in joined.items():
            own = held[i][name]
            assert isinstance(own, PackedMatrix)
            assert (own.bf16.astype(float) == x).all()
            assert (decoder.layers[i][name] == x).all()
        assert (held[i]["attn_norm"] == decoder.layers[i]["attn_norm"]).all()
    assert not decoder.notes(packing)
    assert decoder.held(False)[1] is None


def test_one_packing_for_all_matrices():
    """Symmetric matrices beside others get zero points of 8 or minima of -8 d; every number stays."""
    finite = np.arange(1 << 16, dtype=np.uint16)
    finite = finite[np.isfinite(finite.view(np.float16)) & (abs(finite.view(np.float16)) < 8000)]
    q = np.tile(np.arange(16, dtype=np.uint8), 2)[:, None].repeat(len(finite), axis=1)
    plain = PackedMatrix(q, finite[None, :, None], Packing(Rule.SCALE))
    for rule in (Rule.ZERO, Rule.MINIMUM):
        assert (plain.by_rule(rule).bf16.view(np.uint16) == plain.bf16.view(np.uint16)).all()
        other = PackedMatrix(q[:, :1], np.zeros((1, 1, 2), np.uint16), Packing(rule))
        assert {x.packing for x in alike([plain, other], [32])} == {Packing(rule)}
        with pytest.raises(ParamError, match="must be SCALE to become SCALE"):
            other.by_rule(Rule.SCALE)
    large = PackedMatrix(q[:, :1], np.array([[[0x7000]]], np.uint16), Packing(Rule.SCALE))  # 8192
    with pytest.raises(ParamError, match="scales='1 of 2': must be finite"):
        large.by_rule(Rule.MINIMUM)


CONFIGS = {
    "model_type": ("gemma2", "m: config.json: model_type='gemma2': must be llama or mistral"),
    "hidden_act": ("gelu", "m: config.json: hidden_act='gelu': must be silu"),
    "rope_scaling": ({"rope_type": "llama3"}, "m: config.json: rope_scaling={'rope_type': 'llama3'}: must be None"),
    "rope_parameters": ({"rope_type": "yarn"}, "m: config.json: rope_type='yarn': must be default"),
    "sliding_window": (4096, "m: config.json: sliding_window=4096: must be None"),
    "num_hidden_layers": (0, "m: config.json: num_hidden_layers=0: must be a number above 0"),
    "hidden_size": ("x", "m: config.json: hidden_size='x': must be a number above 0"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_models_without_programs_are_refused(name, tmp_path):
    value, line = CONFIGS[name]
    own = tmp_path / "m"
    folder(own, "awq")
    file = own / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(ParamError) as e:
        open_model(own)
    assert str(e.value).startswith(line)
