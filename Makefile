PYTHON ?= python3
BIN := .venv/bin
# One stamp per set of extras: a second call of any target installs nothing.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALL_MACHINES := .venv-machines/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-machines.txt

.PHONY: demo picture test types-of-library types-of-tests coverage test-machines audit lock clean

demo: .venv/installed
	$(BIN)/fairlead compare fedavg fedrep+confree ditto --data heart-disease --effort quick --out runs/demo

# The README's table and picture, from one run of the demo; needs Chromium.
picture: demo
	$(BIN)/python docs/demo.py

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(MAKE) --no-print-directory -j 2 types-of-library types-of-tests
	$(BIN)/pytest -n 2 --dist worksteal

types-of-library:
	$(BIN)/mypy

types-of-tests:
	$(BIN)/mypy --config-file tests/mypy.ini

# The tests once more, with the lines counted: half as long again.
coverage: .venv/installed-dev
	$(BIN)/pytest -n 2 --dist worksteal --cov=fairlead --cov-report=
	@echo "Coverage: the tests ran $$($(BIN)/coverage report --format=total)% of the lines in src/fairlead"

# Flower, NVFlare and Ray have an environment of their own, since Flower wants older versions of typer and rich. The tests wait
# for Flower more than they compute, so there are more workers than cores, with a file each: the tests of one share a cluster. In
# the order of their names the longest begin first. What needs none of them is in `make test`.
test-machines: .venv-machines/installed
	.venv-machines/bin/pytest -n 4 --dist loadfile --no-loadscope-reorder tests/machines --ignore tests/machines/test_study.py --ignore tests/machines/test_waits.py

# Known weaknesses of the packages in requirements.lock; nothing of them is installed for it.
audit: .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(BIN)/pip-audit --require-hashes --disable-pip --requirement requirements.lock

# Exact versions with hashes, for all systems and Python versions; needs uv.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--constraint constraints.txt --extra dev pyproject.toml --output-file requirements.lock

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

.venv-machines/installed: pyproject.toml constraints-machines.txt
	$(PYTHON) -m venv .venv-machines
	$(INSTALL_MACHINES) torch==2.13.0
	$(INSTALL_MACHINES) --editable '.[dev,flower,nvflare,ray]'
	touch $@

clean:
	rm -rf .venv .venv-machines runs .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
