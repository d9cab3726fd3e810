# Two commands on a fresh machine: make demo, make test. Both need Linux, Python 3.11 to 3.13 and pip, nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip
# pip compiles one file after the other: 84 of 164 s of CPU on one core. Here the other cores do it, while it unpacks.
QUIET := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Where PYTHONDONTWRITEBYTECODE is set, every command would compile what it imports: 20 s with torch. Some packages hold files that are no Python.
COMPILE := $(BIN)/python -m compileall -qq -x '/tests/'

.PHONY: help demo test suite wheel check style types unit faults-tokenize faults-train faults-scale mutants docs site release audit clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(QUIET) pip torch
	$(COMPILE) $(VENV)/lib & $(PIP) install $(QUIET) --editable .; status=$$?; wait; exit $$status
	$(COMPILE) -j 0 $(VENV)/lib src plugins profiles || true
	touch $@

$(DEV_STAMP): $(STAMP)
	$(PIP) install $(QUIET) --group dev
	$(COMPILE) -j 0 $(VENV)/lib || true
	touch $@

demo: $(STAMP)  ## the whole job on generated data: sample, tokenizer, tokenize, verify, train, benchmark
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

check: style types  ## types and style

style: $(DEV_STAMP)
	$(BIN)/ruff check src plugins tests docs benchmarks scripts
	$(BIN)/ruff format --check src plugins tests docs benchmarks scripts

types: $(DEV_STAMP)
	$(BIN)/mypy --num-workers auto src plugins benchmarks

unit: $(DEV_STAMP)  ## the fast, hermetic tests
	$(BIN)/python -m pytest -n auto -m "not slow and not real and not fault"

test: style  ## everything CI runs: types, style, all tests, and the built wheel; FTCLI_COVERAGE=1: at least 90 % covered, too
	$(MAKE) --no-print-directory --jobs 3 suite types wheel  # mypy and the demo keep one core busy for a minute each: beside the tests

suite: $(DEV_STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/test.sh

wheel: $(DEV_STAMP)  ## the built wheel in an empty directory
	PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/wheel.sh

faults-tokenize: $(DEV_STAMP)  ## the reliability tests of tokenize and their table; FTCLI_FAULTS=full: with all points and rounds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --reliability 1-13,22,24-27 --reliability-json reliability.json

faults-train: $(DEV_STAMP)  ## the reliability tests of train and their table; FTCLI_FAULTS=full: every crash point, every cell of exact resume
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --reliability 14-23 --reliability-json reliability-train.json

faults-scale: $(DEV_STAMP)  ## the reliability tests of several machines and their table; FTCLI_FAULTS=full: more kills
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --reliability 28-33 --reliability-json reliability-scale.json

mutants: $(DEV_STAMP)  ## every fault that verify must find, planted in a healthy run: cause, caught by, seconds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -p no:xdist $(wildcard tests/test_checks_*.py) tests/test_incident2.py

site: $(DEV_STAMP)  ## the documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

release: $(DEV_STAMP)  ## wheel and sdist, built twice and compared, their sums and a CycloneDX SBOM in dist/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	$(BIN)/python scripts/release.py

audit:  ## known vulnerabilities of what constraints.txt pins; needs the internet. One that cannot be looked up fails, too
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

docs: $(DEV_STAMP)  ## write the generated parts of docs/
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist demo ftcli-reports *.egg-info .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
