# make demo   a server and a worker of its own, real recordings, nothing left running
# make test   lint, format, types, layers, tests
# make lint   the first four of them
# make clean  what the two have made, the caches in the user's folder aside
#
# Each makes .venv when it is missing or out of date. PYTHON=... chooses the interpreter.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(ENOUGH)' 2>/dev/null && { echo "$$p"; break; }; done)

.PHONY: demo test lint clean

demo: $(VENV)/.demo
	@$(BIN)/decibatch demo

# Three at a time, a file each: most tests wait for processes more than they compute.
test: lint
	$(BIN)/pytest -n 3 --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[worker,demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[worker,demo,dev]'
	@touch $@ $(VENV)/.demo

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; PYTHON=/path/to/python3 names one." >&2; exit 1; }
	@"$(PYTHON)" -c '$(ENOUGH)' || { echo "$(PYTHON) is older than 3.11; PYTHON=... names another." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
