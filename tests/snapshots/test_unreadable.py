"""A file that is no snapshot, or a hostile one, ends in one clear line; nothing in it runs."""

import gzip
import os
import pickle
from pathlib import Path

import pytest
from oomdoc.errors import UnreadableInputError
from oomdoc.snapshots import reader


class Runs:
    """Unpickling one of these with plain `pickle.load` leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def error_of(path: Path) -> str:
    with pytest.raises(UnreadableInputError) as caught:
        reader.load(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))
    assert caught.value.exit_status == 3
    return message


CASES = {
    "empty": (b"", "empty"),
    "text": (b"Traceback (most recent call last):\n", "neither a pickle"),
    "binary": (bytes(range(1, 200)), "neither a pickle"),
    "only_proto": (b"\x80\x04", "cut off"),
    "int": (pickle.dumps(7), "int"),
    "string": (pickle.dumps("snapshot"), "str"),
    "none": (pickle.dumps(None), "NoneType"),
    "other_dict": (pickle.dumps({"model": [1]}, 4), "neither segments nor device_traces"),
    "json_other": (b'{"loss": [1, 2]}', "neither segments nor device_traces"),
    "json_damaged": (b'{"segments": [', "JSON is damaged"),
    "json_deep": (b"[" * 200_000, "nested too deeply"),
    "json_digits": (b'{"segments": [' + b"9" * 10_000 + b"]}", "digits"),
    "json_not_utf8": (b'{"segments": "\xff\xfe"}', "UTF-8"),
    "html_without": (b"<!DOCTYPE html><html></html>", "no snapshot"),
    "html_bad_base64": (b'<html>[{"base64": "AAA"}]', "damaged"),
    "gzip_cut": (gzip.compress(pickle.dumps({"segments": []}))[:-9], "cut off"),
    "gzip_empty": (gzip.compress(b""), "empty"),
    "gzip_text": (gzip.compress(b"hello"), "neither a pickle"),
    "persistent": (b"\x80\x04U\x01xQ.", "persistent"),
    "pop_nothing": (b"\x80\x040.", "damaged"),
    "bad_opcode": (b"\x80\x04\xff.", "damaged"),
    "future_protocol": (b"\x80\x63}.", "damaged"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_one_line_that_says_why(tmp_path: Path, name: str) -> None:
    content, expected = CASES[name]
    path = tmp_path / "file.pickle"
    path.write_bytes(content)
    assert expected in error_of(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    assert "No such file" in error_of(tmp_path / "missing.pickle")
    assert "directory" in error_of(tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    path, ran = tmp_path / "evil.pickle", tmp_path / "ran"
    path.write_bytes(pickle.dumps({"segments": [Runs(ran)], "device_traces": []}, protocol))
    assert "nothing was executed" in error_of(path)
    assert not ran.exists()


def test_every_truncation_of_a_small_snapshot_is_refused(tmp_path: Path) -> None:
    whole = pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 4096, "size": 512}]]}, 4)
    path = tmp_path / "cut.pickle"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        error_of(path)
    path.write_bytes(whole)
    assert len(reader.load(path).devices[0].trace) == 1
