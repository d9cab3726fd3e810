#!/usr/bin/env bash
# All tests on the editable install; then the built wheel in an empty directory.
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
python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "${measure[@]}" --durations=10 -q
if [ -n "${FTCLI_COVERAGE:-}" ]; then
  python -m coverage report --fail-under="${FTCLI_MIN_COVERAGE:-90}"
fi

echo "== the built wheel, in an empty directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python -m build --quiet --wheel --outdir "$work/dist" "$root"
python -m venv --without-pip "$work/venv"
# The packages of this environment are seen through a .pth file; ftcli itself comes from the wheel alone.
site=$(python -c 'import site; print(site.getsitepackages()[0])')
wheel_site=$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
python -m pip --python "$work/venv/bin/python" install --quiet --disable-pip-version-check --no-deps "$work"/dist/*.whl
echo "$site" > "$wheel_site/zz-dependencies.pth"
# What the suite above has run is what the wheel holds, byte for byte. So only what an installation adds is left to try:
# the entry point, modules and data files found where the wheel puts them, processes that start from there.
python "$root/scripts/installed.py" "$root" "$wheel_site"
cp -r tests examples benchmarks scripts optimize_env.sh pyproject.toml docs README.md README.ko.md "$work/"
cd "$work"
PATH="$work/venv/bin:$PATH" ROWS=1000 bash examples/demo.sh > demo.log 2>&1 || { cat demo.log; exit 1; }
tail -n 1 demo.log
packaged=(cli_completion cli_help cli_run commands_plugins commands_profiles small_commands testing)
files=("${packaged[@]/#/tests/test_}")
files=("${files[@]/%/.py}")
files+=(tests/test_executors.py::test_several_workers_are_processes_that_share_the_shards tests/test_report.py::test_the_same_report_gives_the_same_bytes)
FTCLI_TEST_NURSERY=off "$work/venv/bin/python" -m pytest -p no:cacheprovider -n "$workers" --dist worksteal -q -m "not slow and not real and not fault" \
  "${files[@]}"
