# Everything a fresh machine needs is made here, from Python and a shell: `make demo`, `make test`.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# All state lives here; set HARVEST_HOME to move it.
HARVEST_HOME ?= $(CURDIR)/.harvest
export HARVEST_HOME
PYTHON ?= python3
VENV := $(HARVEST_HOME)/venv
BIN := $(VENV)/bin
export UV_PROJECT_ENVIRONMENT := $(VENV)
export UV_CACHE_DIR ?= $(HARVEST_HOME)/cache/uv
# Interpreters cannot be downloaded everywhere; the one that is here will do.
export UV_PYTHON_DOWNLOADS := never
export PYTHONDONTWRITEBYTECODE := 1

EXTRAS := --extra local --extra spark --extra dev

.PHONY: help setup demo test test-long lint format bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml uv.lock infra/bootstrap.sh
	@sh infra/bootstrap.sh "$(PYTHON)" "$(HARVEST_HOME)" $(EXTRAS)
	@touch $@

setup: $(VENV)/.ready  ## make the environment from the lock

demo: $(VENV)/.ready  ## Spark writes, the harvester delivers, its leader is killed twice, the audit proves it
	@$(BIN)/python -m infra.demo

test: lint  ## lint, types, layers and the tests
	@$(BIN)/python -m pytest

test-long: $(VENV)/.ready  ## the tests that take longer
	@$(BIN)/python -m pytest -m long

lint: $(VENV)/.ready  ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.ready  ## rewrite the code as `lint` wants it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.ready  ## measure, against floors measured in the same run
	@$(BIN)/python -m tests.benchmarks

docs: $(VENV)/.ready  ## rewrite the generated parts of docs/
	@$(BIN)/python -m infra.docs

clean:  ## remove all state: environment, servers' data, reports
	@rm -rf "$(HARVEST_HOME)" .mypy_cache .ruff_cache .pytest_cache .hypothesis
