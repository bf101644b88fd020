#!/usr/bin/env bash
# Everything that a card is asked, in one command of less than 600 s: docs/gpu.md, "Measuring".
#
#   tests/gpu/fifteen_minutes.sh                      machine, correctness, updates, racing, runs, inference, experiments
#   tests/gpu/fifteen_minutes.sh --first | --second   the halves, less than 300 s each
#   tests/gpu/fifteen_minutes.sh --steps updates runs --seconds 200
#   tests/gpu/fifteen_minutes.sh --device cpu --tiny  the script itself, without a card
#
# Each step has its own time, and a failed one costs the later ones nothing. Rows are printed at once and are written
# as a table to $OUT/gpu.md, or to --out FILE. Exits with 1 if a step or a row failed. PYTHON names another python3.
set -u
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-python3}" -u -m tests.bench.gpu --out "${OUT:-build}/gpu.md" "$@"
