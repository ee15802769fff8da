"""Traces of the user's own model: a Hugging Face folder run frame by frame, its queries, keys and values recorded.

PyTorch and transformers (extra `hf`) are imported when a folder is loaded and not before: `golden` stays NumPy.

Attention is tapped where transformers hands it over: a function registered with its `AttentionInterface` sees every
layer's queries and keys after rotary (and after whatever norm or bias the architecture has) and its values, records
the new tokens', and calls scaled-dot-product attention. Nothing of an architecture is rebuilt here.

Two kinds of folder:

- **decoder** (`DECODERS`): it has no eyes. Visual tokens are DINOv2's through `golden.inputs.vision.Projector`, as in
  `golden.inputs.trace.record`: principal components matched to those of the decoder's embeddings, not trained.
  Structure and spread of the keys are then the decoder's; what they mean is not, and no accuracy may be read from it.
- **image or video model** (`IMAGE_MODELS`): its own image processor, vision tower and trained projector. Every frame
  is an image of its own in the prompt, in order, as it would arrive in a stream; Qwen's video input, which merges two
  frames into one, is not used. How many tokens a frame has is the folder's affair. A frame's block holds what the
  prompt puts between two images (e.g. `<|vision_end|><|vision_start|>`) and its visual tokens.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from itertools import chain, islice
from pathlib import Path

import ml_dtypes
import numpy as np

from golden.function_params import check
from golden.inputs import trace, video, vision
from golden.inputs.trace import STAGES, Trace, TraceError
from golden.inputs.trace_model import Model

DECODERS = ("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "granite", "olmo2")
IMAGE_MODELS = ("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
ATTENTION = "openvrex"  # name of the tapped attention in transformers
MARK = "<<frames>>"  # stands for the frames while a decoder's chat template is rendered
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of them makes a tokenizer
WEIGHTS = ("*.safetensors", "*.bin")
PIXELS = ("pixel_values", "image_grid_thw", "image_sizes")  # of an image processor, what vision towers take
SAMPLE = 16384  # embeddings that the projector is fitted on, evenly spaced in the vocabulary
UNTRAINED = (
    "visual tokens are DINOv2's through an untrained projector: the keys' structure is the decoder's, "
    "their content is not; read no accuracy from them"
)
OWN = "visual tokens are the model's own: its image processor, vision tower and projector, every frame an image"


class FolderModel:
    """A model of a Hugging Face folder, fp32 on the processor, run block by block over its own KV cache.

    `layers` are those to record; unless `whole`, layers above the last of them are neither loaded nor run. `step`
    takes the next block and leaves `tap[layer]`: queries [n, heads, head size], keys and values [n, KV heads, head
    size], fp32, post-rotary. Nothing is downloaded and no code of the folder is run.

    Raises `TraceError`, one line: PyTorch or transformers missing, no or a bad config.json, an architecture that is not
    among `DECODERS` and `IMAGE_MODELS`, weights missing, incomplete or broken, tokenizer or image processor
    unreadable. `ParamError`: a layer out of range.
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
        check(ok, "layers", layers, f"must be rising numbers from 0 to {depth - 1}, the layers of {self.name}")
        types, window = getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
        sliding = [window is not None and (types is None or types[i] == "sliding_attention") for i in range(depth)]
        self.windows = {i: window for i in layers if sliding[i]}  # layers that attend to so many tokens only
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
        self._axes = hasattr(self.model.model, "get_rope_index")  # positions have three, and are not token numbers
        self.tap: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        for module in decoder.modules():
            if hasattr(module, "layer_idx"):
                module.tap = self.tap
        start = text.bos_token_id if self.tokenizer is None else self.tokenizer.bos_token_id
        self._start = [] if start is None or start >= text.vocab_size else [start]
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        ends += [getattr(config, name, None) for name in ("image_token_id", "video_token_id")]
        self.never = [i for i in ends if i is not None and i < text.vocab_size]  # not to be generated
        self._position = 0  # of the next token, where positions are not token numbers
        self._cache = None

    def _architecture(self) -> tuple[str, str]:
        path = self.folder / "config.json"
        if not path.is_file():
            raise TraceError(f"{self.folder}: no config.json in it; give the folder of a Hugging Face model")
        try:
            config = json.loads(path.read_text())
            kind = config["model_type"]
            name = (config.get("architectures") or [kind])[0]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise TraceError(f"{self.name}: config.json names no model_type; download the folder again") from None
        if kind not in DECODERS + IMAGE_MODELS:
            known = ", ".join(DECODERS + IMAGE_MODELS)
            raise TraceError(f"{self.name}: {name} ({kind}) is not supported; these are: {known}")
        return kind, name

    def _read(self, auto: str, what: str, **options):
        """What a class of transformers reads of the folder, offline and without running its code."""
        try:
            cls = getattr(self._transformers, auto)
            return cls.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False, **options)
        except Exception as e:  # whatever a damaged file makes the libraries raise
            raise TraceError(f"{self.name}: {what} cannot be used ({_first_line(e)})") from None

    def _load(self, config):
        if not any(True for pattern in WEIGHTS for _ in self.folder.glob(pattern)):
            raise TraceError(f"{self.name}: no weights in it ({' or '.join(WEIGHTS)}); download the whole folder")
        auto = "AutoModelForImageTextToText" if self.sees else "AutoModelForCausalLM"
        options = {"config": config, "dtype": self._torch.float32, "output_loading_info": True}
        model, info = self._read(auto, "its weights", **options)
        bad = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"], *info["error_msgs"])))
        if bad:
            what = f"{len(bad)} of its weights are missing or of another shape ({bad[0]})"
            raise TraceError(f"{self.name}: {what}; download the folder again")
        return model.eval()

    def constants(self, layers: tuple[int, ...]) -> Model:
        """What the trace says of the model; `layers` are those recorded. To be called after the last block."""
        decoder = self.model.get_decoder()
        turns = decoder.rotary_emb
        # Some scalings change frequencies as the stream grows: then no one set turns all of its keys.
        fixed = self._torch.equal(turns.inv_freq, turns.original_inv_freq) and not self._axes
        return Model(
            epsilon=self._epsilon,
            rotary_base=float(self._scaling["rope_theta"]),
            frequencies=tuple(turns.inv_freq.tolist()) if fixed else None,
            turned=tuple(bool(getattr(decoder.layers[i].self_attn, "use_rope", True)) for i in layers),
            scaling={name: value for name, value in self._scaling.items() if name != "rope_theta"},
        )

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files that the numbers come from, by name."""
        found = {f for pattern in ("*.json", "*.jinja", "tokenizer.model", *WEIGHTS) for f in self.folder.glob(pattern)}
        return {f.name: video.digest(f) for f in sorted(found)}

    def prompt(self, question: str) -> tuple[list[int], list[int], list[int]]:
        """Token ids before the first frame, between two frames of an image model, and after the last frame.

        From the folder's chat template where there is one; else a start token, nothing, and the question on a new line.
        Without a tokenizer a start token alone.
        """
        tokenizer, words = self.tokenizer, "\n" + question
        if tokenizer is None:
            return self._start, [], []
        if not tokenizer.chat_template:
            return self._start, [], tokenizer.encode(words, add_special_tokens=False)
        mark, content = MARK, MARK + words
        if self.sees:
            mark = tokenizer.convert_ids_to_tokens(self._image)
            content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": words}]
        messages = [{"role": "user", "content": content}]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as e:  # a template is a program of the folder's author
            raise TraceError(f"{self.name}: its chat template fails ({_first_line(e)}); mend or remove it") from None
        parts = text.split(mark)
        if len(parts) != (3 if self.sees else 2):
            raise TraceError(f"{self.name}: its chat template does not show the frames once each; mend or remove it")
        between = parts[1] if self.sees else ""
        before, between, after = (tokenizer.encode(t, add_special_tokens=False) for t in (parts[0], between, parts[-1]))
        return before, between, after

    def embeddings(self) -> np.ndarray:
        """Embeddings of at most `SAMPLE` tokens, evenly spaced in the vocabulary, fp32 [n, width]."""
        table = self.model.get_input_embeddings()
        ids = self._torch.arange(0, table.num_embeddings, -(-table.num_embeddings // SAMPLE))
        with self._torch.inference_mode():
            return table(ids).numpy()

    def see(self, picture: np.ndarray) -> tuple[list[int], dict]:
        """An RGB picture [height, width, 3] as image token ids, and what `step` puts in their place."""
        out = self._processor(images=[picture], return_tensors="pt")
        pixels = {name: out[name] for name in PIXELS if name in out}
        with self._torch.inference_mode():
            seen = self.model.get_image_features(**pixels, return_dict=True)
        n = sum(x.shape[:-1].numel() for x in seen.pooler_output)
        return [self._image] * n, {"outputs": seen, "grid": pixels.get("image_grid_thw")}

    def step(self, ids: list[int] | None = None, x: np.ndarray | None = None, seen: dict | None = None) -> np.ndarray:
        """Take the next block, token ids or embeddings [n, width]; returns the last token's logits [vocabulary].

        `seen` belongs to the image tokens among the ids.
        """
        torch, inputs = self._torch, {}
        if x is None:
            inputs["input_ids"] = torch.tensor([ids])
        else:
            inputs["inputs_embeds"] = torch.from_numpy(np.ascontiguousarray(x, np.float32))[None]
        if seen is not None:
            inputs["mm_encoder_outputs"] = {"image": seen["outputs"]}
        if self._axes:  # an image takes fewer positions than it has tokens
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
    """Run a video through the model of a Hugging Face folder and record `layers`, as `golden.inputs.trace.record` does.

    The prompt is the folder's chat template around the frames. `tokens` a frame are 36 by default for a decoder; an
    image model sets them itself and refuses a number. A question needs the folder's tokenizer. Where a model scales
    its scores other than by 1 / sqrt(head size), the queries recorded carry the difference, so that
    q k / sqrt(head size) is always the score. `provenance` says what the visual tokens are (`content`), which of the
    layers attend to a sliding window only (`decoder.windows`), and the SHA-256 of the folder's files. Only the layers
    up to the last one recorded are loaded (all to generate): four bytes a weight.

    The same arguments on the same machine with the same number of threads give the same bytes.

    Raises `ParamError` for an argument that cannot work, `VideoError` for the input, `TraceError` for the folder.
    """
    layers = tuple(layers)
    _check_numbers(frames, fps, queries, generate, fit)
    path = video.locate(clip)
    next(video.frames(path, 1))  # a bad input fails here, before any weights are read
    model = FolderModel(folder, layers, whole=generate > 0)
    if question and model.tokenizer is None:
        raise TraceError(f"{model.name}: no tokenizer ({', '.join(TOKENIZERS)}) for the question; leave --question out")
    before, between, after = model.prompt(question)
    after = after if question or generate else []

    def fits(n: int) -> None:
        most = (model.limit - len(before) - len(after) - generate) // n
        what = f"the {model.limit} positions of {model.name} hold {most} frames of {n} tokens beside the text"
        check(frames <= most, "frames", frames, what)

    if model.sees:
        check(tokens is None, "tokens", tokens, f"must be left out: the vision of {model.name} sets the tokens a frame")
        blocks = _seen(model, video.frames(path, frames, fps), between)
        source = {"content": OWN, "vision": {"model": f"of {model.name}"}, "projector": {"kind": f"of {model.name}"}}
    else:
        tokens = 36 if tokens is None else tokens
        vision.check_tokens(tokens)
        fits(tokens)
        pictures = video.frames(path, frames, fps, vision.IMAGE)
        blocks, source = _projected(model, pictures, tokens, fit, lambda done: progress(done, 2 * frames))

    taken = _Recording(model, layers, queries)
    ahead = source["projector"].get("fit_frames")  # encoded before the first is taken
    done = 0
    for block in blocks:
        if done == 0:
            n = len(block.get("ids", block.get("x")))
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


def _check_numbers(frames: int, fps: float | None, queries: int | None, generate: int, fit: int) -> None:
    for name, value, least in (("frames", frames, 1), ("fit", fit, 1), ("generate", generate, 0)):
        check(value >= least, name, value, f"must be at least {least}")
    check(queries is None or queries >= 0, "queries", queries, "must not be negative")
    check(fps is None or 0 < fps < float("inf"), "fps", fps, "must be above 0")


def _versions(model: FolderModel) -> dict:
    """What the numbers of a trace depend on beside its input, for its provenance."""
    return {
        "decoder": {
            "model": f"{model.name} ({model.architecture})",
            "windows": {str(i): w for i, w in model.windows.items()},
            "sha256": model.digests(),
        },
        "packages": {p: metadata.version(p) for p in ("av", "ml_dtypes", "numpy", "torch", "transformers")},
    }


class _Recording:
    """Runs a model stage by stage and keeps what its layers made."""

    def __init__(self, model: FolderModel, layers: tuple[int, ...], queries: int | None):
        self.model, self.layers, self.queries = model, layers, queries
        self.stages, self.q, self.kv = [], deque(), []

    def take(self, stage: str, **block) -> np.ndarray:
        """The logits after a block of a stage."""
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
        """The likeliest `n` tokens, one after the other."""
        answer = []
        for _ in range(n):
            logits[self.model.never] = -np.inf  # the answer has the length asked for
            answer.append(int(logits.argmax()))
            logits = self.take("generation", ids=answer[-1:])
        return answer

    def trace(self, values: bool, provenance: dict) -> Trace:
        """All that was taken, without values if they are not asked for."""
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
    """Blocks of a decoder that does not see, of an encoder's features, and what they are: the source of a trace.

    The first `fit` pictures are encoded at once, for the projector; `progress` is told how many are.
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
        "vision": {"model": "DINOv2 ViT-S/14", **trace.source(vision.MODEL)},
        "projector": {"kind": "principal components, variances matched, not trained", "fit_frames": len(head)},
    }


def _seen(model: FolderModel, pictures: Iterator[np.ndarray], between: list[int]) -> Iterator[dict]:
    """Blocks of `FolderModel.step`, one a picture."""
    lead = []
    for picture in pictures:
        ids, seen = model.see(picture)
        yield {"ids": lead + ids, "seen": seen}
        lead = between


def _first_line(e: Exception) -> str:
    return next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)


def _libraries() -> tuple:
    """PyTorch and transformers, silent, the tapped attention registered; `TraceError` where they are missing."""
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
        n, size = query.shape[2:]  # keys and values include those of the cache
        blocks = query * (scaling * size**0.5), key[:, :, -n:], value[:, :, -n:]
        module.tap[module.layer_idx] = tuple(x[0].transpose(0, 1).numpy() for x in blocks)
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)

    transformers.AttentionInterface.register(ATTENTION, attention)
    transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    return torch, transformers
