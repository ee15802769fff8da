"""CodecSight 6.1.1 on real clips: bytes of sampled frames as JPEG pictures, over those of one H.264 stream.

The paper's baseline sends each sampled frame as a JPEG picture over an uplink of 5 Mbit/s (section 2.2); CodecSight
sends the compressed stream. On one link, times are as bytes.
"""

import tempfile
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress

from openvrex.golden.inputs import video as video_in
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.scripts.quantity import Column

FPS, GOP, UPLINK = 2.0, 16, 5e6  # the paper's sampling, GOP, bits per second
QUANTISERS = (2, 3, 4, 6, 8, 12, 16, 24, 31)  # of FFmpeg's JPEG encoder, finest first
PAPER = 2.12
COLUMNS = {
    "clip": Column("clip"),
    "frames": Column("frames"),
    "stream": Column("H.264, KB a frame", "", 1),
    "psnr": Column("its PSNR", "dB", 1),
    "jpeg": Column("JPEG, KB a frame", "", 1),
    "quantiser": Column("JPEG quantiser"),
    "ratio": Column("JPEG over H.264", "x", 2),
    "raw": Column("YUV 4:2:0 over H.264", "x", 1),
    "seconds": Column("a window of 80 frames, H.264 at 5 Mbit/s", "s", 2),
    "paper": Column("paper", "x", 2),
}
NOTE = (
    f"Frames are sampled at {FPS:g} a second. H.264: one stream, GOP {GOP}, no B-frames, CRF 23. JPEG: every frame "
    "alone, with the coarsest quantiser whose PSNR of luma is no lower than the stream's, or the finest."
)

Planes = tuple[np.ndarray, np.ndarray, np.ndarray]


def draw(clips: dict[str, Path], frames: int, bar: Progress) -> Drawn:
    """A row for each clip."""
    task = bar.add_task("transmission", total=len(clips))
    rows: list[Row] = []
    for clip, path in clips.items():
        rows.append({"clip": clip} | measured(path, frames))
        bar.advance(task)
    title = "CodecSight 6.1.1: bytes of JPEG pictures over those of an H.264 stream"
    paper = f"transmission takes {PAPER} times less time; neither quality nor size of the pictures is stated."
    return Drawn(title, paper, COLUMNS, rows, NOTE, plot)


def measured(path: Path, most: int, fps: float = FPS) -> Row:
    """Bytes of up to `most` frames of a clip in both forms."""
    with tempfile.TemporaryDirectory() as folder:
        stream = Path(folder) / "clip.h264"
        count = video_in.reencode(path, stream, GOP, most, fps)
        size = stream.stat().st_size
        sent = [even(x) for x in video_in.planes(path, most, fps)]
        came = list(video_in.planes(stream))
    quality = psnr((x[0] for x in sent), (x[0] for x in came))
    found = [jpeg(sent, q) for q in QUANTISERS]
    at = max((i for i, (_, own) in enumerate(found) if own >= quality), default=0)
    raw = sum(plane.size for x in sent for plane in x)
    return {
        "frames": count,
        "stream": size / count / 1e3,
        "psnr": quality,
        "jpeg": found[at][0] / count / 1e3,
        "quantiser": str(QUANTISERS[at]),
        "ratio": found[at][0] / size,
        "raw": raw / size,
        "seconds": 80 * 8 * size / count / UPLINK,
        "paper": PAPER,
    }


def even(planes: Planes) -> Planes:
    """Planes less an odd row or column, as the stream has them."""
    y, u, v = planes
    height, width = (n // 2 for n in y.shape)
    return y[: 2 * height, : 2 * width], u[:height, :width], v[:height, :width]


def jpeg(frames: list[Planes], quantiser: int) -> tuple[int, float]:
    """Bytes of all frames as JPEG pictures of one quantiser, and their PSNR."""
    height, width = frames[0][0].shape
    codec = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height, codec.pix_fmt = width, height, "yuvj420p"
    codec.time_base = Fraction(1, 25)
    codec.options = {"qmin": str(quantiser), "qmax": str(quantiser)}
    decoder = av.CodecContext.create("mjpeg", "r")
    size, came = 0, []
    for i, planes in enumerate(frames):
        picture = av.VideoFrame.from_ndarray(np.concatenate([x.ravel() for x in planes]).reshape(-1, width), "yuvj420p")
        picture.pts = i
        for packet in codec.encode(picture):
            size += packet.size
            came += [x.to_ndarray()[:height] for x in decoder.decode(packet)]
    return size, psnr((x[0] for x in frames), came)


def psnr(sent: Iterable[np.ndarray], came: Iterable[np.ndarray]) -> float:
    """Peak signal-to-noise ratio of luma planes, dB over all frames."""
    squares, n = 0.0, 0
    for a, b in zip(sent, came, strict=True):
        squares += float(((a.astype(np.float64) - b) ** 2).sum())
        n += a.size
    return float(10 * np.log10(255**2 * n / max(squares, 1e-9)))


def plot(rows: list[Row]) -> Figure:
    """The ratios as bars, a clip each, and the paper's as a line."""
    figure = Figure((6, 3.5), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(rows))
    axes.bar(at, [r["ratio"] for r in rows], 0.6, label="JPEG of the same PSNR")
    axes.axhline(PAPER, color="k", linestyle="--", label="paper")
    axes.set_xticks(at, [str(r["clip"]) for r in rows])
    axes.set(ylabel="bytes, over H.264")
    axes.legend(fontsize="x-small")
    return figure
