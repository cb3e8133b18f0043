"""Broken and malicious files: one clear line each, nothing executed, memory and time bounded."""

import base64
import bz2
import gzip
import io
import json
import lzma
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from oomdoc.errors import UnreadableInputError
from oomdoc.snapshots import check, reader, timeline, unpickler, writer

TOP = b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94("  # then traces, then "eu."


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def snapshot_with(middle: bytes) -> bytes:
    """A snapshot whose list of traces holds what `middle` pushes."""
    return TOP + middle + b"eu."


def doubling_tuple(levels: int) -> bytes:
    """One key whose hash takes 2**levels steps: t = (t, t) again and again."""
    return b"\x80\x04}K\x01\x85\x94" + b"".join(b"0h" + bytes([i]) + b"2\x86\x94" for i in range(levels)) + b"K\x01s."


def doubling_lists(levels: int) -> bytes:
    body = b"]\x94" + b"".join(b"](h" + bytes([3 + i]) + b"h" + bytes([3 + i]) + b"e\x94" for i in range(levels))
    return snapshot_with(body)


def one_trace_many_times(events: int, times: int) -> bytes:
    entry = pickle.dumps({"action": "alloc", "addr": 1, "size": 1, "stream": 0}, 2)[2:-1]
    once = b"]q\x80(" + entry + b"q\x81" + b"h\x81" * (events - 1) + b"e"
    return snapshot_with(once + b"h\x80" * (times - 1))


def page(content: bytes) -> bytes:
    name = {"name": "snapshot.pickle", "base64": base64.b64encode(content).decode()}
    return b"<!DOCTYPE html><script>const local_files = " + json.dumps([name]).encode() + b"</script>"


def zip_of(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


MEMO_BOMB = b"\x80\x04]r\xff\xff\xff\x3f."
CORPUS: dict[str, bytes] = {
    # asks for code
    "global_system": b"\x80\x02cos\nsystem\n(X\x08\x00\x00\x00touch rantR.",
    "stack_global_eval": b"\x80\x04\x8c\x08builtins\x94\x8c\x04eval\x94\x93\x8c\x011\x85R.",
    "inst": b"(S'touch ran'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'touch ran'\no.",
    "newobj": b"\x80\x02cbuiltins\nbytearray\nK\x08\x85\x81.",
    "newobj_ex": b"\x80\x04\x8c\x08builtins\x8c\x09bytearray\x93K\x08\x85}\x92.",
    "reduce_of_data": snapshot_with(b"]K\x01\x85R"),
    "build": snapshot_with(b"}}\x8c\x08__dict__]sb"),
    "build_then_memo_bomb": b"\x80\x04}Nb]r\xff\xff\xff\x3f.",
    "extension": b"\x80\x02\x82\x01.",
    "extension_4": b"\x80\x02\x84" + u32(7) + b".",
    "persistent_text": b"Psome id\n.",
    "persistent": b"\x80\x02K\x01Q.",
    "next_buffer": b"\x80\x05\x97.",
    "readonly_buffer": b"\x80\x05]\x98.",
    "global_with_newlines": b"\x80\x02c" + b"a\x1b[31m" * 900 + b"\nsystem\n.",
    # asks for memory
    "memo_bomb": MEMO_BOMB,
    "memo_bomb_text": b"(lp4294967295\n.",
    "memo_bomb_in_snapshot": snapshot_with(b"]r\xff\xff\xff\xffe]"),
    "bytes_8_length": b"\x80\x04\x8e" + u64(1 << 62) + b"abc.",
    "text_8_length": b"\x80\x04\x8d" + u64(1 << 60) + b"abc.",
    "bytearray_8_length": b"\x80\x05\x96" + u64(1 << 62) + b"abc.",
    "text_length": b"\x80\x04X" + u32(0xFFFFFFFF) + b"abc.",
    "long_4_length": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"abc.",
    "long_4_negative": b"\x80\x02\x8b" + struct.pack("<i", -5) + b"abc.",
    "frame_length": b"\x80\x04\x95" + u64((1 << 63) - 1) + b"}.",
    "frame_too_short": b"\x80\x04\x95" + u64(1) + b"\x8c\x08segments",
    "gzip_bomb_zeros": gzip.compress(bytes(300 << 20)),
    "gzip_bomb_pickle": gzip.compress(b"\x80\x04" + b"K\x010" * (60 << 20) + b"."),
    "bzip2_bomb": bz2.compress(bytes(300 << 20)),
    "bzip2_cut": bz2.compress(pickle.dumps({"segments": []}))[:-3],
    "bzip2_flipped": b"BZh91AY&SY" + bytes(200),
    "xz_bomb": lzma.compress(bytes(300 << 20), preset=0),
    "xz_cut": lzma.compress(pickle.dumps({"segments": []}))[:-3],
    "xz_big_dictionary": lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]),
    "zip_bomb": zip_of({"a.pickle": bytes(300 << 20)}),
    "zip_of_two": zip_of({"a.pickle": b"x", "b.pickle": b"y"}),
    "zip_cut": zip_of({"a.pickle": pickle.dumps({"segments": []})})[:-9],
    "zip_with_global": zip_of({"a/data.pkl": b"\x80\x02cos\nsystem\n."}),
    "gzip_of_gzip": gzip.compress(gzip.compress(pickle.dumps({"segments": []}))),
    "integer_of_many_digits": b"I" + b"9" * 100_000 + b"\n.",
    "flood_of_lists": b"\x80\x04(" + b"]" * 500_000 + b"l.",
    "flood_of_marks": b"\x80\x04" + b"(" * 200_000 + b".",
    # asks for time or stack
    "tuple_nested": b"\x80\x04})" + b"\x85" * 300_000 + b"K\x01s.",
    "tuple_doubling": doubling_tuple(100),
    "lists_doubling": doubling_lists(100),
    "list_nested": b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "trace_many_times": one_trace_many_times(1000, 1000),
    "json_nested": b'{"segments": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "json_nested_dicts": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "json_infinity": b'{"segments": Infinity}',
    "frozenset": b"\x80\x04(K\x01\x91.",
    "set": b"\x80\x04\x8f(K\x01\x90.",
    # broken
    "list_in_itself": b"\x80\x04]\x94h\x00a.",
    "unhashable_key": b"\x80\x04}]K\x01s.",
    "get_of_nothing": b"\x80\x04h\x63.",
    "stop_only": b"\x80\x04.",
    "pop_mark": b"\x80\x041.",
    "bad_utf8": b"\x80\x04\x8c\x02\xff\xfe.",
    "bad_float": b"Fabc\n.",
    "bad_bool": b"\x80\x04\x88\x88s.",
    "protocol_twice": b"\x80\x04\x80\x63.",
    "segments_is_a_number": pickle.dumps({"segments": 5, "device_traces": 7}),
    "list_of_numbers": pickle.dumps([1, 2, 3]),
    "sizes_beyond_bytes": pickle.dumps(
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 47}] * 40_000]}
    ),
    "page_with_global": page(b"\x80\x02cos\nsystem\n(X\x08\x00\x00\x00touch rantR."),
    "page_with_memo_bomb": page(MEMO_BOMB),
    "page_with_text": page(b"hello"),
    "gzip_with_global": gzip.compress(b"\x80\x02cos\nsystem\n."),
    "zip": zip_of({"archive/data.pkl": b"\x80\x02}."}),
    "zip_of_none": zip_of({"readme.txt": b"x"}),
    "elf": b"\x7fELF" + bytes(100),
    "numpy": b"\x93NUMPY\x01\x00",
    "utf16_json": '{"segments": []}'.encode("utf-16"),
    "nothing_but_nul": bytes(4096),
}
CODE = {
    "global_system",
    "stack_global_eval",
    "inst",
    "obj",
    "newobj",
    "newobj_ex",
    "page_with_global",
    "gzip_with_global",
    "zip_with_global",
}

# reads every file of a folder in the way that `argv[2]` names; the worst resident size goes to the last line
DRIVER = """
import json, os, resource, sys, time
from pathlib import Path
from oomdoc.errors import UnreadableInputError
from oomdoc.snapshots import reader
way = sys.argv[2]
if way == "walked":
    reader.sandbox.available = lambda: False
elif way == "fenced":
    reader.FENCE_BYTES = 0
reader.sandbox.SECONDS_FREE = 2
out = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    began = time.perf_counter()
    try:
        reader.load(path)
        message = None
    except UnreadableInputError as error:
        message = str(error)
    out[path.name] = (message, time.perf_counter() - began)
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
try:  # ru_maxrss of this process begins with what the process that started it held
    status = open("/proc/self/status").read()
    kib = max(kib, int(status.partition("VmHWM:")[2].split()[0]))
except OSError:
    kib = max(kib, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps({"files": out, "peak_bytes": kib * 1024}))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for name, content in CORPUS.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    "way",
    [
        "walked",
        "as it comes",
        pytest.param(
            "fenced", marks=pytest.mark.skipif(sys.platform != "linux", reason="the child process is Linux only")
        ),
    ],
)
def test_each_hostile_file_gets_one_clear_line(corpus: Path, tmp_path: Path, way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(corpus), way], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.stderr == ""
    assert done.returncode == 0
    result = json.loads(done.stdout.splitlines()[-1])
    read = {name for name, (message, _) in result["files"].items() if message is None}
    assert read == set()
    for name, (message, seconds) in result["files"].items():
        assert str(corpus / name) in message, name
        assert message.isprintable(), name
        assert len(message) < 300 + len(str(corpus)), name
        assert seconds < 60, name
        if name in CODE:
            assert "nothing was executed" in message, (name, message)
    assert list(tmp_path.iterdir()) == []
    assert result["peak_bytes"] < 1 << 30


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(CORPUS) >= 40


def mutants(whole: bytes, count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randrange(1, 9)]
            elif kind == 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            else:
                other = rng.randrange(len(data))
                data[at : at + 16] = data[other : other + 16]
        out.append(bytes(data))
    return out


def seed_file() -> bytes:
    frame = {"name": "forward", "filename": "model.py", "line": 7}
    block = {"address": 4096, "size": 512, "requested_size": 400, "state": "active_allocated", "frames": [frame]}
    free = {"address": 4608, "size": 1536, "requested_size": 9, "state": "inactive", "frames": []}
    segment = {
        "device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [frame], "blocks": [block, free],
    }  # fmt: skip
    events = [("segment_alloc", 4096, 2048), ("alloc", 4608, 100), ("alloc", 4096, 400), ("free_requested", 4608, 100),
              ("free_completed", 4608, 100), ("snapshot", 0, 512)]  # fmt: skip
    trace = [
        {"action": a, "addr": at, "size": n, "stream": 0, "time_us": 10 + i, "pool_id": (0, 0), "frames": [frame]}
        for i, (a, at, n) in enumerate(events)
    ]
    oom = {"action": "oom", "device_free": 12, "size": 512, "stream": 0, "time_us": 99, "frames": [frame]}
    settings = {"expandable_segments": False, "roundup_power2_divisions": {"1": 0}}
    notes = [{"stage": "START", "name": "Optimizer.step#SGD.step", "device": 0, "time_us": 11}]
    return pickle.dumps(
        {
            "segments": [segment],
            "device_traces": [[*trace, oom]],
            "allocator_settings": settings,
            "external_annotations": notes,
        },
        4,
    )


def read_mutant(data: bytes) -> bool:
    """Whether it was read; anything but a snapshot or an UnreadableInputError fails the test."""
    try:
        raw = unpickler.load_scanned(data)
        snapshot = reader.from_dict(raw)
    except UnreadableInputError:
        return False
    check.self_check(snapshot)
    return True


def test_mutants_are_read_or_refused_and_never_crash() -> None:
    assert read_mutant(seed_file())
    outcomes = [read_mutant(data) for data in mutants(seed_file(), 1500, seed=0)]
    assert 50 < sum(outcomes) < 1450


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_thousand_mutants(shared: Path, seed: int) -> None:
    real = (shared / "data" / "snapshots" / "state-only-tiny.pickle").read_bytes()
    for whole in (seed_file(), real):
        for data in mutants(whole, 500, seed):
            read_mutant(data)


ODD_VALUES = (
    None,
    True,
    -1,
    0,
    7,
    1 << 63,
    1 << 64,
    -(1 << 63),
    1 << 200,
    1.5,
    float("nan"),
    "",
    "x",
    [],
    {},
    [[]],
    [7],
)


def spoil(raw: object, rng: random.Random) -> None:
    """Replace, drop or repeat one thing somewhere inside."""
    place = raw
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place)) if isinstance(place, list) else ()
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.85:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        elif isinstance(place, list) and rng.random() < 0.2:
            place.append(place[key])
        else:
            place[key] = rng.choice(ODD_VALUES)
        return


def test_odd_values_anywhere_are_read_or_refused() -> None:
    rng = random.Random(5)
    read = 0
    for _ in range(1500):
        raw = unpickler.load_scanned(seed_file())
        raw["oomdoc"] = {"schema": "oomdoc.recording/1", "kind": "cuda", "devices": {"0": {"marks": {}, "older": {}}}}
        for _ in range(rng.choice((1, 2, 5))):
            spoil(raw, rng)
        try:
            snapshot = reader.from_dict(raw)
        except UnreadableInputError:
            continue
        read += 1
        check.self_check(snapshot)
        again = reader.from_dict(writer.to_dict(snapshot))
        assert [timeline.extent(d) for d in again.devices] == [timeline.extent(d) for d in snapshot.devices]
    assert read > 1000
