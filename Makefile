# `make test` does everything on a fresh machine; stamp files make every later run quick.

# Makes the virtual environment; everything else runs in that.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Without a limit torch starts two compilers more than there are cores.
export MAX_JOBS ?= $(shell nproc)

VENV_STAMP := $(VENV)/.stamp
RELEASE_STAMP := build/.stamp-release
DEBUG_STAMP := build/.stamp-debug
# Directories are listed too: theirs is the time stamp that changes when a file is removed.
NATIVE := setup.py $(shell find csrc 2>/dev/null)
CLANG_FORMAT = find csrc benchmarks -name '*.cc' -o -name '*.h' | sort | xargs -r $(VENV)/bin/clang-format

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv build build-debug test test-operators fuzz lint format bench-core bench-engine bench demo clean

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV_STAMP)  ## make .venv with torch and the pinned tools of requirements-dev.txt
$(VENV_STAMP): requirements-dev.txt
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements-dev.txt
	@touch $@

build: $(RELEASE_STAMP)  ## build the extension, coop._C
$(RELEASE_STAMP): $(VENV_STAMP) $(NATIVE)
	COOP_DEBUG=0 $(PY) setup.py --quiet build_ext --inplace
	@mkdir -p $(@D) && touch $@

build-debug: $(DEBUG_STAMP)  ## build it with all invariant checks, coop._C_debug
$(DEBUG_STAMP): $(VENV_STAMP) $(NATIVE)
	COOP_DEBUG=1 $(PY) setup.py --quiet build_ext --inplace
	@mkdir -p $(@D) && touch $@

test: venv build build-debug  ## lint, then all tests on the release build and the marked ones on the debug build
	@$(MAKE) --no-print-directory lint
	COOP_DEBUG=0 $(PY) -m pytest
	COOP_DEBUG=1 $(PY) -m pytest -m debug_build

test-operators: build  ## run torch's operator database with everything evicted; writes docs/operators.md
	COOP_DEBUG=0 $(PY) -m tests.operators.survey --all

# Goes on where it was stopped; FUZZ="--operators 10000000" runs more.
fuzz: build  ## run random programs, 1,000,000 operators in all
	COOP_DEBUG=0 $(PY) -m tests.fuzz $(FUZZ)

lint: venv  ## check formatting, style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(CLANG_FORMAT) --dry-run -Werror

format: venv  ## format Python and C++
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i

bench-core: build/bench-core  ## time the arena and the search, as ratios
	build/bench-core
build/bench-core: benchmarks/core.cc $(wildcard csrc/core/*)
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O3 -Wall -Wextra -Werror -Icsrc $(filter %.cc,$^) -o $@

bench-engine: build  ## time the engine under torch, as ratios
	$(PY) -m benchmarks.engine

# Goes on where it was stopped; benchmarks/results has the results of ours.
bench: build  ## the paper's evaluation at tiny size on the CPU, an hour; figures in build/
	$(PY) -m coop bench --ratios 1.0,0.9,0.8,0.7,0.6,0.5,0.4 --min-budget --ablations --out build/cpu-tiny.json
	$(PY) -m coop plot build/cpu-tiny.json

demo: build  ## train inside a budget
	$(PY) -m coop demo

clean:  ## remove what was built; .venv stays
	rm -rf build dist *.egg-info coop/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find coop tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
