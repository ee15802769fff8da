"""Files that are written whole or not at all."""

import os
import re
import resource
from contextlib import contextmanager

import pytest

from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.hdl.emit import Emitted


@contextmanager
def small_disk():
    """A file of more than 100 bytes cannot be written: what a full disk does, under another number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_are_for_others_to_read(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "new" / "page", "one")
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "page").stat().st_mode & 0o777 == 0o644


def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path):
    file = tmp_path / "old"
    write_atomically(file, "old")
    with small_disk(), pytest.raises(OSError, match="cannot be written .*free its disk or choose another") as e:
        write_atomically(file, bytes(1000))
    assert e.value.filename == str(file)
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["old"]


def test_a_unit_is_written_with_its_manifest_or_not_at_all(tmp_path):
    made = Emitted("v", "unit", {"text": "m" * 1000})
    with small_disk(), pytest.raises(OSError, match="cannot be written") as e:
        made.write(tmp_path)
    assert e.value.filename == str(tmp_path / "manifest.json")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["file/new", "file/deep/new"])
def test_a_file_where_a_folder_must_be_is_named(name, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=re.escape(str(tmp_path / name))):
        write_atomically(tmp_path / name, "")


def test_a_failure_of_the_block_leaves_nothing(tmp_path):
    def half():
        with replacing(tmp_path / "new") as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert not os.listdir(tmp_path)
