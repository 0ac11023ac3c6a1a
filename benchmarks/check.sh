#!/usr/bin/env bash
# Builds on a machine with a GPU, runs the GPU tests and the checks of `python -m benchmarks`, and
# prints tables. Nothing is installed. Parts may be named:
#     benchmarks/check.sh tests identical full curve limits smallest predict overhead
set -u
cd "$(dirname "$0")/.."
out=${OUT:-build}
mkdir -p "$out"
# On many cores a file each takes 52 s, a unit 82 s.
if ! COOP_UNITY=${COOP_UNITY:-0} MAX_JOBS=${MAX_JOBS:-16} python3 setup.py --quiet build_ext --inplace > "$out/gpu-build.log" 2>&1; then
  grep -A4 "error:" "$out/gpu-build.log" | cut -c1-300 | head -40
  exit 1
fi

# Every test starts a process or more, which imports torch: the files at once.
run_tests() {
  local failed=0 file pid pids=()
  for file in "${tests[@]}"; do
    python3 -m pytest "$file" -q --no-header -p no:cacheprovider > "$out/$(basename "$file").log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  for file in "${tests[@]}"; do tail -n 40 "$out/$(basename "$file").log"; done
  return $failed
}

shopt -s nullglob
tests=(tests/cuda/test_*.py)
[ $# -gt 0 ] || set -- tests identical full curve limits
status=0
for part in "$@"; do
  if [ "$part" = tests ]; then
    run_tests || status=1
  elif [ "$part" = peers ]; then
    # Goes on with the rows of build/ wherever OUT is; the next slice may be on another machine.
    mkdir -p build
    python3 -m benchmarks.peers --size paper --minutes "${MINUTES:-8}" --out build/peers.json || status=$?
    python3 -m benchmarks.peers.pareto build/peers.json --out "$out/peers"
    [ "$out" -ef build ] || cp build/peers.json "$out"
  else
    python3 -m benchmarks "$part" --out "$out/cuda-$part.json" || status=1
  fi
done
exit $status
