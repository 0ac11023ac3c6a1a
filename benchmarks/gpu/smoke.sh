#!/usr/bin/env bash
# Builds on a machine with a GPU and runs the GPU tests.
set -u
cd "$(dirname "$0")/../.."
MAX_JOBS=16 python3 setup.py --quiet build_ext --inplace > "${OUT:-/tmp}/build.log" 2>&1 || { grep -A4 "error:" "${OUT:-/tmp}/build.log" | cut -c1-300 | head -40; exit 1; }
python3 -m pytest tests/gpu -q -x --no-header -p no:cacheprovider 2>&1 | tail -80
