# make demo and make test are all a newcomer needs; each makes its own environment in .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A stranger's choice of PyTorch wheels, e.g. the CPU index of pytorch.org; empty = pip's own configuration.
TORCH_INDEX_URL ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of programs are started by tests: without bytecode on disk each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Tests that need the public data find it here; they say so when it is absent.
ifneq ($(wildcard ../shared/data),)
export COTENANT_SHARED_DATA ?= $(abspath ../shared/data)
endif
# Tests marked `last_core` measure there and run one after the other, with something else on the first; all others run
# four at a time, since many wait. Those marked `alone` need both cores for themselves, and belong to `make test-all`.
ALONE := $(shell grep -rlE 'mark\.alone' --include=test_*.py tests)
LAST_CORE := $(shell grep -rlE 'mark\.last_core' --include=test_*.py tests)
PIN := hasattr(os, "sched_setaffinity") and os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
ON_FIRST_CORE := $(PYTHON) -c 'import os, sys; $(PIN); os.execv(sys.argv[1], sys.argv[1:])'
THERE := not gpu and not compose and not slurm and not kubernetes and not ray
QUICK := not endurance and not strangers and $(THERE)
TOGETHER := --numprocesses 4 --dist loadfile
THOROUGH := --hypothesis-profile test-all
LINT := $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports --no-cache && $(BIN)/buf lint protos

.PHONY: help setup demo test test-all check format protos benchmarks compose-test slurm-test kubernetes-test ray-test

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## the environment in .venv

$(VENV)/.ready: pyproject.toml constraints.txt
	@bash deploy/check_prerequisites.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@echo "1/2 torch (CPU wheel where one is configured; see TORCH_INDEX_URL in the README)"
	$(BIN)/pip install $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) -c constraints.txt torch
	@echo "2/2 everything else"
	$(BIN)/pip install -c constraints.txt -e '.[predictor,scheduler,agent,profiler,simulator,dev]'
	@touch $@

demo: setup ## predictor, scheduler, agent and real jobs sharing devices, in under 3 minutes
	$(BIN)/cotenant demo

test: setup ## checks and every test that needs neither a GPU nor Docker
	@# One core collects meanwhile, so that all workers and programs find their bytecode.
	@$(BIN)/pytest --collect-only --quiet >/dev/null 2>&1 & $(LINT); linted=$$?; wait; exit $$linted
	@# Types take a minute of one core, while tests measure on the other, and then while tests wait.
	@$(ON_FIRST_CORE) $(BIN)/mypy & typing=$$!; \
	$(BIN)/pytest -m 'last_core and $(QUICK)' $(LAST_CORE) $(PYTEST_ARGS) && \
	$(BIN)/pytest $(TOGETHER) -m 'not last_core and $(QUICK)' $(PYTEST_ARGS); \
	tested=$$?; wait $$typing || { echo 'types are wrong, see what mypy says above'; exit 1; }; exit $$tested

test-all: setup check ## the same with the tests that take minutes
	$(BIN)/pytest $(THOROUGH) -m '(alone or last_core) and $(THERE)' $(ALONE) $(LAST_CORE) $(PYTEST_ARGS)
	$(BIN)/pytest $(THOROUGH) $(TOGETHER) -m 'not alone and not last_core and $(THERE)' $(PYTEST_ARGS)

check: setup ## format, lint, import contracts, types
	$(LINT)
	$(BIN)/mypy

format: setup ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: setup ## regenerate the stubs; fails on a breaking change
	bash deploy/generate_protos.sh $(BIN)

benchmarks: setup ## every figure that the documents promise, as JSON
	$(BIN)/python -m benchmarks.run_all

compose-test: setup ## build and run docker-compose.yml with a local Docker engine
	bash deploy/compose_test.sh

slurm-test: setup ## the bridge to Slurm with real daemons, which Debian's packages bring (docs/slurm.md)
	$(BIN)/pytest -m slurm tests/end_to_end $(PYTEST_ARGS)

kubernetes-test: setup ## the same for Kubernetes, whose control plane deploy/build_kubernetes.sh builds (docs/kubernetes.md)
	$(BIN)/pytest -m kubernetes tests/end_to_end $(PYTEST_ARGS)

ray-test: setup .venv-ray/.ready ## the same for Ray, in an environment of its own and a namespace without a network (docs/ray.md)
	$(BIN)/pytest -m ray tests/end_to_end $(PYTEST_ARGS)

.venv-ray/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install -e '.[ray]' 'ray[tune]'
	@touch $@
