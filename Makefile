.DEFAULT_GOAL := help
.PHONY: help install demo up test test-slow test-all test-lowest reproduce docs e2e chaos check scripts audit gpu bench bench-peers clean

PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
DEVELOPMENT := .venv/.development
LOWEST := .lowest/.installed
SCRIPTS := api/web/node_modules/.installed
PROJECTS := pyproject.toml deploy/service/pyproject.toml
ARGS ?=
PROCESSES ?= logical

# TORCH=cpu installs PyTorch without CUDA, a quarter of the size.
TORCH ?=
ifeq ($(TORCH),cpu)
TORCH_BACKEND := --torch-backend cpu
else ifneq ($(TORCH),)
$(error TORCH is "$(TORCH)"; "cpu" is the only choice, and without it PyTorch comes with CUDA)
endif

# One thread per process: processes, not threads, share the cores among runs.
export OMP_NUM_THREADS ?= 1
# Packages of a gigabyte come slowly in some places.
export UV_HTTP_TIMEOUT ?= 180
# As uv below: the certificates that the system trusts.
export NODE_USE_SYSTEM_CA ?= 1
# What is read once is kept compiled: the suite starts hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

install: $(DEVELOPMENT) ## Make .venv with everything in it (TORCH=cpu: without CUDA)

demo: $(DEMO) ## Run a federated experiment on real data through the whole service
	@$(BIN)/fedq demo $(ARGS)

up: $(DEMO) ## Start the embedded stack and keep it running
	@$(BIN)/fedq up $(ARGS)

test: $(DEVELOPMENT) ## Run the tests, on all cores, without the slow ones
	@$(BIN)/python -m pytest --numprocesses=$(PROCESSES) --maxprocesses=8 --dist=worksteal -m 'not slow and not papers and not nightly' $(ARGS)

test-slow: $(DEVELOPMENT) ## Run the slow tests alone, without the exhaustive ones
	@# Half of the time they wait for processes that they have started. Files without any are not imported.
	@$(BIN)/python -m pytest --numprocesses=$$((2 * $$(nproc))) --maxprocesses=8 --dist=worksteal -m 'slow and not papers and not nightly' $$(grep -rl --include='test_*.py' 'mark\.slow' tests) $(ARGS)

test-all: $(DEVELOPMENT) ## Run all tests, the slow and the exhaustive ones too
	@$(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal $(ARGS)

test-lowest: $(LOWEST) ## Run the quick tests with the oldest versions that pyproject.toml allows, in an environment of their own
	@# Old releases call what their own dependencies have deprecated since, and leave sockets to be collected.
	@.lowest/bin/python -m pytest -W default::DeprecationWarning -W default::pytest.PytestUnraisableExceptionWarning --numprocesses=logical --maxprocesses=8 --dist=worksteal -m 'not slow and not papers and not nightly' --ignore=tests/browser --ignore=tests/deploy --ignore=tests/docs $(ARGS)

reproduce: $(DEVELOPMENT) ## Run every figure of the papers on generated data in full and hold its claims to the record (up to an hour)
	@$(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal -m papers tests/presets $(ARGS)

docs: $(DEVELOPMENT) ## Build the documentation as a site, into site/
	@$(BIN)/python -m deploy.site $(ARGS)

e2e: $(DEVELOPMENT) ## Use the pages in a real browser, which must be on PATH (ARGS=--screenshots makes the pictures of docs/images/pages anew)
	@$(BIN)/python -m pytest --override-ini='python_files=e2e_*.py' tests/browser $(ARGS)

chaos: $(DEVELOPMENT) ## Kill, freeze and cut off what carries a run out, 50 times and more, and report how soon it goes on (half an hour)
	@$(BIN)/python -m tests.chaos $(ARGS)

check: $(DEVELOPMENT) scripts ## Format, lint, types (of the pages' scripts, too), import contracts, prose
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/lint-imports --config .importlinter-with-types.toml
	@$(BIN)/proselint check *.md docs/*.md docs/decisions/*.md docs/reproductions/*.md

scripts: $(SCRIPTS) ## Format and types of the pages' scripts, where there is a network or was one
	@if [ ! -e $(SCRIPTS) ]; then echo "The registry of npm cannot be reached from here: the pages' scripts were not checked."; else \
	$(BIN)/python -c 'import json; from api.app import create_app; from fedcore.settings import Settings; print(json.dumps(create_app(Settings(_env_file=None)).openapi()))' | $(NPM) run --silent types && $(NPM) run --silent check; fi

audit: $(DEVELOPMENT) ## Look up known vulnerabilities of the pinned dependencies, where there is a network
	@$(BIN)/python -m deploy.audit

bench: $(DEVELOPMENT) ## Measure the figures of README.md and docs/performance.md
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(DEVELOPMENT) ## Measure FedQ against other simulators, in environments made in .bench
	@$(BIN)/python -m bench environments
	@$(BIN)/python -m bench peers $(ARGS)

gpu: $(DEVELOPMENT) ## On a machine with a GPU: its tests, then five seeds of each workload on it, in a batch and one by one
	@$(BIN)/python -m pytest tests/engine/accelerated/test_cuda.py $(ARGS)
	@$(BIN)/python -m bench seeds --device cuda --workloads W1,W2,W3,W4,W5

clean: ## Remove .venv, .lowest, .bench and caches (experiments in .fedq stay)
	rm -rf .venv .lowest .bench api/web/node_modules .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

define environment
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("FedQ needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another by PYTHON=python3.12")'
@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
@echo "Installing into $(@D); the first time takes a few minutes."
@$(@D)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
endef
# uv downloads and unpacks several packages at a time: less than half of pip's time.
UV_INSTALL = $(@D)/bin/uv pip install --quiet --system-certs --python $(@D)/bin/python

$(DEMO): $(PROJECTS) constraints.txt
	$(environment)
	@$(UV_INSTALL) --constraint constraints.txt $(TORCH_BACKEND) --editable . --editable './deploy/service[embedded]'
	@touch $@

# What the demo needs is part of it: with this, neither installs again.
$(DEVELOPMENT): $(PROJECTS) constraints.txt
	$(environment)
	@$(UV_INSTALL) --constraint constraints.txt $(TORCH_BACKEND) --compile-bytecode --editable '.[dev]' --editable ./deploy/service
	@touch $(DEMO) $@

# Node comes from a wheel, as all else. It is found on PATH by what npm starts.
NPM = PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix api/web

$(SCRIPTS): api/web/package.json $(DEVELOPMENT)
	@if $(NPM) install --silent --fetch-retries=0 --fetch-timeout=60000; then touch $@; fi

# First what FedQ names, at its oldest; then what tests run with, which must not change that.
$(LOWEST): $(PROJECTS)
	$(environment)
	@$(UV_INSTALL) --resolution lowest-direct --editable ./deploy/service --editable '.[all,data,export,mcp,otel,s3,slurm,timm]'
	@$(@D)/bin/uv pip freeze --quiet --python $(@D)/bin/python --exclude-editable > .lowest/versions.txt
	@$(UV_INSTALL) --editable ./deploy/service --editable '.[test]' --constraint .lowest/versions.txt
	@touch $@
