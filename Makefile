# Every target does its own set-up (scripts/setup.sh); the second run finds it done.

SHELL := /bin/bash
PYTHON_IN_VENV := .venv/bin/python
ARGS ?=
PYTHON ?=
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test bench soak lint clean python java

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: python java ## the car plant: bulk load, live inserts, a view that stays fresh (about a minute)
	@$(PYTHON_IN_VENV) -m headrace.demo $(ARGS)

test: lint java ## lint, types, tests and doctests; ARGS="-k name" runs some tests
	@$(PYTHON_IN_VENV) -m pytest -n 2 --dist loadgroup $(ARGS)

bench: python java ## benchmarks against peers, written to docs/benchmarks; ARGS="--quick"
	@$(PYTHON_IN_VENV) -m bench $(ARGS)

soak: python java ## the property tests with many more examples
	@HYPOTHESIS_PROFILE=soak $(PYTHON_IN_VENV) -m pytest -o timeout=0 tests $(ARGS)

lint: python ## ruff, mypy, who imports whom, dead code
	@$(PYTHON_IN_VENV) -m ruff check -q --no-cache .
	@$(PYTHON_IN_VENV) -m ruff format -q --check .
	@$(PYTHON_IN_VENV) -m mypy --no-error-summary
	@.venv/bin/lint-imports --no-cache --no-logo > .lint-imports.txt 2>&1 || { cat .lint-imports.txt; rm .lint-imports.txt; exit 1; }
	@rm -f .lint-imports.txt
	@! $(PYTHON_IN_VENV) -m vulture | grep -E '^(src|bench)/'

clean: ## remove the environments, generated data and caches
	@rm -rf .venv .bench-venv build dist data spark-warehouse metastore_db derby.log
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@scripts/setup.sh python

java:
	@scripts/setup.sh java
