"""The stream: one pass over real H.264 with its motion, types and GOPs, windows, re-encoding. Inputs are made here."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video
from openvrex.golden.inputs.codec import BLOCK, mean_motion, motion_class
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.inputs.video import VideoError
from tb.tests.golden.inputs.video_samples import SIZE, X264, texture, without_packets, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("video")


@pytest.fixture(scope="module")
def moving(folder) -> Path:
    return write(folder / "moving.mkv", texture(20))


# Frames, motion vectors, types, GOPs (CodecSight 3.2)


def test_vectors_point_from_a_block_to_its_prediction_in_quarter_pixels(moving):
    for frame in video.read(moving):
        (blocks,) = frame.motions
        assert blocks.dtype == BLOCK
        if frame.kind == "I":
            assert not len(blocks)
            continue
        inner = (blocks["x"] >= 16) & (blocks["x"] < 32)  # what enters at the right edge has no prediction
        vectors, count = np.unique(blocks[inner][["dx", "dy"]], return_counts=True)
        assert vectors[count.argmax()].tolist() == (12, 0)
        assert (blocks["sad"] == 0).all()


def test_blocks_lie_in_the_picture_and_cover_it_once(moving):
    for frame in video.read(moving):
        seen = np.zeros(frame.size, int)
        for b in frame.motions[0]:
            seen[b["y"] : b["y"] + b["h"], b["x"] : b["x"] + b["w"]] += 1
        assert seen.max() <= 1
        assert seen.sum() == (frame.motions[0]["w"].astype(int) * frame.motions[0]["h"]).sum()
        if frame.kind == "P":
            assert seen.mean() > 0.7  # the rest is intra


def test_types_and_gops_are_those_of_the_stream(moving):
    got = list(video.read(moving))
    assert "".join(f.kind for f in got) == "IPPPPPPPIPPPPPPPIPPP"
    assert [f.gop for f in got] == [i // 8 for i in range(20)]
    assert [f.leads for f in got] == [i % 8 == 0 for i in range(20)]
    assert [f.index for f in got] == list(range(20))
    assert [f.time for f in got] == pytest.approx(np.arange(20) / 10)
    assert {(f.size, f.lost) for f in got} == {((SIZE, SIZE), 0)}


def test_a_sampled_frame_brings_the_motion_of_those_left_out(moving):
    every = list(video.read(moving))
    got = list(video.read(moving, fps=10 / 3))
    assert [f.index for f in got] == [0, 3, 6, 9, 12, 15, 18]
    assert [len(f.motions) for f in got] == [1, 3, 3, 3, 3, 3, 3]
    for f in got[1:]:
        for blocks, source in zip(f.motions, every[f.index - 2 : f.index + 1], strict=True):
            np.testing.assert_array_equal(blocks, source.motions[0])
    assert [f.leads for f in got] == [True, False, False, True, False, False, True]  # 9 and 18 follow I-frames 8, 16


def test_b_frames_bring_vectors_of_both_sides(folder):
    path = write(folder / "b.mkv", texture(12), x264="keyint=12:scenecut=0:bframes=2:b-adapt=0:threads=1")
    kinds = {f.kind: f for f in video.read(path)}
    assert set(kinds) == {"I", "P", "B"}
    dx = kinds["B"].motions[0]["dx"]
    assert (dx > 0).any()
    assert (dx < 0).any()
    with pytest.raises(VideoError, match="b.mkv: frame 1 is a B-frame; re-encode"):
        list(video.read(path, residuals=True))


def test_residuals_are_those_of_the_codec(folder):
    """Equation 2: a block without coded residual equals its prediction, so its sum is 0, at all 16 sub-pixel phases."""
    h, w = 96, 128
    fy, fx = np.fft.fftfreq(h)[:, None], np.fft.rfftfreq(w)
    noise = np.random.default_rng(1).standard_normal((h, w))
    spectrum = np.fft.rfft2(noise) * np.exp(-(fy**2 + fx**2) / 0.12**2)
    steps = [(j, i) for j in range(4) for i in range(4)]
    at = np.cumsum([(0, 0)] + steps + steps, axis=0) / 4
    moved = [np.fft.irfft2(spectrum * np.exp(2j * np.pi * (fy * y + fx * x)), (h, w)) for y, x in at]
    pictures = [np.clip(128 + 60 * m / m.std(), 0, 255).astype(np.uint8)[:, :, None].repeat(3, 2) for m in moved]
    path = write(folder / "phases.mkv", pictures, gop=100, x264=X264 + ":no-deblock=1:qp=42")
    exact, total = np.zeros((4, 4), int), np.zeros((4, 4), int)
    for frame in video.read(path, residuals=True):
        b = frame.motions[0]
        np.add.at(total, (b["dy"] & 3, b["dx"] & 3), 1)
        np.add.at(exact, (b["dy"] & 3, b["dx"] & 3), b["sad"] == 0)
    assert (exact > 0).all()
    assert exact.sum() > 0.7 * total.sum()


@pytest.mark.parametrize("codec", ["mpeg1video", "mpeg2video", "mpeg4"])
def test_residuals_are_those_of_codecs_with_half_pixels(folder, codec):
    """A block without a coded residual equals its prediction: its sum is 0, at all four phases.

    An MPEG-4 frame may round halves down; then a sum is at most the block's pixels.
    """
    h, w = 96, 128
    wide = np.random.default_rng(1).integers(60, 200, (h // 8 + 8, w // 8 + 8)).repeat(8, 0).repeat(8, 1).astype(float)
    for axis in (0, 1):
        wide = sum(np.roll(wide, k, axis) for k in range(9)) / 9
    at = np.cumsum([(0, 0)] + [(j, i) for j in range(2) for i in range(2)] * 4, axis=0)
    twice = [(wide + np.roll(wide, -1, 1)) / 2, (wide + np.roll(wide, -1, 0)) / 2]
    both = (twice[0] + np.roll(twice[0], -1, 0)) / 2
    phases = ((wide, twice[0]), (twice[1], both))
    planes = [phases[y & 1][x & 1][y // 2 :, x // 2 :][:h, :w] for y, x in at.tolist()]
    pictures = [np.round(p).astype(np.uint8)[:, :, None].repeat(3, 2) for p in planes]
    path = write(folder / f"{codec}.mkv", pictures, gop=100, codec=codec, rate=25)
    exact, below = (np.zeros((2, 2), int) for _ in range(2))
    for frame in video.read(path, residuals=True):
        b = frame.motions[0]
        assert not (b["dx"] & 1).any()
        phase = b["dy"] >> 1 & 1, b["dx"] >> 1 & 1
        np.add.at(exact, phase, b["sad"] == 0)
        np.add.at(below, phase, b["sad"] <= b["w"].astype(int) * b["h"])
    assert (exact if codec != "mpeg4" else below).min() > 0


def test_residuals_grow_where_prediction_fails(folder):
    pictures = texture(2, step=0)
    pictures[1] = pictures[1].copy()
    pictures[1][:16, :16] = np.random.default_rng(9).integers(0, 255, (16, 16, 3))
    path = write(folder / "flash.mkv", pictures, x264=X264 + ":qp=20:no-intra=1")
    blocks = list(video.read(path, residuals=True))[1].motions[0]
    changed = (blocks["x"] < 16) & (blocks["y"] < 16)
    pixels = blocks["w"].astype(int) * blocks["h"]
    rest = blocks["sad"][~changed] / pixels[~changed]
    assert rest.max() < 8
    if changed.any():  # an intra block has no entry
        assert (blocks["sad"][changed] / pixels[changed]).max() > 8


# Streams that are not as they should be


def test_a_stream_that_starts_on_a_p_frame_is_shown_from_its_first_i_frame_on(folder, moving):
    path = without_packets(moving, folder / "late.mkv", 3)
    got = list(video.read(path))
    assert "".join(f.kind for f in got) == "IPPPPPPPIPPP"
    assert [f.lost for f in got] == [5] + [0] * 11
    assert [f.gop for f in got] == [0] * 8 + [1] * 4
    whole = list(video.read(moving))[8:]
    assert all((a.picture == b.picture).all() for a, b in zip(got, whole, strict=True))


def test_a_stream_without_an_i_frame_is_an_error(folder, moving):
    path = without_packets(moving, folder / "never.mkv", 17)
    with pytest.raises(VideoError, match="never.mkv: starts within a GOP and holds no I-frame: none of 3 frames"):
        list(video.read(path))


@pytest.fixture(scope="module")
def resized(folder) -> Path:
    parts = [write(folder / f"{size}.h264", texture(6, size=size)) for size in (64, 96)]
    path = folder / "resized.h264"
    path.write_bytes(b"".join(p.read_bytes() for p in parts))
    return path


def test_a_stream_may_change_its_resolution(resized, tmp_path):
    got = list(video.read(resized))
    assert [f.size for f in got] == [(64, 64)] * 6 + [(96, 96)] * 6
    assert [f.picture.shape[:2] for f in got] == [f.size for f in got]
    assert {f.picture.shape for f in video.read(resized, size=28)} == {(28, 28, 3)}
    assert video.reencode(resized, tmp_path / "one.mkv", gop=4) == 12
    assert {f.size for f in video.read(tmp_path / "one.mkv")} == {(64, 64)}


@pytest.mark.parametrize(
    ("codec", "kinds", "moving"),
    [("mjpeg", "I", False), ("libvpx-vp9", "IP", False), ("mpeg4", "IP", True), ("libx264", "IP", True)],
)
def test_which_codecs_export_vectors(folder, codec, kinds, moving):
    path = write(folder / f"{codec}.mkv", texture(6), codec=codec)
    got = list(video.read(path))
    assert {f.kind for f in got} == set(kinds)
    assert any(len(f.motions[0]) for f in got) == moving
    if codec == "mpeg4":  # vectors in half pixels
        dx = np.concatenate([f.motions[0]["dx"] for f in got])
        assert np.bincount(dx[dx >= 0]).argmax() == 12


def test_a_stream_of_one_frame_and_one_of_none(folder):
    (frame,) = video.read(write(folder / "one.mkv", texture(1)))
    assert (frame.kind, frame.gop, frame.leads, len(frame.motions)) == ("I", 0, True, 1)
    with pytest.raises(VideoError, match="none.mkv: .*no frame"):
        list(video.read(write(folder / "none.mkv", [])))


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "h264"])
@pytest.mark.parametrize("share", [0.35, 0.5, 0.9])
def test_a_truncated_file_is_an_error(folder, moving, suffix, share):
    whole, cut = folder / f"whole.{suffix}", folder / f"cut.{suffix}"
    options = {"movflags": "+faststart"} if suffix == "mp4" else {}
    with av.open(str(moving)) as source, av.open(str(whole), "w", options=options) as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    assert len(list(video.read(whole))) == 20
    cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
    with pytest.raises(VideoError, match=f"cut.{suffix}: damaged at frame"):
        list(video.read(cut))


@pytest.mark.parametrize(
    ("suffix", "codec", "sound"),
    [("mkv", "libx264", "aac"), ("mp4", "libx264", "aac"), ("flv", "libx264", "aac"), ("avi", "mpeg4", "mp2")],
)
def test_a_truncated_file_with_sound_is_an_error(folder, suffix, codec, sound):
    """No stream reaches the length that the header states. A video that is shorter than its sound is whole."""
    whole, cut = folder / f"heard.{suffix}", folder / f"cut_heard.{suffix}"
    write(whole, texture(30), codec=codec, sound=sound)
    assert len(list(video.read(whole))) == 30
    cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * 0.6)])
    with pytest.raises(VideoError, match=f"cut_heard.{suffix}: damaged"):
        list(video.read(cut))


# Time stamps


def test_a_gap_in_time_is_a_gap_in_the_sample(folder):
    """Where frames are further apart than the rate, each is taken once, and none is made up for later."""
    ticks = [0, 10, 20, 30, 40, *range(240, 265)]  # one frame a second, a gap of 20 s, ten a second
    path = write(folder / "gap.mkv", texture(30), ticks=ticks)
    assert [f.time for f in video.read(path, fps=2)] == pytest.approx([0, 1, 2, 3, 4, 24, 24.5, 25, 25.5, 26])
    assert len(list(video.read(path, fps=100))) == 30


def test_times_that_the_container_rounds_are_on_the_grid(folder):
    """A frame at 2/30 s has the time 0.067 s in Matroska, and one at 4/30 s the time 0.133 s."""
    path = write(folder / "thirty.mkv", texture(12), rate=30)
    assert [f.index for f in video.read(path, fps=15)] == [0, 2, 4, 6, 8, 10]


def test_b_frames_in_a_container_without_times_of_presentation(folder):
    """AVI has one time per packet, that of decoding; players show frames at those times in the order of display."""
    x264 = "keyint=12:scenecut=0:bframes=2:b-adapt=0:threads=1"
    path = write(folder / "b.avi", texture(12), x264=x264)
    got = list(video.read(path))
    assert "B" in {f.kind for f in got}
    assert [f.time - got[0].time for f in got] == pytest.approx(np.arange(12) / 10)
    assert [f.index for f in video.read(path, fps=5)] == [0, 2, 4, 6, 8, 10]
    late = without_packets(write(folder / "b.mkv", texture(24), x264=x264), folder / "late_b.avi", 5)
    assert np.diff([f.time for f in video.read(late)]) == pytest.approx(0.1)


def test_times_that_fall_are_an_error_where_they_matter(folder):
    parts = [write(folder / f"part{i}.ts", texture(10), ticks=list(range(at, at + 10))) for i, at in enumerate((50, 0))]
    path = folder / "joined.ts"
    path.write_bytes(b"".join(p.read_bytes() for p in parts))
    assert len(list(video.read(path))) == 20
    with pytest.raises(VideoError, match=r"joined.ts: time stamps fall at frame 10, from 0.9 s to -5 s; leave"):
        list(video.read(path, fps=2))


# Display metadata


ONE = 1 << 16


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((0, ONE, -ONE, 0), lambda x: np.rot90(x, -1)),
        ((-ONE, 0, 0, -ONE), lambda x: np.rot90(x, 2)),
        ((0, -ONE, ONE, 0), lambda x: np.rot90(x)),
        ((-ONE, 0, 0, ONE), lambda x: x[:, ::-1]),
        ((0, ONE, ONE, 0), lambda x: x.swapaxes(0, 1)),
    ],
)
def test_pictures_and_blocks_are_turned_as_players_turn_them(folder, matrix, shown, monkeypatch):
    """Where a block lies and where its prediction lies are painted into pictures, which are turned as pictures are."""

    def painted(frame, height, width):
        out = np.zeros((2, height, width), int)
        for n, block in enumerate(frame.motions[0], 1):
            x, y, w, h, dx, dy, _ = block.tolist()
            out[0, y : y + h, x : x + w] = n
            out[1, max(0, y + dy // 4) : y + dy // 4 + h, max(0, x + dx // 4) : x + dx // 4 + w] = n
        return out

    pictures = [x[:48] for x in texture(3, step=4)]
    a, b, c, d = matrix
    turned = write(folder / "turned.mp4", pictures, matrix=(a, b, 0, c, d, 0, 0, 0, 1 << 30))
    with monkeypatch.context() as context:  # the same file as it is coded: another one need not be coded alike
        context.setattr(video.Turn, "of", lambda frame: video.Turn())
        plain = list(video.read(turned))
    assert len(plain[1].motions[0])
    for coded, got in zip(plain, video.read(turned), strict=True):
        want = shown(coded.picture)
        np.testing.assert_array_equal(got.picture, want)
        assert got.size == want.shape[:2]
        for own, other in zip(painted(coded, 48, 64), painted(got, *got.size), strict=True):
            np.testing.assert_array_equal(other, shown(own))
    luma, _, _ = next(video.planes(turned))
    assert luma.shape == next(video.read(turned)).size
    video.reencode(turned, folder / "again.mp4")
    assert [f.size for f in video.read(folder / "again.mp4")] == [f.size for f in video.read(turned)]


def test_a_turn_that_is_no_multiple_of_90_degrees(folder):
    diagonal = 46341, 46341, 0, -46341, 46341, 0, 0, 0, 1 << 30
    with pytest.raises(VideoError, match="diagonal.mp4: frame 0 is shown turned by -45 degrees"):
        next(video.read(write(folder / "diagonal.mp4", texture(1), matrix=diagonal)))


def test_pixels_that_are_not_square_are_stretched(folder):
    path = write(folder / "wide.mkv", texture(2), pixel=Fraction(3, 2))
    assert {f.picture.shape for f in video.read(path)} == {(64, 96, 3)}
    assert {f.picture.shape for f in video.read(path, size=28)} == {(28, 28, 3)}


# Names and streams that FFmpeg takes for something else


@pytest.mark.parametrize("name", ["cam1:2026-01-02T03:04:05.mkv", "http:x.mkv", "50%d.mkv", "-i.mkv", "file:a.mkv"])
def test_a_name_is_a_file_and_no_address(folder, name, monkeypatch):
    path = write(folder / name, texture(2))
    monkeypatch.chdir(folder)
    assert len(list(video.read(name))) == 2
    assert video.reencode(path, path.with_name(f"again-{name}")) == 2


def test_a_cover_and_an_unknown_codec_are_no_video(folder):
    cover = folder / "cover.mp4"
    with av.open(str(cover), "w") as out:
        stream = out.add_stream("mjpeg", rate=1)
        stream.height = stream.width = SIZE
        stream.pix_fmt = "yuvj420p"
        stream.disposition = av.stream.Disposition.attached_pic
        out.mux(stream.encode(av.VideoFrame.from_ndarray(texture(1)[0], format="rgb24")))
        out.mux(stream.encode())
    unknown = write(folder / "unknown.mp4", texture(2))
    unknown.write_bytes(unknown.read_bytes().replace(b"avc1", b"abcd"))
    for path in (cover, unknown):
        with pytest.raises(VideoError, match=f"{path.name}: holds no video stream that can be decoded"):
            list(video.read(path))


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_cannot_be(moving, fps):
    with pytest.raises(ParamError, match=f"fps={fps}"):
        next(video.read(moving, fps=fps))


def test_fallbacks_name_what_is_not_as_it_should_be(folder, moving, resized):
    assert video.fallbacks(video.read(moving)) == []
    assert video.fallbacks([]) == []
    late = without_packets(moving, folder / "later.mkv", 3)
    assert video.fallbacks(video.read(late)) == ["starts within a GOP: 5 packets before its first I-frame are left out"]
    (resolution,) = video.fallbacks(video.read(resized, size=28))
    assert resolution == "changes its resolution (64x64, 96x96): every picture is stretched alike"
    assert video.fallbacks(video.read(write(folder / "single.mkv", texture(1)))) == []


# Motion of a stream (CodecSight 6.1.4)


def test_mean_motion_by_definition():
    """Every pixel counts once with its block's vector, over all frames; frames without vectors do not."""
    blocks = np.array([(0, 0, 16, 16, 12, 16, 0), (16, 0, 8, 16, 0, 0, 0), (24, 0, 4, 4, -4, 0, 0)], BLOCK)
    shown = [replace(fake(0, 9), motions=m) for m in ((blocks[:1], blocks[1:]), (blocks[:0],))]
    assert mean_motion(shown) == pytest.approx((5 * 256 + 0 * 128 + 1 * 16) / (256 + 128 + 16))
    assert mean_motion([fake(0, 9)]) is None
    assert [motion_class(x) for x in (None, 0, 0.49, 0.5, 1.99, 2, 99)] == [
        None, "low", "low", "medium", "medium", "high", "high"
    ]  # fmt: skip


@pytest.mark.parametrize(("step", "name"), [(0, "low"), (1, "medium"), (3, "high")])
def test_motion_of_a_real_stream(folder, step, name):
    pixels = mean_motion(video.read(write(folder / f"by{step}.mkv", texture(12, step))))
    assert pixels == pytest.approx(step, abs=0.25)
    assert motion_class(pixels) == name


# Windows


def fake(i: int, gop: int) -> Frame:
    return Frame(i, "P", i // gop, i % gop == 0, None, (8, 8), (), 0, np.zeros((1, 1, 3), np.uint8))


@given(n=st.integers(0, 40), w=st.integers(1, 12), s=st.integers(1, 12), gop=st.integers(1, 9), whole=st.booleans())
@settings(max_examples=150)
def test_window_k_holds_frames_ks_to_ks_plus_w(n, w, s, gop, whole):
    s = min(s, w)
    stream = [fake(i, gop) for i in range(n)]
    drawn = []
    got = []
    for window in video.windows((drawn.append(f) or f for f in stream), w, s, whole):
        got.append(window)
        if window.index * s + w <= n:
            assert len(drawn) == window.index * s + w  # given as soon as it is complete
    k, expected, shown = 0, [], 0
    while k * s + w <= n:
        expected.append((k * s, k * s + w))
        shown = k * s + w
        k += 1
    if shown < n:
        expected.append((k * s, n))
    for window, (start, stop) in zip(got, expected, strict=True):
        if whole:
            start -= start % gop
        assert window.start == start
        assert all(a is b for a, b in zip(window.frames, stream[start:stop], strict=True))
    assert {f.index for x in got for f in x.frames} == set(range(n))  # nothing is lost


@pytest.mark.parametrize(("w", "s", "why"), [(0, 1, "w=0"), (4, 0, "s=0"), (4, 5, "s=5: must be 1 to w = 4")])
def test_windows_that_cannot_be(w, s, why):
    with pytest.raises(ParamError, match=why):
        next(video.windows([], w, s))


def test_the_buffer_holds_no_more_than_a_window(moving):
    import weakref

    alive = []
    for window in video.windows(video.read(moving), 6, 2):
        alive += [weakref.ref(f) for f in window.frames[-1:]]
        old = sum(ref() is not None for ref in alive)
        assert old <= 4  # one new reference a window, kept for 6 / 2 windows and the window in hand


# Re-encoding


@pytest.mark.parametrize("gop", [1, 4, 8, 16])
def test_reencoding_gives_the_gop_asked_for_and_no_b_frames(moving, tmp_path, gop):
    out = tmp_path / "out.mp4"
    assert video.reencode(moving, out, gop) == 20
    got = list(video.read(out))
    assert [f.kind for f in got] == ["P" if i % gop else "I" for i in range(20)]
    difference = [np.abs(a.picture.astype(int) - b).mean() for a, b in zip(got, video.frames(moving), strict=True)]
    assert max(difference) < 12


def test_reencoding_samples_first_so_that_the_gop_is_of_sampled_frames(moving, tmp_path):
    assert video.reencode(moving, tmp_path / "a.mkv", 4, fps=5) == 10
    got = list(video.read(tmp_path / "a.mkv"))
    assert "".join(f.kind for f in got) == "IPPPIPPPIP"
    assert [f.time for f in got] == pytest.approx(np.arange(10) / 5)
    assert video.reencode(moving, tmp_path / "b.mkv", 4, limit=3) == 3


def test_reencoding_repeats_to_the_byte(moving, tmp_path):
    for name in ("a.h264", "b.h264"):
        video.reencode(moving, tmp_path / name, 8)
    assert (tmp_path / "a.h264").read_bytes() == (tmp_path / "b.h264").read_bytes()


def test_reencoding_that_fails_leaves_the_old_file(folder, moving, tmp_path):
    out = tmp_path / "out.mkv"
    out.write_bytes(b"old")
    bad = folder / "bad.mkv"
    long = write(folder / "long.mkv", texture(80, step=1))  # more than the encoder looks ahead
    bad.write_bytes(long.read_bytes()[:-900])
    with pytest.raises(VideoError, match="bad.mkv: damaged"):
        video.reencode(bad, out)
    assert [p.name for p in tmp_path.iterdir()] == ["out.mkv"]
    assert out.read_bytes() == b"old"
    with pytest.raises(VideoError, match="out.mkv: cannot be written .*No such file"):
        video.reencode(moving, tmp_path / "absent" / "out.mkv")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"gop": 0}, "gop=0"),
        ({"gop": 2.5}, "gop=2.5"),
        ({"crf": 52}, "crf=52"),
        ({"fps": 0}, "fps=0"),
        ({"output": Path("x.avi")}, "output='x.avi': must end in .mp4"),
    ],
)
def test_reencoding_refuses_what_cannot_be(moving, tmp_path, options, why):
    with pytest.raises(ParamError, match=why):
        video.reencode(moving, **({"output": tmp_path / "x.mkv"} | options))
    assert not list(tmp_path.iterdir())
