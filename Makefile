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
# What is downloaded is shared by all clones; set HARVEST_CACHE to move it.
HARVEST_CACHE := $(shell sh infra/downloads.sh cache "$(HARVEST_HOME)")
export HARVEST_CACHE
export UV_CACHE_DIR ?= $(HARVEST_CACHE)/uv
# Behind a company's proxy only the machine knows whom to trust. What the user has set stays.
ifeq ($(origin UV_SYSTEM_CERTS) $(origin UV_NATIVE_TLS),undefined undefined)
export UV_SYSTEM_CERTS := $(shell sh infra/downloads.sh certificates)
endif
# Interpreters cannot be downloaded everywhere; the one that is here will do.
export UV_PYTHON_DOWNLOADS := never
# Tests start hundreds of processes: what one has compiled, the next one finds, and no source tree is written to.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(HARVEST_HOME)/cache/pycache

EXTRAS := --extra local --extra spark --extra demo --extra quality --extra pipeline --extra parquet --extra archive --extra dagster --extra airflow --extra docs --extra dev
# The clone is part of it: where two share a place for state, each installs itself.
MADE_FROM = $(CURDIR) $(PYTHON) $(EXTRAS)
WORKERS ?= 2
# Tests of the gate, and those that kill and freeze, wait for half of the time.
GATE_WORKERS ?= 4
TIERS ?= quick
RUN = $(BIN)/python -m tests.run --workers
# Not by the variable itself, which `make -n` runs.
BESIDE := $(MAKE) --no-print-directory lint audit
PARALLEL = -n $(WORKERS) --dist worksteal

.PHONY: help setup tested platform demo demo-consume demo-pipeline demo-spark test test-gate test-all test-long test-least test-python coverage test-e2e lint audit sbom format bench compare chaos alerts machine docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make the environment from the lock
	@if [ "$$(cat $(STAMP) 2>/dev/null)" != "$(MADE_FROM)" ] || \
	  [ -z "$$(find $(STAMP) -newer pyproject.toml -newer uv.lock -newer infra/bootstrap.sh -newer infra/native_build.py $(patsubst %,-newer %,$(wildcard harvest_lib/native/*.[ch])) 2>/dev/null)" ]; then \
	  sh infra/bootstrap.sh "$(PYTHON)" "$(HARVEST_HOME)" $(EXTRAS) && echo "$(MADE_FROM)" > $(STAMP); \
	fi

tested: setup  # the environment, and on Debian, as root, the pooler and Prometheus that some tests need
	@sh infra/machine.sh pooler

platform: setup  ## Dagster and Airflow on Postgres and Kafka, on this machine; `.harvest/venv/bin/harvest down` ends them
	@$(BIN)/harvest platform

demo: setup  ## Spark writes, the pool delivers, leaders are killed, the audit proves it; then exactly once; then Dagster
	@$(BIN)/python -m infra.demo

demo-consume: setup  ## flights are counted exactly, while those who count are killed and frozen
	@$(BIN)/python -m infra.demo_consume

demo-pipeline: setup  ## a table is copied and followed into Kafka, a second table and Parquet, through ten kills
	@$(BIN)/python -m infra.demo_pipeline

demo-spark: setup  ## orders go from files through Spark, outbox and topic into totals, while each joint is killed
	@$(BIN)/python -m infra.demo_spark

test: tested  ## lint, types, layers, audit, and the tests of each capability, in 5 minutes
	@$(RUN) $(WORKERS) $(TIERS) --beside "$(BESIDE)"

test-gate: tested  ## the rest that every change has to pass: `.ci/run` is `make test` with both tiers
	@$(RUN) $(GATE_WORKERS) gate

test-all: tested lint audit  ## all tiers: what kills, freezes and disconnects, too; random examples; then end to end
	@HYPOTHESIS_PROFILE=random $(RUN) $(GATE_WORKERS) quick gate full
	@$(BIN)/python -m pytest -m "e2e and not long" tests/e2e

test-long: tested  ## the tests that take longer
	@$(BIN)/python -m pytest -m "long and not e2e" --timeout 900

test-least: tested  ## tests whose subject is a harvester, limited to exactly what `harvest grants` prints
	@TEST_LEAST_PRIVILEGE=1 $(BIN)/python -m pytest -m "not e2e" tests/integration tests/contract

test-python: tested  ## tests of harvesting once more, with HARVEST_IMPL=python
	@HARVEST_IMPL=python $(BIN)/python -m pytest $(PARALLEL) -m "not long and not e2e" tests/contract tests/property \
	  tests/integration/delivery tests/integration/harvester tests/integration/subscriptions

coverage: tested  ## which lines the tests reach
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term-missing:skip-covered

test-e2e: tested  ## Airflow, Dagster, Spark, harvester and browser together, and broken in five ways
	@sh infra/browser.sh
	@$(BIN)/python -m pytest -m e2e tests/e2e

lint: setup  ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

audit: setup  ## ask whether anything known is wrong with what the lock names; says so where nobody can be asked
	@$(BIN)/python -m infra.supply_chain audit

sbom: setup  ## write dist/sbom.cdx.json: what the lock names, with hashes (CycloneDX)
	@$(BIN)/python -m infra.supply_chain sbom

format: setup  ## rewrite the code as `lint` wants it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup  ## measure, against floors measured in the same run (`harvest bench --help`)
	@$(BIN)/python -m tests.benchmarks

compare: setup  ## goharvest and Debezium's outbox router beside ours, in one run; COMPARE="--records 100000" sizes it
	@$(BIN)/python -m tests.benchmarks.compare $(COMPARE)

chaos: setup machine  ## half an hour of faults on real processes, in all ways; writes the table in docs/faults.md
	@$(BIN)/harvest chaos --duration 30m --mode all --rate 1100 --table docs/faults.md

alerts: setup machine  ## which alerts each fault fires, in a real Prometheus; writes the table in docs/alerts.md
	@$(BIN)/python -m infra.chaos.alerts --table docs/alerts.md

machine:  ## install the system packages that some faults need, as root on Debian
	@sh infra/machine.sh

docs: setup  ## rewrite the generated parts of docs/, and build the site, strictly, in .harvest/site
	@$(BIN)/python -m infra.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f infra/site/mkdocs.yml -d "$(HARVEST_HOME)/site"

clean:  ## remove all state: environment, servers' data, reports; the downloads that clones share stay
	@sh infra/clean.sh "$(HARVEST_HOME)" "$(HARVEST_CACHE)"
