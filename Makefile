PYTHON ?= python3
BIN := .venv/bin
# One stamp per set of extras: a second call of any target installs nothing.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check clean

demo: .venv/installed
	$(BIN)/fairlead compare fedavg fedrep+confree ditto fedora --seeds 3 --out runs/demo

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/pytest -n 2 --dist worksteal --cov=fairlead --cov-report=
	@echo "Coverage: the tests ran $$($(BIN)/coverage report --format=total)% of the lines in src/fairlead"

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch goes first, pinned: an unpinned request would pull the accelerator build.
.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
