# Everything starts from a fresh clone with python3 and make; a second call does not install again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: browser test test-all test-cuda lint format demo bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

browser:  ## the browser that opens reports in tests; without one those tests are skipped
	@command -v chromedriver >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; } >/dev/null 2>&1 || echo "no chromium here: the browser tests are skipped"

test: $(READY) browser  ## the whole suite but the heavy cases
	$(BIN)/python -m pytest

test-all: $(READY) browser  ## the heavy cases too
	$(BIN)/python -m pytest -m "not cuda"

test-cuda: $(READY)  ## on a CUDA device: the same numbers as on the CPU
	$(BIN)/python -m pytest -m cuda

lint: $(READY)  ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(READY)  ## FedAvg, Ditto and FedTilt on 20 clients whose labels are partly wrong
	$(BIN)/fedtilt run

bench: $(READY)  ## ratios measured in one run, peers included; see docs/performance.md
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/aggregation.py
	$(BIN)/python benchmarks/memory.py

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
