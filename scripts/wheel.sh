#!/usr/bin/env bash
# The built wheel in an empty directory: what it holds, the demo, and the tests of what an installation adds.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== the built wheel, in an empty directory"
# From a copy: what a build leaves in the source tree is no business of the tests beside it.
mkdir "$work/source" && cp -r pyproject.toml README.md LICENSE src plugins profiles "$work/source/"
python -m build --quiet --wheel --outdir "$work/dist" "$work/source"
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
FTCLI_TEST_NURSERY=off "$work/venv/bin/python" -m pytest -p no:cacheprovider -n 2 --dist worksteal -q -m "not slow and not real and not fault" \
  "${files[@]}"
