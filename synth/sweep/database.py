"""Keeps the results of sweeps in one SQLite file. Each result is written as it arrives."""

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

VERSION = 1  # of the tables
_T = TypeVar("_T")
_TABLE = """CREATE TABLE IF NOT EXISTS points (
    key TEXT PRIMARY KEY,  -- hash of parameters, trace, library and code
    point TEXT NOT NULL,  -- JSON {parameter: value} as it was asked for
    result TEXT NOT NULL,  -- JSON {objective or detail: number}
    error TEXT NOT NULL,  -- why there is none, else empty
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""


class DatabaseError(ValueError):
    """A result file that cannot be used. The message names it and the fix, in one line."""


@dataclass(frozen=True)
class Row:
    """The results of a point, or the error with which it ended."""

    result: dict[str, float]
    error: str = ""

    @classmethod
    def failed(cls, error: BaseException) -> "Row":
        """Of a point that ended so: the error as one line."""
        text = " ".join(str(error).split())
        return cls({}, text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}")


class Database:
    """A file of results, created if it does not exist. Every method raises `DatabaseError`, which names the fix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise DatabaseError(f"{path.parent}: cannot be made ({e.strerror}); choose another -o") from None
        self._open = self._guarded(lambda: sqlite3.connect(path, isolation_level=None, timeout=30))
        try:
            version = self._execute("PRAGMA user_version")[0][0]
            if version not in (0, VERSION):
                raise DatabaseError(f"{path}: of version {version}, this is {VERSION}; choose another -o")
            for statement in ("PRAGMA journal_mode=WAL", _TABLE, f"PRAGMA user_version={VERSION}"):
                self._execute(statement)
        except DatabaseError:
            self._open.close()
            raise

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def put(self, key: str, point: dict[str, str], row: Row) -> None:
        """Adds the results of a row to those that the point has; results of the same name are replaced."""
        before = self.get([key]).get(key, Row({}))
        values = (key, json.dumps(point), json.dumps(before.result | row.result), row.error)
        self._execute("INSERT OR REPLACE INTO points (key, point, result, error) VALUES (?, ?, ?, ?)", values)

    def get(self, keys: Iterable[str]) -> dict[str, Row]:
        """The known rows among `keys`, by key."""
        out = {}
        for key in keys:
            for result, error in self._execute("SELECT result, error FROM points WHERE key = ?", (key,)):
                out[key] = Row(json.loads(result), error)
        return out

    def _execute(self, statement: str, values: tuple = ()) -> list[tuple]:
        return self._guarded(lambda: self._open.execute(statement, values).fetchall())

    def _guarded(self, call: Callable[[], _T]) -> _T:
        """Result of `call`; turns errors of SQLite into `DatabaseError`."""
        try:
            return call()
        except sqlite3.Error as e:
            fix = {
                "SQLITE_FULL": "the disk is full; results so far are kept: free space and run the same command again",
                "SQLITE_IOERR_WRITE": "the disk is full or broken; results so far are kept: run the same command again",
                "SQLITE_NOTADB": "not a file of results; choose another -o, or remove it",
                "SQLITE_CANTOPEN": "cannot be opened; choose another -o",
                "SQLITE_READONLY": "cannot be written to; choose another -o",
                "SQLITE_BUSY": "another sweep is writing to it; choose another -o, or wait",
            }.get(getattr(e, "sqlite_errorname", ""), "cannot be used; choose another -o")
            raise DatabaseError(f"{self.path}: {fix} ({e})") from None
