"""Traces of the user's own model: run the model of a Hugging Face folder frame by frame and record Q, K and V.

Two kinds of folder work:

- **Decoder** (`DECODERS`): a text model. DINOv2 encodes the frames, and `golden.inputs.vision.Projector` maps the
  tokens into the decoder's embedding space, as in `golden.inputs.trace_recorder.record`. This projector is not
  trained: it only matches principal components. So structure and spread of the keys are the decoder's, but their
  meaning is not. Do not measure accuracy with such a trace.
- **Image or video model** (`IMAGE_MODELS`): it brings its own image processor, vision tower and trained projector.
  Every frame is an image of its own in the prompt, in order, as it would arrive in a stream. Qwen's video input is not
  used, because it merges two frames into one. The model decides how many tokens a frame has. The block of a frame
  holds the text that the prompt puts between two images (e.g. `<|vision_end|><|vision_start|>`) and the frame's visual
  tokens.

How recording works: transformers calls attention through its `AttentionInterface`, and this module registers a function
there. The function sees the queries, keys and values of every layer, after the rotary embedding and any norm or bias
of the architecture. It records those of the new tokens and calls scaled-dot-product attention. So this module rebuilds
no part of an architecture.

`golden` depends on NumPy only: PyTorch and transformers (extra `hf`) are imported when a folder is loaded.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs import trace_recorder, video, vision
from openvrex.golden.inputs.finite import check_weights
from openvrex.golden.inputs.trace import STAGES, Trace, TraceError
from openvrex.golden.inputs.trace_model import Model
from openvrex.golden.text_files import read_text

DECODERS = ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "granite", "olmo2")
IMAGE_MODELS = ("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
ATTENTION = "openvrex"  # name of the recording attention in transformers
MARK = "<<frames>>"  # placeholder of the frames in a decoder's rendered chat template
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # a tokenizer needs one of these files
WEIGHTS = ("*.safetensors", "*.bin")
PIXELS = ("pixel_values", "image_grid_thw", "image_sizes")  # outputs of an image processor that vision towers take
SAMPLE = 16384  # embeddings to fit the projector on, evenly spaced in the vocabulary
UNTRAINED = (
    "visual tokens are DINOv2's through an untrained projector: the keys' structure is the decoder's, "
    "their content is not; read no accuracy from them"
)
OWN = "visual tokens are the model's own: its image processor, vision tower and projector, every frame an image"


class FolderModel:
    """The model of a Hugging Face folder, in fp32 on the CPU, run block by block over its own KV cache.

    `layers` are the layers to record. Unless `whole`, the layers above the last of them are neither loaded nor run.
    `step` takes the next block of n tokens and fills `tap[layer]` with queries [n, heads, head size], keys and values
    [n, KV heads, head size]. They are fp32, queries and keys post-rotary. Nothing is downloaded, and no code of
    the folder is run.

    Raises `TraceError`, a message of one line, for

    * missing PyTorch or transformers,
    * a missing or bad config.json,
    * an architecture that is neither in `DECODERS` nor in `IMAGE_MODELS`,
    * missing, incomplete or broken weights,
    * an unreadable tokenizer or image processor.

    Raises `ParamError` for a layer out of range.
    """

    def __init__(self, folder: str | Path, layers: tuple[int, ...], whole: bool):
        self.folder = Path(folder)
        self.name = self.folder.resolve().name
        self.kind, self.architecture = self._architecture()
        self.sees = self.kind in IMAGE_MODELS
        self._torch, self._transformers = _libraries()
        config = self._read("AutoConfig", "config.json")
        text = config.get_text_config()
        depth, self.heads = text.num_hidden_layers, text.num_attention_heads
        ok = bool(layers) and list(layers) == sorted(set(layers)) and layers[0] >= 0 and layers[-1] < depth
        check(ok, "layers", layers, f"must be ascending numbers from 0 to {depth - 1}, the layers of {self.name}")
        types, window = getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
        sliding = [window is not None and (types is None or types[i] == "sliding_attention") for i in range(depth)]
        self.windows = {i: window for i in layers if sliding[i]}  # layers with a sliding window -> its tokens
        if not whole:
            text.num_hidden_layers = layers[-1] + 1
            if types is not None:
                text.layer_types = types[: layers[-1] + 1]
        self.limit = text.max_position_embeddings
        self._epsilon, self._scaling = float(text.rms_norm_eps), dict(text.rope_parameters)
        self.tokenizer = None
        if any((self.folder / name).is_file() for name in TOKENIZERS):
            self.tokenizer = self._read("AutoTokenizer", "its tokenizer")
        elif self.sees:
            raise TraceError(
                f"{self.name}: no tokenizer ({', '.join(TOKENIZERS)}), which the prompt around images needs"
            )
        if self.sees:
            self._processor = self._read("AutoImageProcessor", "its image processor")
            self._image = config.image_token_id
        self.model = self._load(config)
        decoder = self.model.get_decoder()
        decoder.set_attn_implementation(ATTENTION)
        # Such a model has positions of three axes, which are not token numbers.
        self._axes = hasattr(self.model.model, "get_rope_index")
        self.tap: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        for module in decoder.modules():
            if hasattr(module, "layer_idx"):
                module.tap = self.tap
        start = text.bos_token_id if self.tokenizer is None else self.tokenizer.bos_token_id
        self._start = [] if start is None or start >= text.vocab_size else [start]
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        ends += [getattr(config, name, None) for name in ("image_token_id", "video_token_id")]
        self.never = [i for i in ends if i is not None and i < text.vocab_size]  # tokens never to generate
        self._position = 0  # position of the next token, if positions are not token numbers
        self._cache: Any = None  # transformers' KV cache

    def _architecture(self) -> tuple[str, str]:
        """Model type and architecture that config.json names; raises `TraceError` for one that is not supported."""
        path = self.folder / "config.json"
        if not path.is_file():
            raise TraceError(f"{self.folder}: no config.json in it; give the folder of a Hugging Face model")
        try:
            config = json.loads(read_text(path))
            kind = config["model_type"]
            name = (config.get("architectures") or [kind])[0]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise TraceError(f"{self.name}: config.json names no model_type; download the folder again") from None
        if kind not in DECODERS + IMAGE_MODELS:
            known = ", ".join(DECODERS + IMAGE_MODELS)
            raise TraceError(f"{self.name}: {name} ({kind}) is not supported; use one of {known}")
        return kind, name

    def _read(self, auto: str, what: str, **options: Any) -> Any:
        """Let the class `auto` of transformers read the folder, offline and without running the folder's code.

        Raises `TraceError`, in which `what` names the part that cannot be read.
        """
        try:
            cls = getattr(self._transformers, auto)
            return cls.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False, **options)
        except Exception as e:  # a damaged file can make the libraries raise anything
            raise TraceError(f"{self.name}: {what} cannot be used ({_first_line(e)})") from None

    def _load(self, config: Any) -> Any:
        """The model with its weights.

        Raises `TraceError` if weights are missing or have another shape, and `ValueError` for one that is not finite.
        """
        if not any(True for pattern in WEIGHTS for _ in self.folder.glob(pattern)):
            raise TraceError(f"{self.name}: no weights in it ({' or '.join(WEIGHTS)}); download the whole folder")
        auto = "AutoModelForImageTextToText" if self.sees else "AutoModelForCausalLM"
        options = {"config": config, "dtype": self._torch.float32, "output_loading_info": True}
        model, info = self._read(auto, "its weights", **options)
        bad = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"], *info["error_msgs"])))
        if bad:
            what = f"{len(bad)} of its weights are missing or of another shape ({bad[0]})"
            raise TraceError(f"{self.name}: {what}; download the folder again")
        for name, w in model.state_dict().items():
            if w.is_floating_point() and not w.isfinite().all():
                check_weights(self.name, name, w.numpy())
        return model.eval()

    def constants(self, layers: tuple[int, ...]) -> Model:
        """The model's constants for the trace of these `layers`. Call it after the last block."""
        decoder = self.model.get_decoder()
        turns = decoder.rotary_emb
        # Some scalings change the frequencies as the stream grows. Then no one set of frequencies fits all keys.
        fixed = self._torch.equal(turns.inv_freq, turns.original_inv_freq) and not self._axes
        return Model(
            epsilon=self._epsilon,
            rotary_base=float(self._scaling["rope_theta"]),
            frequencies=tuple(turns.inv_freq.tolist()) if fixed else None,
            turned=tuple(bool(getattr(decoder.layers[i].self_attn, "use_rope", True)) for i in layers),
            scaling={name: value for name, value in self._scaling.items() if name != "rope_theta"},
        )

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file of the folder that influences the numbers, by file name."""
        found = {f for pattern in ("*.json", "*.jinja", "tokenizer.model", *WEIGHTS) for f in self.folder.glob(pattern)}
        return {f.name: video.digest(f) for f in sorted(found)}

    def prompt(self, question: str) -> tuple[list[int], list[int], list[int]]:
        """The text around the frames, as token ids: before the first, between two frames, and after the last.

        The ids come from the folder's chat template. Only an image model has text between frames. Without a template
        the text is a start token before the frames and the question on a new line after them. Without a tokenizer it
        is a start token alone. Raises `TraceError` for a template that fails or does not show each frame once.
        """
        tokenizer, words = self.tokenizer, "\n" + question
        if tokenizer is None:
            return self._start, [], []
        if not tokenizer.chat_template:
            return self._start, [], tokenizer.encode(words, add_special_tokens=False)
        mark = MARK
        content: str | list[dict[str, str]] = MARK + words
        if self.sees:
            mark = tokenizer.convert_ids_to_tokens(self._image)
            content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": words}]
        messages = [{"role": "user", "content": content}]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as e:  # a template is a program by the folder's author and can raise anything
            raise TraceError(f"{self.name}: its chat template fails ({_first_line(e)}); mend or remove it") from None
        parts = text.split(mark)
        if len(parts) != (3 if self.sees else 2):
            raise TraceError(f"{self.name}: its chat template does not show each frame once; mend or remove it")
        between = parts[1] if self.sees else ""
        before, between, after = (tokenizer.encode(t, add_special_tokens=False) for t in (parts[0], between, parts[-1]))
        return before, between, after

    def embeddings(self) -> np.ndarray:
        """Embeddings of at most `SAMPLE` tokens that are evenly spaced in the vocabulary, fp32 [n, width]."""
        table = self.model.get_input_embeddings()
        ids = self._torch.arange(0, table.num_embeddings, -(-table.num_embeddings // SAMPLE))
        with self._torch.inference_mode():
            return table(ids).numpy()

    def see(self, picture: np.ndarray) -> tuple[list[int], dict]:
        """Encode an RGB picture, uint8 [height, width, 3].

        Returns the ids of its image tokens and the features that `step` puts in their place.
        """
        out = self._processor(images=[picture], return_tensors="pt")
        pixels = {name: out[name] for name in PIXELS if name in out}
        with self._torch.inference_mode():
            seen = self.model.get_image_features(**pixels, return_dict=True)
        n = sum(x.shape[:-1].numel() for x in seen.pooler_output)
        return [self._image] * n, {"outputs": seen, "grid": pixels.get("image_grid_thw")}

    def step(self, ids: list[int] | None = None, x: np.ndarray | None = None, seen: dict | None = None) -> np.ndarray:
        """Run the next block and return the logits of its last token, [vocabulary].

        The block is either token ids or embeddings `x` [n, width]. `seen` holds the features of the image tokens among
        the ids, from `see`.
        """
        torch = self._torch
        inputs: dict[str, Any] = {}
        if x is None:
            inputs["input_ids"] = torch.tensor([ids])
        else:
            inputs["inputs_embeds"] = torch.from_numpy(np.ascontiguousarray(x, np.float32))[None]
        if seen is not None:
            inputs["mm_encoder_outputs"] = {"image": seen["outputs"]}
        if self._axes:  # an image has fewer positions than tokens
            kinds = (inputs["input_ids"] == self._image).int()
            grid = None if seen is None else seen["grid"]
            at, _ = self.model.model.get_rope_index(inputs["input_ids"], mm_token_type_ids=kinds, image_grid_thw=grid)
            inputs["position_ids"] = at + self._position
            self._position = int(inputs["position_ids"].max()) + 1
        self.tap.clear()
        with torch.inference_mode():
            out = self.model(**inputs, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = out.past_key_values
        return out.logits[0, -1].numpy()


def record(
    folder: str | Path,
    clip: str | Path,
    frames: int = 48,
    tokens: int | None = None,
    layers: Iterable[int] = (0, 1, 2),
    fps: float | None = None,
    queries: int | None = None,
    values: bool = True,
    question: str = "",
    generate: int = 0,
    fit: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trace:
    """Run a video through the model of a Hugging Face folder and record a trace of `layers`.

    The arguments are those of `golden.inputs.trace_recorder.record`, with these differences:

    * The folder's chat template around the frames is the prompt. A question needs the folder's tokenizer.
    * For a decoder, `tokens` per frame are 36 by default. An image model sets the number itself, so leave it out.
    * Only the layers up to the last recorded one are loaded (all to generate), at four bytes per weight.

    If a model scales its scores by another factor than 1 / sqrt(head size), the recorded queries contain the
    difference. So q k / sqrt(head size) is always the score. `provenance` states the origin of the visual tokens
    (`content`), the layers with a sliding window (`decoder.windows`), and the SHA-256 of the folder's files.

    The same arguments on the same machine with the same number of threads give the same bytes.

    Raises `ParamError` for an argument that cannot work, `VideoError` for a bad input and `TraceError` for a bad
    folder.
    """
    layers = tuple(layers)
    trace_recorder.check_numbers(frames, fps, queries, generate, fit)
    path = video.locate(clip)
    next(video.frames(path, 1))  # a bad input fails here, before the model is loaded
    model = FolderModel(folder, layers, whole=generate > 0)
    if question and model.tokenizer is None:
        raise TraceError(f"{model.name}: no tokenizer ({', '.join(TOKENIZERS)}) for the question; leave --question out")
    before, between, after = model.prompt(question)
    after = after if question or generate else []

    def fits(n: int) -> None:
        # Raise `ParamError` unless frames of n tokens fit into the model's positions.
        most = (model.limit - len(before) - len(after) - generate) // n
        what = f"must be at most {most}: {model.name} has {model.limit} positions for the text and frames of {n} tokens"
        check(frames <= most, "frames", frames, what)

    if model.sees:
        check(tokens is None, "tokens", tokens, f"must be left out: {model.name} sets the tokens per frame itself")
        blocks = _seen(model, video.frames(path, frames, fps), between)
        own = f"of {model.name}"
        source: dict[str, Any] = {"content": OWN, "vision": {"model": own}, "projector": {"kind": own}}
    else:
        tokens = 36 if tokens is None else tokens
        vision.check_tokens(tokens)
        fits(tokens)
        pictures = video.frames(path, frames, fps, vision.IMAGE)
        blocks, source = _projected(model, pictures, tokens, fit, lambda done: progress(done, 2 * frames))

    taken = _Recording(model, layers, queries)
    ahead = source["projector"].get("fit_frames")  # frames encoded before the first one is taken
    done = 0
    for block in blocks:
        if done == 0:
            n = len(block["ids"] if "ids" in block else block["x"])
            fits(n)
            if before:
                taken.take("prompt", ids=before)
        logits = taken.take("frame", **block)
        done += 1
        progress(*(done, frames) if ahead is None else (done + max(done, ahead), 2 * frames))
    if after:
        logits = taken.take("question", ids=after)
    answer = taken.generate(logits, generate)
    return taken.trace(
        values,
        {
            "video": {"name": str(clip) if str(clip) in video.CLIPS else path.name, "sha256": video.digest(path)},
            "frames": done,
            "tokens_per_frame": n,
            "fps": fps,
            "prompt": [before, between, after],
            "question": question,
            "answer": model.tokenizer.decode(answer) if model.tokenizer else " ".join(map(str, answer)),
            **source,
            **_versions(model),
        },
    )


def _versions(model: FolderModel) -> dict:
    """The provenance of a trace apart from its input: the model's files and the versions of the packages."""
    return {
        "decoder": {
            "model": f"{model.name} ({model.architecture})",
            "windows": {str(i): w for i, w in model.windows.items()},
            "sha256": model.digests(),
        },
        "packages": {p: metadata.version(p) for p in ("av", "ml_dtypes", "numpy", "torch", "transformers")},
    }


class _Recording:
    """Runs a model block by block and keeps the queries, keys and values of its layers."""

    def __init__(self, model: FolderModel, layers: tuple[int, ...], queries: int | None):
        self.model, self.layers, self.queries = model, layers, queries
        self.stages: list[int] = []  # stage of each block
        self.q: deque[np.ndarray] = deque()  # queries of the last blocks, [layers, n, heads, head size] each
        self.kv: list[list[np.ndarray]] = []  # keys and values of each block, [layers, n, KV heads, head size] each

    def take(self, stage: str, **block: Any) -> np.ndarray:
        """Run and record one block of a stage (the arguments of `FolderModel.step`); returns its logits."""
        logits = self.model.step(**block)
        tap = self.model.tap
        new = [np.stack([tap[i][j] for i in self.layers]).astype(ml_dtypes.bfloat16) for j in range(3)]
        self.stages.append(STAGES.index(stage))
        self.q.append(new[0])
        self.kv.append(new[1:])
        if stage in ("prompt", "frame") and self.queries is not None and len(self.q) > self.queries:
            self.q.popleft()
        return logits

    def generate(self, logits: np.ndarray, n: int) -> list[int]:
        """Generate `n` tokens greedily, from the logits of the last block; returns their ids."""
        answer = []
        for _ in range(n):
            logits[self.model.never] = -np.inf  # no end token, so that the answer has the requested length
            answer.append(int(logits.argmax()))
            logits = self.take("generation", ids=answer[-1:])
        return answer

    def trace(self, values: bool, provenance: dict) -> Trace:
        """The trace of all recorded blocks, with V only if `values`."""
        k, v = (np.concatenate(x, axis=1) for x in zip(*self.kv, strict=True))
        empty = np.zeros((len(self.layers), 0, self.model.heads, k.shape[-1]), k.dtype)
        return Trace(
            layers=self.layers,
            k=k,
            q=np.concatenate([empty, *self.q], axis=1),
            v=v if values else None,
            offsets=np.concatenate([[0], np.cumsum([x.shape[1] for x, _ in self.kv])]).astype(np.int32),
            stages=np.array(self.stages, np.uint8),
            provenance=provenance,
            model=self.model.constants(self.layers),
        )


def _projected(
    model: FolderModel, pictures: Iterator[np.ndarray], tokens: int, fit: int, progress: Callable[[int], None]
) -> tuple[Iterator[dict], dict]:
    """The blocks of a text decoder: the pictures through DINOv2 and the projector.

    Returns the blocks as arguments of `FolderModel.step`, and their description for the provenance. It encodes the
    first `fit` pictures at once to fit the projector, and calls `progress` with the number encoded so far.
    """
    encoder = vision.VisionEncoder()
    pooled = (vision.pool(encoder(p), tokens) for p in pictures)
    head = []
    for x in islice(pooled, fit):
        head.append(x)
        progress(len(head))
    projector = vision.Projector.fit(np.concatenate(head), model.embeddings())
    return ({"x": projector(x)} for x in chain(head, pooled)), {
        "content": UNTRAINED,
        "vision": {"model": "DINOv2 ViT-S/14", **trace_recorder.source(vision.MODEL)},
        "projector": {"kind": "principal components, variances matched, not trained", "fit_frames": len(head)},
    }


def _seen(model: FolderModel, pictures: Iterator[np.ndarray], between: list[int]) -> Iterator[dict]:
    """The blocks of an image model, one per picture, as arguments of `FolderModel.step`."""
    lead: list[int] = []  # token ids before the picture
    for picture in pictures:
        ids, seen = model.see(picture)
        yield {"ids": lead + ids, "seen": seen}
        lead = between


def _first_line(e: Exception) -> str:
    """The first line of an exception's message that is not blank, or the name of its type."""
    return next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)


def _libraries() -> tuple:
    """Import PyTorch and transformers, silence them, and register the recording attention.

    Raises `TraceError` if they are not installed.
    """
    try:
        import torch
        import transformers
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import sdpa_mask
    except ImportError:
        fix = "run 'make hf' or pip install 'openvrex[hf]'"
        raise TraceError(f"a Hugging Face folder needs PyTorch and transformers: {fix}") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    def attention(module, query, key, value, mask, scaling, **options):
        n, size = query.shape[2:]  # n new tokens; keys and values also hold those of the cache
        blocks = query * (scaling * size**0.5), key[:, :, -n:], value[:, :, -n:]
        module.tap[module.layer_idx] = tuple(x[0].transpose(0, 1).numpy() for x in blocks)
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)

    transformers.AttentionInterface.register(ATTENTION, attention)
    transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    return torch, transformers
