# Everything a developer or CI runs. `make help` lists it. All targets make their own environment in .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ONCE ?=
CLUSTER ?= embedded
WORKERS ?= auto

.PHONY: help venv lock demo test fmt lint types golden proto dashboards manifests rig e2e presubmit ci clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gpuward needs Python >= 3.11; say which: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock && \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . ; \
	else \
	  $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . ; \
	fi
	@touch $@

venv: $(VENV)/.ready ## Make the environment in .venv from requirements.lock (uv when there, else venv + pip)

lock: venv ## Refresh requirements.lock from the ranges in pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --group dev pyproject.toml -o requirements.lock

demo: venv ## A GPU fault that heals itself before your eyes (ONCE=1 ends after the story, CLUSTER=real uses a real control plane)
	@$(BIN)/gpuward demo $(if $(filter real,$(CLUSTER)),--cluster real) $(if $(ONCE),--once)

test: venv ## Run all tests that this machine can run; what it cannot is skipped with the reason
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not nodes"
	$(BIN)/python -m pytest -n 0 -m nodes

fmt: venv ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

lint: venv ## Check style
	$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: venv ## Check types (mypy strict)
	$(BIN)/mypy exporter remediator dashboards && $(BIN)/mypy tests

golden: venv ## Rewrite golden files; review the diff as text
	GPUWARD_UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/unit -k golden

proto: venv ## Generate the pod-resources messages from our .proto
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. exporter/readers/podresources.proto

dashboards: venv ## Generate dashboards/*.json
	$(BIN)/python -m dashboards.generate

manifests: venv ## Render deploy/manifests from their sources
	$(BIN)/python -m deploy.render

rig: venv ## Build the real control plane into the user cache (once, about 6 minutes)
	$(BIN)/python -m tests.rig build

e2e: venv rig ## Run the tests on two real nodes (root, containerd, runc)
	$(BIN)/python -m pytest -n 0 tests/e2e

presubmit: lint types test ## What a change must pass

ci: ## What CI runs
	bash .ci/run

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
