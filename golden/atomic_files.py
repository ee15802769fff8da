"""Write a file whole or not at all, even while other processes write the same file."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield an open file that replaces `path` at the end of the block.

    The data goes to a temporary file beside `path`; missing folders are created. After a failure an older file at
    `path` is unchanged and the temporary file is gone. Raises `OSError` that names `path`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as e:
        if e.filename and Path(e.filename) not in (part, *part.parents):
            raise  # the error is about another file that the block uses
        reason = f"cannot be written ({e.strerror or e}); free its disk or choose another place"
        raise OSError(e.errno, reason, str(path)) from None
    finally:
        if part.parent.is_dir():
            part.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write `data` to `path`, whole or not at all, with the permissions of the umask. Errors: see `replacing`."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)
