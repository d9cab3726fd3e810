#!/usr/bin/env bash
# All tests, twice: the editable install with coverage, and the built wheel in an empty directory.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
# One more than the cores: tests of ranks and kills wait more than they compute.
workers=${FTCLI_TEST_WORKERS:-$(python -c 'import os; print(len(os.sched_getaffinity(0)) + 1)')}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false

echo "== the suite, editable install, $workers workers"
rm -f .coverage .coverage.*
python -m pytest -n "$workers" --dist loadfile --cov --cov-report= --durations=10 -q
python -m coverage report --fail-under="${FTCLI_MIN_COVERAGE:-90}"

echo "== the suite from the built wheel, in an empty directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python -m build --quiet --wheel --outdir "$work/dist" "$root"
python -m venv --without-pip "$work/venv"
# The packages of this environment are seen through a .pth file; ftcli itself comes from the wheel alone.
site=$(python -c 'import site; print(site.getsitepackages()[0])')
wheel_site=$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
python -m pip install --quiet --disable-pip-version-check --no-deps --target "$wheel_site" "$work"/dist/*.whl
echo "$site" > "$wheel_site/zz-dependencies.pth"
cp -r tests examples optimize_env.sh pyproject.toml docs README.md "$work/"
cd "$work"
FTCLI_REAL_DATA=${FTCLI_REAL_DATA:-$root/../shared/data} FTCLI_PROJECT_ROOT="$work" \
  "$work/venv/bin/python" -m pytest -p no:cacheprovider -n "$workers" --dist loadfile -q -m "not slow and not real and not fault" tests
