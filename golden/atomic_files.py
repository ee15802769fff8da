"""Files that are written whole or not at all, safe beside other processes that write the same."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write beside `path`, which takes its place at the end of the block; its folders are made.

    A failure leaves an older file as it was, and nothing else. Raises: `OSError` that names `path`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as e:
        if e.filename and Path(e.filename) not in (part, *part.parents):
            raise  # of another file
        reason = f"cannot be written ({e.strerror or e}); free its disk or choose another place"
        raise OSError(e.errno, reason, str(path)) from None
    finally:
        if part.parent.is_dir():
            part.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file; its mode is the umask's. Raises as `replacing`."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)
