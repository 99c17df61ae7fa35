# The whole developer interface. `make help` lists the targets; each one installs what it needs and can be run twice.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Targets share the machine, and set-up must come first.
.NOTPARALLEL:

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

# The tests of the control plane: they need neither a cluster nor torch.
QUICK := $(wildcard tests/test_*.py) $(addprefix tests/,admission api chart cli engines kube plan rules runtime)

# Of `make release-check IMAGES=FILE`.
DIGESTS := $(if $(IMAGES),--images "$(IMAGES)")

# Whether Triton interprets or compiles is decided once a process: these two have one each.
APART := tests/kernels/interpreted tests/kernels/compiled
# Tests that do not go to the cluster run in several processes; conftest.py says which stay together.
PARALLEL := --numprocesses 2
# By day the same tree gets the same verdict; by night property tests look at new examples, and say how to get them again.
FRESH := --hypothesis-profile fresh

.PHONY: help demo quick test check docs format generate cluster images kernel-report nightly bench wheel release-check down clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Set-up runs on the machine's own Python, before the environment is made, so that it can install what that needs.
.PHONY: .python-found
.python-found:
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; python3 is $$(python3 --version 2>&1). Install it and run make again." >&2; exit 2; }

ready-%: .python-found
	@python3 -m tools.setup $*

$(STAMP): requirements/dev.txt requirements/bootstrap.txt pyproject.toml | .python-found
	@python3 -m tools.setup environment
	@python3 -m tools.environment $(VENV)
	@touch $@

demo: ready-demo $(STAMP) ## run the main job for real: cluster, operator, one deployment, an image chat through encode, prefill and decode
	@$(PY) -m e2e.demo

quick: check ## what to run after every edit: check, and the fast tests of the control plane; under a minute once warm
	@echo "==> Fast tests of the control plane (not the property tests, workers, kernels, tools, benchmarks, the cluster: make test)"
	@$(VENV)/bin/pytest $(QUICK) $(PARALLEL) --quiet -m "not nightly and not hypothesis"

# The same tree gets the same verdict: sets have one order by day, and any by night.
test: export PYTHONHASHSEED := 0
test: ready-test check ## all tests; says what it skipped and why, and skips nothing when CI is set
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
	@$(PY) -m tools.release version --check
	@$(PY) -m docs.generate --check

format: $(STAMP) ## format the code
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

generate: $(STAMP) ## write the generated files (CRD, policies, reference pages, the version wherever it stands, printed output)
	@$(PY) -m tools.release version
	@$(PY) -m docs.generate
	@$(PY) -m tools.docs.console --write
	@$(PY) -m tools.docs.pictures

cluster: $(STAMP) ## bring up a real Kubernetes on this machine (or use KUBECONFIG)
	@$(PY) -m tools.cluster up

images: cluster ## build the images and push those that changed to the cluster's registry (or IMAGE_REPO)
	@$(PY) -m tools.images push

docs: $(STAMP) ## build the site of the documentation in build/site; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "build/site/index.html is the first page; to search it, serve it: $(PY) -m http.server --directory build/site"

kernel-report: $(STAMP) ## compile every kernel for every GPU and print registers, spills, shared memory and limits
	@$(PY) -m epd_kernels.gate

nightly: ready-test $(STAMP) ## the tests that take longer than every change can afford
	@$(VENV)/bin/pytest tests e2e/tests $(APART:%=--ignore %) $(FRESH) -m "nightly or hypothesis"
	@TRITON_INTERPRET=1 $(VENV)/bin/pytest tests/kernels/interpreted $(FRESH) -m "nightly or hypothesis"
	@$(VENV)/bin/pytest tests/kernels/compiled -m nightly

bench: ready-bench $(STAMP) ## measure what docs/measurements.md quotes (about 35 minutes); the operator's figures on the one that is installed
	@$(PY) -m bench.replay
	@$(PY) -m bench.epd
	@$(PY) -m bench.worker
	@$(PY) -m bench.swapool
	@$(PY) -m bench.kernels
	@$(PY) -m bench.validate
	@$(PY) -m bench.operator

wheel: $(STAMP) ## build the wheel into dist/: the command line, for pip, pipx or uv
	@$(PY) -m tools.release wheel

release-check: $(STAMP) ## make what a release consists of in dist/ and check it (IMAGES=file with the digests); RELEASING.md
	@$(PY) -m tools.release check $(DIGESTS)

down: ## stop the local cluster; keep the caches
	@if [ -x $(PY) ]; then $(PY) -m tools.cluster down; fi

clean: down ## leave nothing behind but download and build caches
	@rm -rf $(VENV) .state build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## take the caches, too
	@rm -rf "$(CACHE)"
