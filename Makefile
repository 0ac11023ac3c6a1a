# `make test` does everything on a fresh machine; stamp files make every later run quick.

# Makes the virtual environment; everything else runs in that.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Without a limit torch starts two compilers more than there are cores.
export MAX_JOBS ?= $(shell nproc)
# Packages are installed without their bytecode: it is written when a module is first imported. A
# hundred programs that tests start would compile torch again each.
unexport PYTHONDONTWRITEBYTECODE

VENV_STAMP := $(VENV)/.stamp
TOOLS_STAMP := $(VENV)/.stamp-tools
RELEASE_STAMP := build/.stamp-release
DEBUG_STAMP := build/.stamp-debug
# Directories are listed too: theirs is the time stamp that changes when a file is removed.
NATIVE := setup.py $(shell find csrc 2>/dev/null)
CLANG_FORMAT = find csrc benchmarks tests -name '*.cc' -o -name '*.h' | sort | xargs -r $(VENV)/bin/clang-format
# Nobody wants to read the compiler's command lines, unless it fails.
define compile
	@mkdir -p build && echo "compiling the extension ($(2)): a few minutes the first time"
	@COOP_DEBUG=$(1) COOP_WERROR=1 $(PY) setup.py --quiet build_ext --inplace > build/$(2).log 2>&1 \
		|| { cat build/$(2).log; exit 1; }
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv build build-debug test test-all test-elsewhere test-distributed test-operators \
	test-evicted-arguments test-compiled test-faults \
	test-simulator fuzz sanitize sanitize-torch fuzz-core no-growth no-growth-distributed \
	lint format bench-core bench-schedule bench-engine bench-optimum bench-floor bench-plan bench-zoo bench bench-quick bench-gpu demo clean \
	tidy hooks figures coverage torch wheels docs

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(TOOLS_STAMP)  ## make .venv with torch and the pinned tools of requirements-dev.txt
$(VENV_STAMP): requirements.txt
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --no-compile -r requirements.txt
	@# Any folder's programs find this checkout's coop.
	$(PY) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "coop-checkout.pth").write_text("$(CURDIR)\n")'
	@touch $@
$(TOOLS_STAMP): requirements-dev.txt $(VENV_STAMP)
	$(PY) -m pip install --quiet --no-compile -r requirements-dev.txt
	@touch $@

build: $(RELEASE_STAMP)  ## build the extension, coop._C
$(RELEASE_STAMP): $(VENV_STAMP) $(NATIVE)
	$(call compile,0,release)
	@touch $@

build-debug: $(DEBUG_STAMP)  ## build it with all invariant checks, coop._C_debug
$(DEBUG_STAMP): $(VENV_STAMP) $(NATIVE)
	$(call compile,1,debug)
	@touch $@

test: venv build build-debug  ## lint, then the quick tests on the release build and the marked ones on the debug build
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-engine test-rest test-debug
test-all: export SLOW := yes
test-all: test  ## the same with the slow tests
# The release build in two parts, so that two cores have about as much to do.
.PHONY: test-engine test-rest test-debug
# Threads that wait for each other on busy cores take ten times as long.
test-engine test-rest test-debug test-elsewhere: export OMP_NUM_THREADS := 1
test-engine: build
	COOP_DEBUG=0 $(PY) -m pytest -m "$(if $(SLOW),,not slow)" tests/adapter
test-rest: build
	COOP_DEBUG=0 $(PY) -m pytest -m "$(if $(SLOW),,not slow)" --ignore=tests/adapter
test-debug: build-debug
	COOP_DEBUG=1 $(PY) -m pytest -m "debug_build$(if $(SLOW),, and not slow and not slow_on_debug)"

# Packages that nothing else needs. Without what they depend on: that would be another torch.
ELSEWHERE_STAMP := $(VENV)/.stamp-elsewhere
$(ELSEWHERE_STAMP): requirements-elsewhere.txt $(TOOLS_STAMP)
	$(PY) -m pip install --quiet --no-deps -r requirements-elsewhere.txt
	@touch $@
test-elsewhere: build $(ELSEWHERE_STAMP)  ## run programs in the manner of others; writes docs/elsewhere.md
	COOP_DEBUG=0 $(PY) -m pytest tests/elsewhere --elsewhere-page=docs/elsewhere.md

# Goes on where it was stopped, on the same build; OPERATORS="--jobs 16" uses more processes.
test-operators: build  ## run torch's operator database with everything evicted; writes docs/operators.md
	COOP_DEBUG=0 $(PY) -m tests.operators.survey $(OPERATORS)

# The same; EVICTED="--jobs 16", or EVICTED="--shard 1/4" and so on, each by a command of its own.
test-evicted-arguments: build  ## call what takes tensors in torch's Python interface with every argument evicted; writes docs/evicted-arguments.md
	COOP_DEBUG=0 OMP_NUM_THREADS=1 $(PY) -m tests.evicted $(EVICTED)

# Many minutes. Programs of two and of four processes over gloo, 200 random ones among them.
test-distributed: export OMP_NUM_THREADS := 1
test-distributed: build  ## run all programs of several processes, on two and on four
	COOP_DEBUG=0 $(PY) -m tests.adapter.distributed --ranks 2
	COOP_DEBUG=0 $(PY) -m tests.adapter.distributed --ranks 4

no-growth-distributed: export OMP_NUM_THREADS := 1
no-growth-distributed: build  ## train four processes for 1,000 steps and see that nothing grows on any
	COOP_DEBUG=0 $(PY) -m tests.adapter.distributed_growth

test-compiled: build  ## compiled programs (aot_eager and inductor), random ones, torch's operators as graphs, and how far down programs go
	COOP_DEBUG=0 OMP_NUM_THREADS=1 $(PY) -m pytest tests/compiled
	COOP_DEBUG=0 OMP_NUM_THREADS=1 $(PY) -W ignore -m tests.compiled.operators
	COOP_DEBUG=0 OMP_NUM_THREADS=1 $(PY) -m tests.compiled

test-faults: build  ## let every placement of a training step fail in turn
	COOP_DEBUG=0 $(PY) -m tests.adapter.faults

test-simulator: build  ## compare the simulator's decisions with the engine's on all programs, three policies, four budgets
	COOP_DEBUG=0 OMP_NUM_THREADS=1 $(PY) -m tests.planner.equality

# The same; FUZZ="--operators 10000000 --jobs 2" runs more.
fuzz: build  ## run random programs, 1,000,000 operators in all
	COOP_DEBUG=0 $(PY) -m tests.fuzz $(FUZZ)

no-growth: build  ## train for 10,000 steps and see that nothing grows
	COOP_DEBUG=0 $(PY) -m tests.adapter.no_growth

# The core alone, which needs no torch: its fuzz drivers with random bytes, on any compiler.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
DRIVER_FLAGS := $(SANITIZERS) -fsanitize=float-cast-overflow,float-divide-by-zero -std=c++20 -O1 -g -DCOOP_DEBUG=1 -D_GLIBCXX_ASSERTIONS -Wall -Wextra -Werror -Icsrc
DRIVER_SOURCES := $(wildcard csrc/core/*.cc csrc/core/*.h csrc/core/*/*.cc csrc/core/*/*.h) tests/core/native/input.h
SEQUENCES ?= 2000
sanitize: build/sanitize/arena build/sanitize/core build/sanitize/steps build/sanitize/needed  ## run the core's fuzz drivers under ASan and UBSan
	build/sanitize/arena 1 $(SEQUENCES)
	build/sanitize/core 1 $(SEQUENCES)
	build/sanitize/steps 1 $(SEQUENCES)
	build/sanitize/needed 1 $(SEQUENCES)
build/sanitize/%: tests/core/native/fuzz_%.cc tests/core/native/random_inputs.cc $(DRIVER_SOURCES)
	@mkdir -p $(@D)
	$(CXX) $(DRIVER_FLAGS) $(filter %.cc,$^) -o $@

# The extension (torch itself is not instrumented) runs its tests in a copy of the tree, as the debug
# build there. Python does not give back all it allocates: no leaks are looked for.
SANITIZED := build/sanitize/tree
PRELOAD = $(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so)
SANITIZED_PY = cd $(SANITIZED) && LD_PRELOAD="$(PRELOAD)" ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=print_stacktrace=1 COOP_DEBUG=1 $(abspath $(PY))
sanitize-torch: venv build/sanitize/.stamp-extension  ## run the engine's tests and random programs under ASan and UBSan
	@rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	@cp -r coop csrc tests pyproject.toml setup.py $(SANITIZED) && rm -f $(SANITIZED)/coop/*.so
	@cp build/sanitize/extension/coop/*.so $(SANITIZED)/coop
	$(SANITIZED_PY) -m pytest --capture=sys -m debug_build tests/adapter tests/fuzz
	$(SANITIZED_PY) -m tests.fuzz --operators 40000
build/sanitize/.stamp-extension: $(VENV_STAMP) $(NATIVE)
	@mkdir -p $(@D) && echo "compiling the extension (sanitized): many minutes the first time"
	@COOP_DEBUG=1 CFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" $(PY) setup.py --quiet build_ext \
		--build-temp build/sanitize/extension --build-lib build/sanitize/extension \
		> build/sanitized.log 2>&1 || { cat build/sanitized.log; exit 1; }
	@touch $@

# The same drivers with libFuzzer, and the trace reader with atheris. Needs clang (Debian: clang,
# libfuzzer-14-dev). It goes on from build/corpus.
FUZZ_SECONDS ?= 300
FUZZ_OPTIONS = -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -print_final_stats=1 -verbosity=0
fuzz-core: venv build build/fuzz/arena build/fuzz/core  ## fuzz the core and the trace reader, guided by coverage
	@mkdir -p build/corpus/arena build/corpus/core build/corpus/trace
	build/fuzz/arena $(FUZZ_OPTIONS) -artifact_prefix=build/fuzz/arena- build/corpus/arena
	build/fuzz/core tests/core/native/found/core-*
	build/fuzz/core $(FUZZ_OPTIONS) -artifact_prefix=build/fuzz/core- build/corpus/core
	COOP_DEBUG=0 $(PY) -m tests.core.fuzz_trace $(FUZZ_OPTIONS) -artifact_prefix=build/fuzz/trace- \
		build/corpus/trace
build/fuzz/%: tests/core/native/fuzz_%.cc $(DRIVER_SOURCES)
	@mkdir -p $(@D)
	clang++ $(DRIVER_FLAGS) -fsanitize=fuzzer $(filter %.cc,$^) -o $@

lint: venv  ## check formatting, style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(CLANG_FORMAT) --dry-run -Werror

# Needs clang-tidy (Debian: clang-tidy). TIDY="$(wildcard csrc/adapter/*/*.cc)" looks at the adapter,
# whose headers of torch take a minute a file.
CLANG_TIDY ?= clang-tidy
TIDY ?= $(wildcard csrc/core/*.cc csrc/core/*/*.cc)
TIDY_TORCH = $(shell $(PY) -c 'import sysconfig; from torch.utils import cpp_extension as c; print(*(f"-isystem{d}" for d in [*c.include_paths(), sysconfig.get_path("include")]))')
tidy:  ## look for likely errors in the core, with clang-tidy
	@mkdir -p build && for source in $(TIDY); do echo "$$source"; \
		$(CLANG_TIDY) --quiet "$$source" -- -std=c++20 -Icsrc $(if $(findstring csrc/core/,$(TIDY)),,$(TIDY_TORCH)) \
		2> build/tidy.log || { cat build/tidy.log; exit 1; }; done

hooks: venv  ## install the git hooks of .pre-commit-config.yaml
	$(PY) -m pre_commit install

format: venv  ## format Python and C++
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i

bench-core: build/bench-core  ## time the arena and the search, as ratios
	build/bench-core
build/bench-core: benchmarks/core.cc $(wildcard csrc/core/*.cc csrc/core/*.h csrc/core/*/*.cc csrc/core/*/*.h)
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O3 -Wall -Wextra -Werror -Icsrc $(filter %.cc,$^) -pthread -o $@

bench-schedule: build/bench-schedule  ## time how long a schedule takes to make, by the number of operators
	build/bench-schedule
build/bench-schedule: benchmarks/schedule.cc $(wildcard csrc/core/*.cc csrc/core/*.h csrc/core/*/*.cc csrc/core/*/*.h)
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O3 -Wall -Wextra -Werror -Icsrc $(filter %.cc,$^) -pthread -o $@

bench-engine: build  ## time the engine under torch, as ratios
	$(PY) -m benchmarks.engine

bench-optimum: build  ## distance of the policies to the optimum on small graphs, as a table
	$(PY) -m benchmarks.optimum
bench-floor: build  ## the least that any policy must recompute on the paper-size traces, and the policies, as a table
	COOP_DEBUG=0 $(PY) -m benchmarks.floor
bench-zoo: build  ## record the zoo and report how the policy does on both halves; a long time at first
	COOP_DEBUG=0 OMP_NUM_THREADS=1 $(PY) -m benchmarks.zoo record
	COOP_DEBUG=0 OMP_NUM_THREADS=1 $(PY) -m benchmarks.zoo report
bench-plan: build  ## time the planner on traces of 10,000 and 100,000 operators
	COOP_DEBUG=0 $(PY) -m benchmarks.plan

# Goes on where it was stopped; benchmarks/results has the results of ours.
bench: build  ## the paper's evaluation at tiny size on the CPU, an hour; figures in build/
	$(PY) -m coop bench --ratios 1.0,0.9,0.8,0.7,0.6,0.5,0.4 --min-budget --ablations --out build/cpu-tiny.json
	$(PY) -m coop plot build/cpu-tiny.json

# Every peer at tiny size on the CPU: rows, a table, and pictures of step time against memory.
# One thread: the next cell gets ready on the other core.
bench-quick: export OMP_NUM_THREADS := 1
bench-quick: build  ## all peers in one harness on two CPU cores, in minutes; pictures in build/peers
	COOP_DEBUG=0 $(PY) -m benchmarks.peers --size tiny --out build/peers.json
	$(PY) -m benchmarks.peers.pareto build/peers.json --out build/peers

# OUT=FOLDER takes the results and logs; CHECKS="curve limits" runs some of them. CHECKS=peers runs
# what is missing of all peers, for MINUTES (8): the same command goes on with the rest.
bench-gpu:  ## build with CUDA, run the GPU tests and the GPU checks; installs nothing
	benchmarks/check.sh $(CHECKS)

# Figures from the rows in benchmarks/results.
figures: build  ## draw the figures of the documents again, and write docs/results
	for name in cpu-tiny h200-paper; do \
		$(PY) -m coop plot benchmarks/results/$$name.json --out docs/images/$$name || exit 1; done
	$(PY) -m benchmarks.harness.pages

# The Python of the tests in COVERED; the core's C++ by its fuzz drivers (random sequences) alone.
COVERED ?= tests
COVERAGE := build/coverage
COVERAGE_RUN = COOP_DEBUG=0 COVERAGE_FILE=$(abspath $(COVERAGE))/python $(PY) -m coverage
COVERAGE_SEQUENCES ?= 300
coverage: venv build $(COVERAGE)/arena $(COVERAGE)/core  ## coverage of Python by the tests and of the core by its drivers
	$(COVERAGE_RUN) run --source=coop --branch -m pytest $(COVERED)
	$(COVERAGE_RUN) report --skip-empty | tee $(COVERAGE)/python.txt
	for driver in arena core; do $(COVERAGE)/$$driver 1 $(COVERAGE_SEQUENCES) || exit 1; done
	$(VENV)/bin/gcovr --root . --filter csrc/core $(COVERAGE) | tee $(COVERAGE)/core.txt
$(COVERAGE)/%: tests/core/native/fuzz_%.cc tests/core/native/random_inputs.cc $(DRIVER_SOURCES)
	@mkdir -p $(COVERAGE)/$*-objects
	@for source in $(filter %.cc,$^); do \
		$(CXX) --coverage -std=c++20 -O0 -g -Icsrc -c $$source \
			-o $(COVERAGE)/$*-objects/$$(basename $$source .cc).o || exit 1; done
	$(CXX) --coverage $(COVERAGE)/$*-objects/*.o -o $@

# For the build matrix of CI: another torch than requirements.txt has.
torch: $(VENV_STAMP)  ## replace the torch of .venv by TORCH=2.11.0
	$(PY) -m pip install --quiet torch==$(TORCH)

# One for the torch of .venv (`make torch TORCH=2.15.0 wheels` for another one), in a folder of that
# torch's: `pip install --find-links dist/torch-2.13-cpu torch-coop`. Tried out where neither the
# checkout nor anything but torch, numpy and rich can be found.
WHEEL_FOR = $(shell $(PY) -c 'import torch; v = torch.version; print(f"torch-{torch.__version__[:4]}-" + ("cu" + v.cuda.replace(".", "") if v.cuda else "cpu"))')
wheels: $(VENV_STAMP)  ## build a wheel for this Python and this torch, and import it in a fresh environment
	@echo "compiling a wheel for $(WHEEL_FOR): a few minutes"
	COOP_WHEEL=1 $(PY) -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist/$(WHEEL_FOR) .
	rm -rf build/wheel-venv && $(PYTHON) -m venv build/wheel-venv
	env -u PYTHONPATH build/wheel-venv/bin/python -m pip install --quiet --no-deps --no-index --find-links dist/$(WHEEL_FOR) --pre torch-coop
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/wheel-venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	cd build/wheel-venv && env -u PYTHONPATH bin/python -c 'import coop; assert "wheel-venv" in coop.__file__, coop.__file__'
	cd build/wheel-venv && env -u PYTHONPATH bin/coop doctor
	@ls dist/$(WHEEL_FOR)

# In an environment of its own: it needs neither torch nor the extension.
DOCS_VENV := build/docs-venv
DOCS_STAMP := $(DOCS_VENV)/.stamp
docs: $(DOCS_STAMP)  ## build the site into build/site; a wrong link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	@echo "the site: build/site/index.html"
$(DOCS_STAMP): requirements-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet -r requirements-docs.txt
	@touch $@

demo: build  ## train inside a budget
	$(PY) -m coop demo

clean:  ## remove what was built; .venv stays
	rm -rf build dist *.egg-info coop/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find coop tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
