"""Coverage-guided fuzzing of the trace reader with atheris: part of `make fuzz-core`.

`python -m tests.core.fuzz_trace [libFuzzer's options] [corpus]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["coop.trace", "json"]):
    import coop.trace

from .fuzz_words import KEYS, SEED
from .trace_input import read_anything


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
