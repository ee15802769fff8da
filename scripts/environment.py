"""What the `vrex` command needs of the process that it is started in, seen to before any work."""

import locale
import os
import sys
from io import TextIOWrapper

from openvrex.golden.function_params import ParamError

UTF8 = "PYTHONUTF8"


def prepare() -> None:
    """Make the process fit for any command. Raises `ParamError` if the user must."""
    level = sys.flags.optimize
    if level:
        why = "checks of hardware are asserts, and data sheets are docstrings, and Python leaves them out"
        raise ParamError(f"PYTHONOPTIMIZE={level}: must be 0 ({why}): unset it, and leave -O out")
    _encode()
    _open()


def _encode() -> None:
    """Read and write files in UTF-8, and print what the terminal cannot show as a question mark."""
    if locale.getencoding().lower() != "utf-8" and not sys.flags.utf8_mode and os.environ.get(UTF8) != "1":
        shown = {"PYTHONIOENCODING": f"{sys.stdout.encoding}:replace"} if sys.stdout else {}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**shown, **os.environ, UTF8: "1"})
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _open() -> None:
    """Open the streams that the caller has closed, before a file takes their number and children write into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 - it stays open as long as the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
