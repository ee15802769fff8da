"""Video files that tests write."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

SIZE = 64


X264 = "keyint={gop}:min-keyint={gop}:scenecut=0:bframes=0:ref=1:weightp=0:threads=1"


def texture(n: int, step: int = 3, size: int = SIZE, seed: int = 3) -> list[np.ndarray]:
    """Pictures of noise that moves left by `step` pixels a frame."""
    wide = np.random.default_rng(seed).integers(0, 255, (size // 4, (size + n * step) // 4 + 1, 3)).astype(np.uint8)
    wide = wide.repeat(4, 0).repeat(4, 1)
    return [np.ascontiguousarray(wide[:, i * step : i * step + size]) for i in range(n)]


def write(
    path: Path,
    pictures: list[np.ndarray],
    gop: int = 8,
    codec: str = "libx264",
    x264: str = X264,
    rate: int = 10,
    matrix: tuple[int, ...] = (),  # of display
    pixel: Fraction = Fraction(1),  # width of a pixel to its height
    ticks: list[int] | None = None,  # times of the pictures in units of 1 / rate
    sound: str = "",  # codec of a second stream, which is as long
) -> Path:
    with av.open(f"file:{path}", "w") as out:
        stream = out.add_stream(codec, rate=rate)
        stream.height, stream.width = pictures[0].shape[:2] if pictures else (SIZE, SIZE)
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.options = {"x264-params": x264.format(gop=gop)} if codec == "libx264" else {}
        stream.codec_context.sample_aspect_ratio = pixel
        if matrix:
            stream.set_display_matrix(matrix)
        heard = out.add_stream(sound, rate=48000) if sound else None
        out.start_encoding()
        for i, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if ticks:
                frame.pts, frame.time_base = ticks[i], Fraction(1, rate)
            out.mux(stream.encode(frame))
            if heard:
                silence = av.AudioFrame.from_ndarray(np.zeros((1, 48000 // rate), np.float32), "fltp", "mono")
                silence.sample_rate, silence.pts, silence.time_base = 48000, i * 48000 // rate, Fraction(1, 48000)
                out.mux(heard.encode(silence))
        out.mux(stream.encode())
        out.mux(heard.encode() if heard else [])
    return path


def without_packets(path: Path, output: Path, lost: int) -> Path:
    """A copy of a stream that lacks its first packets."""
    with av.open(str(path)) as source, av.open(str(output), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for i, packet in enumerate(source.demux(source.streams.video[0])):
            if i >= lost and packet.size:
                packet.stream = stream
                out.mux(packet)
    return output
