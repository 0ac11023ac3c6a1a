"""Coverage-guided fuzzing of the trace reader with atheris: part of `make fuzz-core`.

`python -m tests.core.fuzz_trace [libFuzzer's options] [corpus]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["coop.trace", "json"]):
    import coop.trace

from .trace_input import read_anything

KEYS = (
    "format", "version", "comment", "op", "cost_ns", "inputs", "outputs", "writes", "overwrites",
    "memory", "side", "replayable", "root", "bytes", "free", "pin", "unpin", "evict",
    "materialize", "make_root", "step", "begin", "end", "left", "right", "output", "temporary",
)  # fmt: skip
SEED = b"""{"format":"coop-trace","version":1,"comment":"a"}
{"root":1,"bytes":4096}
{"op":"a::b","cost_ns":5,"inputs":[1,1],"outputs":[[2,8192],[3,64]],"side":"left",\
"memory":[["output",1],["temporary",512],["output",0],["free",0]]}
{"pin":2}
{"op":"c","cost_ns":1,"writes":[2],"overwrites":[3],"replayable":false}
{"unpin":2}
{"evict":2}
{"materialize":2}
{"step":"begin"}
{"op":"d","cost_ns":7,"inputs":[2],"writes":[1]}
{"step":"end"}
{"make_root":2}
{"free":3}
"""


def test_one_input(data: bytes) -> None:
    read_anything(data)


def main() -> None:
    assert coop.trace is not None
    read_anything(SEED)
    corpus = next((Path(word) for word in sys.argv[1:] if not word.startswith("-")), None)
    if corpus is not None:
        corpus.mkdir(parents=True, exist_ok=True)
        (corpus / "seed").write_bytes(SEED)
        dictionary = corpus.parent / "trace.dict"
        words = [*(f'"\\"{key}\\""' for key in KEYS), '"\\\\ud800"', '"NaN"', '"1e400"']
        dictionary.write_text("\n".join(words) + "\n")
        sys.argv.append(f"-dict={dictionary}")
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
