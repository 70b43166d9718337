.DEFAULT_GOAL := help
.PHONY: help install demo up test test-slow test-all reproduce docs chaos check audit gpu bench bench-peers clean

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
ARGS ?=

# One thread per process: processes, not threads, share the cores among runs.
export OMP_NUM_THREADS ?= 1
# What is read once is kept compiled: the suite starts hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## Make .venv with everything in it

demo: $(INSTALLED) ## Run a federated experiment on real data through the whole service
	@$(BIN)/fedq demo $(ARGS)

up: $(INSTALLED) ## Start the embedded stack and keep it running
	@$(BIN)/fedq up $(ARGS)

test: $(INSTALLED) ## Run the tests, on all cores, without the slow ones
	@$(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal -m 'not slow and not papers' $(ARGS)

test-slow: $(INSTALLED) ## Run the slow tests alone
	@$(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal -m 'slow and not papers' $(ARGS)

test-all: $(INSTALLED) ## Run all tests, the slow ones too
	@$(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal $(ARGS)

reproduce: $(INSTALLED) ## Run every figure of the papers on generated data in full and hold its claims to the record (a quarter of an hour)
	@$(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal -m papers tests/presets $(ARGS)

docs: $(INSTALLED) ## Build the documentation as a site, into site/
	@$(BIN)/python -m deploy.site $(ARGS)

e2e: $(INSTALLED) ## Use the pages in a real browser, which must be on PATH (ARGS=--screenshots makes the pictures of docs/images/pages anew)
	@$(BIN)/python -m pytest --override-ini='python_files=e2e_*.py' tests/browser $(ARGS)

chaos: $(INSTALLED) ## Kill, freeze and cut off what carries a run out, 50 times and more, and report how soon it goes on (ten minutes)
	@$(BIN)/python -m tests.chaos $(ARGS)

check: $(INSTALLED) ## Format, lint, types, import contracts, prose
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/proselint check *.md docs/*.md docs/decisions/*.md docs/reproductions/*.md

audit: $(INSTALLED) ## Look up known vulnerabilities of the pinned dependencies, where there is a network
	@$(BIN)/python -m deploy.audit

bench: $(INSTALLED) ## Measure the figures of README.md and docs/performance.md
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(INSTALLED) ## Measure FedQ against other simulators, in environments made in .bench
	@$(BIN)/python -m bench environments
	@$(BIN)/python -m bench peers $(ARGS)

gpu: $(INSTALLED) ## On a machine with a GPU: its tests, then five seeds of each workload on it, in a gang and one by one
	@$(BIN)/python -m pytest tests/engine/accelerated/gpu tests/engine/accelerated/test_cuda.py $(ARGS)
	@$(BIN)/python -m bench seeds --device cuda --workloads W1,W2,W3,W4,W5

clean: ## Remove .venv, .bench and caches (experiments in .fedq stay)
	rm -rf .venv .bench .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

$(INSTALLED): pyproject.toml deploy/service/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("FedQ needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another: make install PYTHON=python3.12")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing into .venv; the first time takes a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]' --editable ./deploy/service --constraint constraints.txt
	@# On all cores, where pip would on one. Some packages bring files that are templates: those cannot be compiled.
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@
