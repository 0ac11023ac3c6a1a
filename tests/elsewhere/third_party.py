"""Scripts that were not written for coop, where memory is limited so that plain torch runs out.

`python -m tests.elsewhere.third_party CHECKOUTS` runs them: CHECKOUTS has a clone of each
repository below, by its name. Nothing is downloaded and nothing is changed: each script runs in a
copy of its folder, on data of `third_party_data.py`. Addresses are limited (`ulimit -v`), which
needs no privileges, and lets torch say itself that there is no memory left. `--page` writes
docs/third-party.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tests.elsewhere import third_party_data as data

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
# Of the memory that plain torch takes for the script.
SHARE = 0.75
# Where half of that is not tensors: `datasets` and `evaluate` alone take 1.8 GiB of addresses.
IMPORTS_SHARE = 0.9


@dataclass(frozen=True)
class Script:
    """One of them."""

    repository: str
    folder: str  # in the repository; it runs in a copy of this
    command: str  # after `python` or `coop run`
    prepare: Callable[[Path], None] | None = None
    shows: str = r"loss"  # lines with this are compared with those of a run without limits
    paths: str = ""  # of the repository, where its modules are found
    has_seed: bool = True  # else it differs from run to run without coop too
    share: float = SHARE

    @property
    def name(self) -> str:
        return f"{self.repository.split('/')[1]}: {self.folder}/{self.command.split()[0]}".replace(
            "./", ""
        )


_CLM = (
    "--train_file made.txt --tokenizer_name tokenizer --do_train --max_steps 2 --logging_steps 1 "
    "--report_to none --output_dir out --save_strategy no --per_device_train_batch_size 12 "
    "--use_cpu"
)
SCRIPTS = (
    Script(
        "karpathy/nanoGPT",
        ".",
        "train.py config/train_shakespeare_char.py --dataset=made --device=cpu --compile=False "
        "--dtype=float32 --batch_size=16 --max_iters=1 --lr_decay_iters=1 --log_interval=1 "
        "--eval_iters=1",
        data.tokens,
    ),
    Script(
        "karpathy/minGPT",
        "projects/chargpt",
        "chargpt.py --trainer.max_iters=2 --trainer.batch_size=64 --trainer.num_workers=0 "
        "--model.model_type=gpt-mini",
        data.plain_text,
        shows="train loss",
        paths=".",
    ),
    Script(
        "karpathy/minGPT",
        "projects/adder",
        "adder.py --trainer.max_iters=2 --trainer.batch_size=4096 --trainer.num_workers=0 "
        "--model.model_type=gpt-mini",
        shows="train loss",
        paths=".",
    ),
    Script(
        "karpathy/makemore",
        ".",
        "makemore.py --max-steps 11 --batch-size 1536 --n-embd 128 --num-workers 0",
        data.names,
    ),
    Script(
        "lucidrains/x-transformers",
        ".",
        "train_enwik8.py --num_batches 2 --batch_size 4 --gradient_accumulate_every 1 "
        "--seq_len 256 --generate_every 100 --generate_length 8 --validate_every 100 --cpu",
        data.enwik8,
        paths=".",
        has_seed=False,
    ),
    Script(
        "karpathy/llama2.c",
        ".",
        "train.py --device=cpu --compile=False --dtype=float32 --batch_size=16 --max_iters=2 "
        "--gradient_accumulation_steps=1 --vocab_source=custom --vocab_size=512 --eval_iters=1 "
        "--warmup_iters=1",
        data.stories,
    ),
    Script(
        "huggingface/transformers",
        "examples/pytorch/language-modeling",
        f"run_clm.py --config_name gpt2 --block_size 256 {_CLM}",
        data.hub_model,
        shows="'loss'|train_loss",
        share=IMPORTS_SHARE,
    ),
    Script(
        "huggingface/transformers",
        "examples/pytorch/language-modeling",
        f"run_mlm.py --config_name bert --max_seq_length 256 {_CLM}",
        data.hub_model,
        shows="'loss'|train_loss",
        share=IMPORTS_SHARE,
    ),
    Script(
        "huggingface/pytorch-image-models",
        ".",
        "train.py --data-dir made --model vit_tiny_patch16_224 --num-classes 2 --device cpu "
        "--batch-size 16 --epochs 1 --workers 1 --log-interval 1 --validation-batch-size 8",
        data.image_folders,
        shows="Loss:",
        paths=".",
    ),
    Script(
        "pytorch/examples",
        "imagenet",
        "main.py made --arch resnet18 --batch-size 64 --epochs 1 --workers 0 --print-freq 1 "
        "--no-accel --seed 1",
        data.image_folders,
        shows="Epoch",
        share=0.85,
    ),
    Script(
        "pytorch/examples",
        "word_language_model",
        "main.py --data . --model Transformer --emsize 256 --nhid 512 --nlayers 4 --batch_size 96 "
        "--bptt 128 --epochs 1 --lr 0.1 --log-interval 1",
        data.corpus,
    ),
    Script(
        "pytorch/examples",
        "gat",
        "main.py --epochs 2 --val-every 2 --no-accel",
        data.cora,
        share=0.9,
    ),
    Script(
        "pytorch/examples",
        "dcgan",
        "main.py --dataset fake --batchSize 512 --dry-run --workers 0 --manualSeed 1",
        shows="Loss_D",
    ),
    Script(
        "milesial/Pytorch-UNet",
        ".",
        "train.py --epochs 1 --batch-size 2 --scale 1.0",
        data.masks,
        shows="Dice|Checkpoint",
        share=0.85,
    ),
)


@dataclass
class Outcome:
    """What came of one script; bytes beside what importing torch takes."""

    name: str
    repository: str
    commit: str
    command: str
    base_bytes: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0
    plain_seconds: float = 0.0
    coop_seconds: float = 0.0
    plain_error: str = ""
    lines: tuple[str, ...] = ()  # of coop's
    num_compared: int = 0
    same: bool = False
    trained: bool = False
    failure: str = ""


@dataclass
class Run:
    """One process."""

    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int


def run(command: list[str], folder: Path, paths: str, limit: int = 0) -> Run:
    """To its end; its addresses limited to so many bytes (0: not)."""
    if limit:
        command = ["prlimit", f"--as={limit}", *command]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (paths, str(ROOT)))),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "COOP_DEVICE": "cpu",
    }
    begin = time.perf_counter()
    out, err = folder.parent / "out.txt", folder.parent / "err.txt"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stdout, stderr=stderr
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, _highest(process.pid))
            time.sleep(0.02)
    seconds = time.perf_counter() - begin
    return Run(process.returncode, out.read_text(), err.read_text(), seconds, peak)


def _highest(pid: int) -> int:
    """The most addresses that the process had so far."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmPeak:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def shown(script: Script, ran: Run) -> list[str]:
    """What it printed of its losses, without times."""
    lines = re.split(r"[\r\n]+", ran.out + "\n" + ran.err)
    kept = [line for line in lines if re.search(script.shows, line) and "coop" not in line]
    return [" ".join(re.sub(_TIMES, "", line).split()) for line in kept]


# Whatever is said of time, in the ways of these scripts.
_TIMES = "|".join(
    (
        r"\d+(\.\d+)?(e-?\d+)? ?m?s\b",
        r"iter_dt \S+",
        r"'?(train_)?(runtime|samples_per_second|steps_per_second)'?: '?[\d.]+'?,?",
        r"(Time|Data|time|Rate):? +[\d.]+( ?\([\d., ]+\))?s?",
        r"[\d.,]+(/s|img/s|it/s|s/it)",
        r"\([\d.]+s\)",
        r"\([\d., ]+/s\)",
        r"mfu \S+",
        r"ms/batch +[\d.]+",
        r"\d+:\d+",
        r"^INFO.*?: ",
    )
)


def try_out(script: Script, checkouts: Path) -> Outcome:
    """The script without limits; then limited, plain and by coop."""
    checkout = checkouts / script.repository.split("/")[1]
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    outcome = Outcome(script.name, script.repository, commit, script.command)
    paths = str((checkout / script.paths).resolve()) if script.paths else ""
    with tempfile.TemporaryDirectory(prefix="coop-third-party-") as temporary:
        first = Path(temporary, "first/work")
        first.mkdir(parents=True)

        def fresh() -> Path:
            work = Path(temporary, "run/work")
            shutil.rmtree(work.parent, ignore_errors=True)
            ignored = shutil.ignore_patterns(".git", "*.ipynb", "assets", "images", "tests")
            shutil.copytree(checkout / script.folder, work, ignore=ignored)
            if script.prepare is not None:
                script.prepare(work)
            return work

        words = script.command.split()
        outcome.base_bytes = run([sys.executable, "-c", "import torch"], first, "").peak_bytes
        free = run([sys.executable, *words], fresh(), paths)
        if free.code != 0:
            outcome.failure = "without limits: " + _last(free)
            return outcome
        outcome.plain_seconds = free.seconds
        outcome.peak_bytes = free.peak_bytes - outcome.base_bytes
        outcome.limit_bytes = int(outcome.peak_bytes * script.share)
        limit = outcome.base_bytes + outcome.limit_bytes
        plain = run([sys.executable, *words], fresh(), paths, limit)
        outcome.plain_error = "" if plain.code == 0 else _last(plain)
        by_coop = run([sys.executable, "-m", "coop", "run", *words], fresh(), paths, limit)
        outcome.coop_seconds = by_coop.seconds
        outcome.lines = tuple(
            line for line in by_coop.err.splitlines() if line.startswith("coop: ")
        )
        expected = shown(script, free)
        outcome.num_compared = len(expected)
        outcome.same = bool(expected) and expected == shown(script, by_coop)
        outcome.trained = by_coop.code == 0
        if not outcome.trained:
            outcome.failure = _last(by_coop)
        elif script.has_seed and not outcome.same:
            outcome.failure = f"shows {shown(script, by_coop)[:3]}, not {expected[:3]}"
        if os.environ.get("KEEP"):
            Path(os.environ["KEEP"], script.name.replace("/", "_")).write_text(
                "\n=====\n".join(
                    (free.out, free.err, plain.out, plain.err, by_coop.out, by_coop.err)
                )
            )
    return outcome


def _last(ran: Run) -> str:
    """What it died of, in a line."""
    if ran.code < 0:
        return f"signal {-ran.code}"
    lines = [line.strip() for line in ran.err.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|error)\b", line)]
    return (errors or lines or [f"exit code {ran.code}"])[-1]


def main() -> int:
    """Writes what came of each into a file, and goes on there when it is run again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/third-party.json"))
    parser.add_argument("--only", default="", help="part of a script's name")
    parser.add_argument("--page", type=Path, help="write this page too")
    args = parser.parse_args()
    known = json.loads(args.out.read_text()) if args.out.exists() else {}
    for script in SCRIPTS:
        is_done = script.name in known and known[script.name]["trained"]
        if args.only not in script.name or (not args.only and is_done):
            continue
        outcome = try_out(script, args.checkouts.resolve())
        known = json.loads(args.out.read_text()) if args.out.exists() else {}  # others write too
        known[script.name] = asdict(outcome)
        args.out.parent.mkdir(exist_ok=True)
        args.out.write_text(json.dumps(known, indent=1))
        print(
            f"{outcome.name}: {outcome.peak_bytes / MIB:.0f} MiB, limited to "
            f"{outcome.limit_bytes / MIB:.0f}; plain {outcome.plain_seconds:.0f} s, then "
            f"{outcome.plain_error[:90] or 'RUNS'}; coop {outcome.coop_seconds:.0f} s, "
            f"trained: {outcome.trained}, same: {outcome.same} ({outcome.num_compared}) "
            f"{outcome.failure[:200]}",
            flush=True,
        )
        if args.page is not None:
            args.page.write_text(make_page([Outcome(**known[name]) for name in known]))
    return 0


PAGE = """# Scripts of others, out of memory without coop

Public training scripts that were not written for coop, as they are, on tiny data of their formats.
{trained} of {num} train where plain torch runs out of memory, by `coop run` **without a budget
option**.

Each ran three times: without a limit, to see what it takes; with a limit of {share:.0%} to
{most:.0%} of that, plain; and by coop, limited likewise. (More than {share:.0%} where half of it is
imports, not tensors, or where single operators want a tenth of all there is.) *The same* means
that every loss it printed is the one of the run without a limit, to the last digit.

The limit is `ulimit -v`, on the CPU: addresses, beside those that importing torch takes. It needs
no privileges, and torch says itself that there is no memory left. (In a container with a limit the
kernel would kill it.) torch {torch}, {date}.

| script | takes | limit | plain torch | coop | the same | its cost |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

Commands and commits:

{commands}

Repeat it: clone these repositories side by side into `CHECKOUTS`, and

```sh
python -m tests.elsewhere.third_party CHECKOUTS --page docs/third-party.md
```

It goes on where it was stopped (`build/third-party.json`). The scripts need their own packages
(torchvision, datasets, evaluate, wandb, einx, tensorboard, timm, ...), and nothing of theirs is
part of this repository.
"""


def runs_out(outcome: Outcome) -> bool:
    """Whether plain torch does, in the limit."""
    return "allocat" in outcome.plain_error or "MemoryError" in outcome.plain_error


def make_page(outcomes: list[Outcome]) -> str:
    """The page of what was run."""
    rows, commands = [], []
    seeded = {script.name for script in SCRIPTS if script.has_seed}
    for each in outcomes:
        cost = next((line for line in each.lines if line.startswith("coop: cost")), "")
        cost = re.sub(r"coop: cost +|about | more compute.*|: no value.*", "", cost)
        plain = "runs out" if runs_out(each) else each.plain_error[:60] or "runs"
        trains = "trains" if each.trained else each.failure[:60]
        if any("where it ran out" in line for line in each.lines):
            trains = "out of budget"
        same = "yes" if each.same else "no" if each.name in seeded else "it has no seed"
        rows.append(
            f"| {each.name} | {each.peak_bytes / MIB:.0f} MiB | {each.limit_bytes / MIB:.0f} MiB "
            f"| {plain} | {trains} | {same} | {cost} |"
        )
        commands.append(f"- {each.repository} {each.commit}: `{each.command}`")
    return PAGE.format(
        share=SHARE,
        most=max(script.share for script in SCRIPTS),
        num=len(outcomes),
        trained=sum(each.trained and runs_out(each) for each in outcomes),
        torch=torch.__version__,
        date=time.strftime("%Y-%m-%d"),
        rows="\n".join(rows),
        commands="\n".join(commands),
    )


if __name__ == "__main__":
    sys.exit(main())
