# Needs only python3 and make; the first call installs into .venv, later calls reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# the tests start many processes: each would compile the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs linkcheck browser nginx test test-all test-pages coverage test-cuda fresh lint format demo bench reproduce chaos lock dist sbom clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[report]"
	touch $(READY)

$(DEV): $(READY)
	$(PIP) -e ".[dev]"
	touch $(DEV)

browser:  ## install Chromium for the browser tests; without it they are skipped
	@command -v chromedriver >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; } >/dev/null 2>&1 || echo "Chromium is not installed: the browser tests are skipped"

nginx:  ## install nginx for the tests of the port that sites see; without it they are skipped
	@command -v nginx >/dev/null || { apt-get update -qq && apt-get install -y -qq nginx; } >/dev/null 2>&1 || echo "nginx is not installed: the tests of the proxy are skipped"

test: $(DEV) browser nginx  ## all tests except the slow ones, one process of one thread per core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(DEV) browser nginx  ## the slow tests too
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not cuda" -n auto --dist worksteal

test-pages: $(DEV)  ## every code block of the README and the guides, the notebook, and every example
	$(BIN)/python -m pytest -m "not cuda" tests/docs tests/test_examples.py

coverage: $(DEV) browser nginx  ## branch coverage by folder, in docs/coverage.md; of some tests, on screen: ARGS="tests/math"
	rm -rf .coverage && mkdir .coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -n auto --dist worksteal $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage json --quiet
	$(BIN)/python docs/coverage_page.py .coverage/coverage.json $(ARGS) $(if $(ARGS),,> docs/coverage.md)

test-cuda: $(DEV)  ## the tests for a CUDA device: compare with the CPU
	$(BIN)/python -m pytest -m cuda

fresh:  ## lint and test as on a new machine: empty temporary folders, shared memory and HOME
	.ci/fresh $(MAKE) lint test

lint: $(DEV)  ## style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEV)  ## the documentation site, in docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx --nitpicky --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

linkcheck: $(DEV)  ## whether the links of the site to other sites work; needs the network
	$(BIN)/python -m sphinx --keep-going --quiet -b linkcheck -D nb_execution_mode=off docs docs/_build/linkcheck

demo: $(READY)  ## FedAvg, Ditto and FedTilt on 20 clients with mislabelled data
	$(BIN)/fedtilt run digits --seeds 5

bench: $(DEV)  ## compare with the plain loop and other simulators; see docs/benchmarks.md
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.aggregation
	$(BIN)/python -m benchmarks.memory

reproduce: $(DEV)  ## a table or figure of the paper or of others: make reproduce ARGS="toy --quick"
	$(BIN)/python -m reproduction $(ARGS)

chaos: $(DEV) nginx  ## kills, failing disks, bit flips, bad replies and odd input; one part: make chaos ARGS="--only fuzz"
	$(BIN)/python -m chaos $(ARGS)

lock: $(DEV)  ## pin everything that a site and a server need, for all systems and Python versions, in requirements.lock
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --extra flower --extra report \
	  -c constraints.txt --no-header --no-annotate --no-emit-index-url --output-file requirements.lock

dist: $(DEV)  ## the wheel and the source distribution, in dist/
	$(BIN)/python -m hatchling build -d dist

# The version is not in pyproject.toml; the warning is that a lock file does not say what needs what.
sbom: $(DEV)  ## what a site and a server install, as a CycloneDX bill of materials: sbom.cdx.json
	sed "s/^dynamic = .*/version = \"$$($(BIN)/python -c 'import fedtilt; print(fedtilt.__version__)')\"/" pyproject.toml \
	  > $(VENV)/sbom.toml
	$(BIN)/python -W ignore::UserWarning -m cyclonedx_py requirements requirements.lock --pyproject $(VENV)/sbom.toml \
	  --output-reproducible --output-format JSON --output-file sbom.cdx.json
	@echo "wrote sbom.cdx.json"

clean:
	rm -rf $(VENV) build dist runs .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
