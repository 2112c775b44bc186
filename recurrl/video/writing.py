"""Writes videos: MP4 by ffmpeg, and a GIF of the first seconds, small enough for a page."""

import importlib.util
from collections.abc import Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path

from PIL import Image

from recurrl.errors import ConfigError, require
from recurrl.runtime.atomic import replacing
from recurrl.video.drawing import HEIGHT, WIDTH, frames
from recurrl.video.episode import Episode

NAME = "replay"
"""The name of the files in a folder; model hubs show a ``replay.mp4``."""
MP4, GIF = ".mp4", ".gif"
_GIF_SECONDS, _GIF_FPS, _GIF_WIDTH = 6, 12, 640


def files_of(path: Path) -> list[Path]:
    """The files to write for a path: the path itself if it ends in .mp4 or .gif, else one of each kind in that folder.

    Raises:
        ConfigError: it is neither, or a package is missing.
    """
    known = path.suffix.lower() in (MP4, GIF)
    require(
        known or not path.suffix or path.is_dir(),
        f"--video {path} must be a file named .mp4 or .gif, or a folder for both.",
    )
    files = [path] if known else [path / f"{NAME}{MP4}", path / f"{NAME}{GIF}"]
    if any(file.suffix.lower() == MP4 for file in files) and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ConfigError(
            "A video needs the package imageio-ffmpeg. Install it with: pip install 'recurrl[video]'; or use a file "
            "named .gif, which does not need it."
        )
    return files


def write(episodes: Sequence[Episode], files: Sequence[Path]) -> None:
    """Writes a video of episodes, in their order, into each of the files.

    Raises:
        OSError: the disk is full, or a folder is not writable. Earlier files of these names stay.
    """
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            temporary.touch()  # ffmpeg's own message would be long
            (_write_mp4 if file.suffix.lower() == MP4 else _write_gif)(temporary, episodes)


def _write_mp4(path: Path, episodes: Sequence[Episode]) -> None:
    import imageio_ffmpeg

    # The format is named, because the unfinished file has another suffix.
    options = ["-f", "mp4", "-movflags", "+faststart", "-preset", "veryfast"]
    size, fps = (WIDTH, HEIGHT), episodes[0].fps
    writer = imageio_ffmpeg.write_frames(path, size, fps=fps, codec="libx264", quality=7, output_params=options)
    with closing(writer):
        writer.send(None)
        for page in chain.from_iterable(map(frames, episodes)):
            writer.send(page.tobytes())


def _write_gif(path: Path, episodes: Sequence[Episode]) -> None:
    """Writes the first seconds, small enough for a page."""
    fps = episodes[0].fps
    every = max(1, round(fps / _GIF_FPS))
    pages = chain.from_iterable(frames(each, every) for each in episodes)
    size = _GIF_WIDTH, _GIF_WIDTH * HEIGHT // WIDTH
    images = [
        page.resize(size, Image.Resampling.LANCZOS).quantize(64, dither=Image.Dither.NONE)
        for page in islice(pages, round(_GIF_SECONDS * fps / every))
    ]
    # Browsers play a GIF with frames shorter than 20 ms too slowly.
    duration = max(20, round(1000 * every / fps))
    images[0].save(path, "gif", save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=True)
