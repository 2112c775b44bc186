"""Writes videos: MP4 by ffmpeg, and a GIF of the first seconds, small enough for a page."""

import importlib.util
import io
from collections.abc import Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path

from PIL import Image

from recurrl.errors import ConfigError, require
from recurrl.runtime.atomic import replacing
from recurrl.video.composing import HEIGHT, WIDTH, composed
from recurrl.video.episode import Episode

NAME = "replay"
"""Of the files in a folder; model hubs show a ``replay.mp4``."""
MP4, GIF = ".mp4", ".gif"
GIF_SECONDS, GIF_FPS = 6, 12
MOST_GIF_BYTES = 2_000_000
_GIF_WIDTHS = (800, 640, 480, 320)


def files_of(path: Path) -> list[Path]:
    """The files to write for a path: itself, if its name says of what kind, or both kinds in a folder.

    Raises:
        ConfigError: it is neither, or a package is missing.
    """
    known = path.suffix.lower() in (MP4, GIF)
    require(
        known or not path.suffix or path.is_dir(),
        f"--video {path} is of an unknown kind. Give a file named .mp4 or .gif, or a folder for both.",
    )
    files = [path] if known else [path / f"{NAME}{MP4}", path / f"{NAME}{GIF}"]
    if any(file.suffix.lower() == MP4 for file in files) and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ConfigError(
            "A video needs the package imageio-ffmpeg. Install it with: pip install 'recurrl[video]'; or give a file "
            "named .gif, which does not need it."
        )
    return files


def write(episodes: Sequence[Episode], files: Sequence[Path]) -> None:
    """Writes a video of episodes, one after the other, into each of the files.

    Raises:
        OSError: the disk is full, or a folder is not writable. Earlier files of these names stay.
    """
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            if file.suffix.lower() == MP4:
                _write_mp4(temporary, episodes)
            else:
                temporary.write_bytes(_gif(episodes))


def _write_mp4(path: Path, episodes: Sequence[Episode]) -> None:
    import imageio_ffmpeg

    # The name of the unfinished file does not say what it is.
    options = ["-f", "mp4", "-movflags", "+faststart", "-preset", "veryfast"]
    size, fps = (WIDTH, HEIGHT), episodes[0].fps
    writer = imageio_ffmpeg.write_frames(path, size, fps=fps, codec="libx264", quality=7, output_params=options)
    with closing(writer):
        writer.send(None)
        for page in chain.from_iterable(map(composed, episodes)):
            writer.send(page.tobytes())


def _gif(episodes: Sequence[Episode]) -> bytes:
    """The first seconds, as wide as :data:`MOST_GIF_BYTES` allow."""
    fps = episodes[0].fps
    every = max(1, round(fps / GIF_FPS))
    pages = chain.from_iterable(composed(each, every) for each in episodes)
    kept = list(islice(pages, round(GIF_SECONDS * fps / every)))
    data = b""
    for width in _GIF_WIDTHS:
        size = width, width * HEIGHT // WIDTH
        images = [page.resize(size, Image.Resampling.LANCZOS).quantize(64, dither=Image.Dither.NONE) for page in kept]
        file = io.BytesIO()
        # Browsers slow down what is faster than 20 ms a picture.
        duration = max(20, round(1000 * every / fps))
        images[0].save(file, "gif", save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=True)
        data = file.getvalue()
        if len(data) <= MOST_GIF_BYTES:
            break
    return data
