# Everything a fresh machine needs is made here, from Python and a shell: `make demo`, `make test`.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# All state lives here; set HARVEST_HOME to move it.
HARVEST_HOME ?= $(CURDIR)/.harvest
export HARVEST_HOME
PYTHON ?= python3
# Paths may hold spaces, which make splits targets at: they are quoted words, and the shell looks after the stamp.
BIN := "$(HARVEST_HOME)/venv/bin"
STAMP := "$(HARVEST_HOME)/venv/.ready"
export UV_PROJECT_ENVIRONMENT := $(HARVEST_HOME)/venv
export UV_CACHE_DIR ?= $(HARVEST_HOME)/cache/uv
# Interpreters cannot be downloaded everywhere; the one that is here will do.
export UV_PYTHON_DOWNLOADS := never
export PYTHONDONTWRITEBYTECODE := 1

EXTRAS := --extra local --extra spark --extra quality --extra dagster --extra airflow --extra dev
WORKERS ?= 2

.PHONY: help setup demo test test-long test-e2e lint format bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make the environment from the lock
	@if [ -z "$$(find $(STAMP) -newer pyproject.toml -newer uv.lock -newer infra/bootstrap.sh 2>/dev/null)" ]; then \
	  sh infra/bootstrap.sh "$(PYTHON)" "$(HARVEST_HOME)" $(EXTRAS) && touch $(STAMP); \
	fi

demo: setup  ## Spark writes, the harvester delivers, its leader is killed twice, the audit proves it
	@$(BIN)/python -m infra.demo

test: lint  ## lint, types, layers and the tests, on WORKERS=2 workers
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term
	@$(BIN)/python -m pytest -m "e2e and not long" tests/e2e

test-long: setup  ## the tests that take longer
	@$(BIN)/python -m pytest -m "long and not e2e" --timeout 900

test-e2e: setup  ## Airflow, Dagster, Spark, harvester and browser together, and broken in five ways
	@sh infra/browser.sh
	@$(BIN)/python -m pytest -m e2e tests/e2e

lint: setup  ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: setup  ## rewrite the code as `lint` wants it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup  ## measure, against floors measured in the same run (`harvest bench --help`)
	@$(BIN)/python -m tests.benchmarks

docs: setup  ## rewrite the generated parts of docs/
	@$(BIN)/python -m infra.docs

clean:  ## remove all state: environment, servers' data, reports
	@rm -rf "$(HARVEST_HOME)" .mypy_cache .ruff_cache .pytest_cache .hypothesis
