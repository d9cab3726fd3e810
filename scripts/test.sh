#!/usr/bin/env bash
# All tests on the editable install.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
# One more than the cores: tests of ranks and kills wait more than they compute.
workers=${FTCLI_TEST_WORKERS:-$(python -c 'import os; print(len(os.sched_getaffinity(0)) + 1)')}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false
# Where PYTHONDONTWRITEBYTECODE is set, each of the many processes of ftcli would compile it anew: 1.1 of the 5.9 s of CPU of a `tokenize`.
python -m compileall -q -x /test_ src plugins profiles tests benchmarks
# Collecting takes a worker 12 s of CPU then, and 27 where each of them rewrites all asserts for itself.
python scripts/rewritten.py || echo "the tests' asserts are rewritten by each worker"

echo "== the suite, editable install, $workers workers"
measure=()
if [ -n "${FTCLI_COVERAGE:-}" ]; then  # a fifth of the CPU of the tests that it watches: a minute and more of the suite on two cores
  rm -f .coverage .coverage.*
  measure=(--cov --cov-report=)
fi
python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "${measure[@]}" --durations=80 -q
if [ -n "${FTCLI_COVERAGE:-}" ]; then
  python -m coverage report --fail-under="${FTCLI_MIN_COVERAGE:-90}"
fi
