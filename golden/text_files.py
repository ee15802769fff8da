"""Reads text that a user wrote, with whatever editor."""

from pathlib import Path


def read_text(path: Path) -> str:
    """Text of a UTF-8 file, without the byte order mark that some editors put first; every line ends with a newline.

    Raises `OSError`, and `UnicodeDecodeError` for a file that is no text.
    """
    return path.read_text(encoding="utf-8-sig")


def check_regular(path: Path) -> None:
    """Raise `ValueError` for a pipe, such as the shell's `<(...)`, or a device: what is read twice must be a file."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("must be a regular file, for it is read more than once: save it first")
