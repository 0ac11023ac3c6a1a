"""Traces: what is written is read, and what is wrong is named with its file and line."""

import gzip
import time
from pathlib import Path

import pytest

from benchmarks.traces.generate import TRACES, generate
from coop.simulate import simulate
from coop.trace import TraceError, TraceWriter, read_trace
from tests.core.decisions import NAMES, shipped
from tests.core.decisions import TRACES as SHIPPED

A_STEP = (
    'a memory step must be ["output", index], ["temporary", bytes], ["free", index] or '
    '["root", storage, bytes]'
)
HEADER = '{"format": "coop-trace", "version": 2}'


def error_of(path: Path, *lines: str) -> str:
    """What reading these lines, after a header, says; without the path."""
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.path == str(path)
    prefix = f"{path}:{caught.value.line}: "
    assert str(caught.value).startswith(prefix)
    return f"{caught.value.line}: {caught.value.message}"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"small{suffix}"
    with TraceWriter(path, comment="all kinds of entry") as writer:
        writer.root(0, 4096)
        writer.operator(
            "aten::mm",
            1500,
            inputs=[0, 0],
            outputs=[(1, 8192), (2, 64)],
            memory=[("output", 1), ("temporary", 512), ("output", 0), ("free", 0)],
            side="left",
        )
        writer.keep(1)
        writer.operator("aten::relu_", 100, writes=[1])
        writer.operator("aten::zero_", 50, overwrites=[2], replayable=False)
        writer.unkeep(1)
        writer.evict(1)
        writer.materialize(1)
        writer.begin_step()
        writer.operator("aten::add_", 70, inputs=[1], writes=[0])
        writer.end_step()
        writer.make_root(1)
        writer.free(2)
    trace = read_trace(path)
    assert trace.header.comment == "all kinds of entry"
    assert trace.op_names == ["aten::mm", "aten::relu_", "aten::zero_", "aten::add_"]
    assert trace.num_operators == 4
    assert len(trace.native) == 13
    assert [trace.native.line(entry) for entry in range(13)] == list(range(2, 15))
    result = simulate(trace, 64 * 1024)
    assert result.fitted
    assert result.stats["num_operators"] == 4
    assert result.stats["compute_ns"] == 1720
    assert result.stats["num_steps"] == 1


def test_the_old_names_of_keep_and_unkeep_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    with TraceWriter(path) as writer:
        writer.root(0, 16384)
        writer.operator("aten::sin", 10, inputs=[0], outputs=[(1, 16384)])
        writer.keep(1)
        writer.evict(1)
        writer.unkeep(1)
        writer.evict(1)
    new = simulate(read_trace(path), 64 * 1024)
    text = path.read_text()
    path.write_text(text.replace('"keep"', '"pin"').replace('"unkeep"', '"unpin"'))
    assert path.read_text() != text
    assert simulate(read_trace(path), 64 * 1024).stats == new.stats
    assert new.stats["num_evictions"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON: Expecting value at column 1"),
        ('{"free": 1', "not JSON: Expecting ',' delimiter at column 11"),
        ("[1, 2]", "not a JSON object: [1, 2]"),
        # Found by `make fuzz-core`: the message could not be printed.
        (r'{"\ud800": 1}', "a string has one half of a surrogate pair"),
        ("{}", "no entry"),
        ('{"alloc": 1}', "unknown kind of entry: alloc"),
        ('{"free": 7, "bytes": 1}', 'unknown key "bytes" beside "free"'),
        ('{"free": 9}', "storage 9 is not defined"),
        ('{"free": 8}', "storage 8 is dead since line 4"),
        ('{"free": -1}', "a storage's id must not be negative, not -1"),
        ('{"free": true}', "a storage's id must be a whole number, not true"),
        ('{"root": 7, "bytes": 64}', "storage 7 is already defined"),
        ('{"root": 8, "bytes": 64}', "storage 8 is already defined"),
        ('{"root": 9}', "bytes must be a whole number, not null"),
        ('{"root": 9, "bytes": -64}', "bytes must not be negative, not -64"),
        ('{"root": 9, "bytes": 64.5}', "bytes must be a whole number, not 64.5"),
        ('{"root": 9, "bytes": "64"}', 'bytes must be a whole number, not "64"'),
        (
            '{"root": 9, "bytes": 1125899906842625}',
            "bytes must be at most 1125899906842624, not 1125899906842625",
        ),
        ('{"root": 9, "bytes": 1e400}', "bytes must be a whole number, not Infinity"),
        ('{"root": 9, "bytes": ' + "9" * 5000 + "}", "a number has too many digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"unkeep": 7}', "storage 7 is not kept"),
        ('{"step": "middle"}', 'step must be "begin", "end" or "end_inside", not "middle"'),
        ('{"step": "end"}', "a step ends that has not begun"),
        ('{"op": 5, "cost_ns": 1}', "op must be the operator's name, not 5"),
        ('{"op": "mm"}', "cost_ns must be a whole number, not null"),
        ('{"op": "mm", "cost_ns": NaN}', "cost_ns must be a whole number, not NaN"),
        ('{"op": "mm", "cost_ns": -1}', "cost_ns must not be negative, not -1"),
        ('{"op": "mm", "cost_ns": 1, "speed": 2}', 'unknown key "speed" beside "op"'),
        ('{"op": "mm", "cost_ns": 1, "inputs": 7}', "inputs must be a list, not 7"),
        ('{"op": "mm", "cost_ns": 1, "inputs": [8]}', "storage 8 is dead since line 4"),
        (
            '{"op": "mm", "cost_ns": 1, "outputs": [9]}',
            "an output must be [storage, bytes], not 9",
        ),
        ('{"op": "mm", "cost_ns": 1, "outputs": [[7, 1]]}', "storage 7 is already defined"),
        ('{"op": "mm", "cost_ns": 1, "side": "up"}', 'side must be "left" or "right", not "up"'),
        ('{"op": "mm", "cost_ns": 1, "side": []}', 'side must be "left" or "right", not []'),
        (
            '{"op": "mm", "cost_ns": 1, "replayable": 1}',
            "replayable must be true or false, not 1",
        ),
        (
            '{"op": "mm", "cost_ns": 1, "writes": [7], "overwrites": [7]}',
            "storage 7 is written twice by one operator",
        ),
        (
            '{"op": "mm", "cost_ns": 1, "memory": [["root", 9]]}',
            f'{A_STEP}, not ["root", 9]',
        ),
        (
            '{"op": "mm", "cost_ns": 1, "memory": [["root", 7, 64]]}',
            "storage 7 is already defined",
        ),
        ('{"op": "mm", "cost_ns": 1, "half": 1}', "half must be true or false, not 1"),
        ('{"op": "mm", "cost_ns": 1, "flops": -1}', "flops must not be negative, not -1"),
        ('{"op": "mm", "cost_ns": 1, "source": 1}', "source must be a string, not 1"),
        ('{"expose": 8}', "storage 8 is dead since line 4"),
        ('{"step": "over"}', 'step must be "begin", "end" or "end_inside", not "over"'),
        (
            '{"op": "mm", "cost_ns": 1, "memory": [["scratch", 1]]}',
            f'{A_STEP}, not ["scratch", 1]',
        ),
        (
            '{"op": "mm", "cost_ns": 1, "memory": [[["output"], 1]]}',
            f'{A_STEP}, not [["output"], 1]',
        ),
        (
            '{"op": "mm", "cost_ns": 1, "outputs": [[9, 64]], "memory": [["temporary", 64]]}',
            "output 0 is missing from the memory steps",
        ),
        (
            '{"op": "mm", "cost_ns": 1, "memory": [["output", 0]]}',
            "output 0 of the memory steps is not there",
        ),
        (
            '{"op": "mm", "cost_ns": 1, "memory": [["free", 0]]}',
            "temporary 0 of the memory steps is not held",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    before = ('{"root": 7, "bytes": 64}', '{"root": 8, "bytes": 64}', '{"free": 8}')
    assert error_of(tmp_path / "bad.jsonl", *before, line) == f"5: {message}"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            '{"root": 1, "bytes": 2}',
            'the first line must be the header, with "format": "coop-trace"',
        ),
        ('{"format": "coop-trace", "version": 3}', "version 3 is not supported, only 2"),
        ('{"format": "coop-trace"}', "version null is not supported, only 2"),
        ('{"format": "coop-trace", "version": true}', "version true is not supported, only 2"),
        ('{"format": "coop-trace", "version": 2, "x": 1}', 'unknown key "x" in the header'),
        (
            '{"format": "coop-trace", "version": 2, "alignment": 3}',
            "alignment must be a power of two, not 3",
        ),
        (
            '{"format": "coop-trace", "version": 2, "estimated": 1}',
            "estimated must be true or false, not 1",
        ),
    ],
)
def test_a_wrong_header_is_named(tmp_path: Path, header: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(header + "\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value) == f"{path}:1: {message}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.jsonl", tmp_path / "empty.jsonl"
    empty.touch()
    binary, bad = tmp_path / "binary.jsonl", tmp_path / "bad.jsonl.gz"
    binary.write_bytes(b"\xff\xfe\x00")
    bad.write_text(HEADER)
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(gzip.compress(HEADER.encode() * 100)[:-20])
    messages = {
        missing: "cannot be read: No such file or directory",
        empty: "empty: the first line must be the header",
        tmp_path: "cannot be read: Is a directory",
        bad: "cannot be decompressed: Not a gzipped file (b'{\"')",
    }
    for path, message in messages.items():
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        assert str(caught.value) == f"{path}: {message}"
    for path, message in {
        binary: "not UTF-8",
        short: "the compressed file ends too early",
    }.items():
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        assert str(caught.value) == f"{path}:1: {message}"


@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_traces_are_what_the_script_generates(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.jsonl.gz"
    generate(name, path)
    assert gzip.decompress(path.read_bytes()) == gzip.decompress(
        (SHIPPED / f"{name}.jsonl.gz").read_bytes()
    )


def test_every_generated_trace_is_shipped() -> None:
    assert sorted(TRACES) == list(NAMES)
    assert {name: shipped(name).num_operators for name in NAMES} == {
        "chain": 1335,
        "inplace": 2223,
        "random_path": 1878,
        "residual": 2223,
        "rnn": 7236,
        "ushape": 1422,
    }


def test_100_000_operators_are_read_quickly(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with TraceWriter(path) as writer:
        writer.root(0, 64)
        for i in range(1, 100_001):
            writer.operator("aten::add", i, inputs=[i - 1], outputs=[(i, 4096)])
    begin = time.process_time()
    assert read_trace(path).num_operators == 100_000
    assert time.process_time() - begin < 10  # about half a second on an idle machine
