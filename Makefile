# The whole developer interface. `make help` lists the targets; each one installs what it needs and can be run twice.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/epd

# Every download and build cache in one folder of ours, so that distclean can keep its word.
export UV_CACHE_DIR ?= $(CACHE)/uv
export PIP_CACHE_DIR ?= $(CACHE)/pip
export GOCACHE ?= $(CACHE)/go-build
export GOMODCACHE ?= $(CACHE)/go-mod
export TRITON_CACHE_DIR ?= $(CACHE)/triton
export MPLCONFIGDIR ?= $(CACHE)/matplotlib
# Compiled once: a shell that forbids it makes every process of ours compile torch's sources anew, for seconds.
export PYTHONDONTWRITEBYTECODE :=

# Whether Triton interprets or compiles is decided once a process: these two have one each.
APART := tests/kernels/interpreted tests/kernels/compiled
# Tests that do not go to the cluster run in several processes; conftest.py says which stay together.
PARALLEL := --numprocesses 2
# By day the same tree gets the same verdict; by night property tests look at new examples, and say how to get them again.
FRESH := --hypothesis-profile fresh

.PHONY: help demo test check format generate cluster images kernel-report nightly bench down clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt requirements/bootstrap.txt pyproject.toml
	@echo "==> Python environment in $(VENV)"
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; python3 is $$(python3 --version). Install it and run make again."; exit 2; }
	@python3 -m venv --clear $(VENV) || { echo "python3 -m venv failed: on Debian and Ubuntu install the package python3-venv."; exit 2; }
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --require-hashes -r requirements/dev.txt
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## run the main job for real: cluster, operator, one deployment, an image chat through encode, prefill and decode
	@$(PY) -m e2e.demo

# The same tree gets the same verdict: sets have one order by day, and any by night.
test: export PYTHONHASHSEED := 0
test: check ## all tests; says what it skipped and why, and skips nothing when CI is set
	@echo "==> Libraries that the fast tests load"
	@$(PY) -m tools.cluster packages
	@echo "==> Fast tests"
	@$(VENV)/bin/pytest tests $(APART:%=--ignore %) $(PARALLEL) -m "not nightly"
	@echo "==> Kernels in the interpreter"
	@TRITON_INTERPRET=1 $(VENV)/bin/pytest tests/kernels/interpreted $(PARALLEL) -m "not nightly"
	@echo "==> Kernels compiled for every GPU that they are meant for"
	@$(VENV)/bin/pytest tests/kernels/compiled -m "not nightly"
	@echo "==> Cluster and images for the tests against a real cluster"
	@$(PY) -m e2e.stack
	@echo "==> Tests against a real cluster"
	@$(VENV)/bin/pytest e2e/tests -m "not nightly"

check: $(STAMP) ## lint, types, import contracts, generated files up to date
	@echo "==> Checks"
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(PY) docs/generate.py --check

format: $(STAMP) ## format the code
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

generate: $(STAMP) ## write the generated files anew (CRD, reference pages)
	@$(PY) docs/generate.py

cluster: $(STAMP) ## bring up a real Kubernetes on this machine (or use KUBECONFIG)
	@$(PY) -m tools.cluster up

images: cluster ## build the images and push those that changed to the cluster's registry (or IMAGE_REPO)
	@$(PY) -m tools.images push

kernel-report: $(STAMP) ## compile every kernel for every GPU and print registers, spills, shared memory and limits
	@$(PY) -m epd_kernels.gate

nightly: $(STAMP) ## the tests that take longer than every change can afford
	@$(PY) -m tools.cluster packages
	@$(VENV)/bin/pytest tests e2e/tests $(APART:%=--ignore %) $(FRESH) -m "nightly or hypothesis"
	@TRITON_INTERPRET=1 $(VENV)/bin/pytest tests/kernels/interpreted $(FRESH) -m "nightly or hypothesis"
	@$(VENV)/bin/pytest tests/kernels/compiled -m nightly

bench: $(STAMP) ## measure what the README quotes (about 35 minutes); the operator's figures on the one that is installed
	@$(PY) -m bench.replay
	@$(PY) -m bench.epd
	@$(PY) -m bench.worker
	@$(PY) -m tools.cluster packages
	@$(PY) -m bench.swapool
	@$(PY) -m bench.kernels
	@$(PY) -m bench.validate
	@$(PY) -m bench.operator

down: ## stop the local cluster; keep the caches
	@if [ -x $(PY) ]; then $(PY) -m tools.cluster down; fi

clean: down ## leave nothing behind but download and build caches
	@rm -rf $(VENV) .state build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## take the caches, too
	@rm -rf "$(CACHE)"
