#!/usr/bin/env bash
# Builds on a machine with a GPU, runs the GPU tests and all measurements, prints tables.
# Parts may be named: benchmarks/gpu/check.sh tests identical full curve limits
set -u
cd "$(dirname "$0")/../.."
log=${OUT:-build}/gpu-build.log
mkdir -p "$(dirname "$log")"
if ! MAX_JOBS=16 python3 setup.py --quiet build_ext --inplace > "$log" 2>&1; then
  grep -A4 "error:" "$log" | cut -c1-300 | head -40
  exit 1
fi
for part in ${@:-tests identical full curve limits}; do
  if [ "$part" = tests ]; then
    python3 -m pytest tests/gpu -q --no-header -p no:cacheprovider | tail -40
  else
    python3 -m benchmarks.gpu.check "$part" ${OUT:+--out "$OUT"}
  fi
done
