# `make demo` and `make test` do all the set-up by themselves, in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Most of what is installed is modules of the kubernetes client that nobody imports: Python compiles what it needs.
QUICK := --no-compile

# What takes its time: outages and whole processes, on the small API server as on the real one; and, which needs nothing
# but this machine, agents that are killed at any moment, commands with everything that they can meet, the longest of
# those that look for counterexamples, and what a real Prometheus is asked.
SLOW_API := tests/api/test_api_faults.py tests/api/test_api_refused.py tests/api/test_api_process.py
SLOW := tests/control/test_control_kill.py tests/control/test_steps_kill.py tests/cli/test_cli_faults.py \
	tests/cli/test_cli_run.py tests/planning/test_planning_again.py tests/kube/test_watch_faults.py \
	tests/api/test_api_large.py tests/host/test_irqbalance_daemon.py tests/node/npu_smi/test_npu_smi_fuzz.py \
	tests/node/npu_smi/test_npu_smi_hostile_names.py tests/control/test_stability.py \
	tests/monitoring/test_alerts_alive.py tests/monitoring/test_dashboard_alive.py \
	tests/faults/test_host_faults.py tests/faults/test_npu_smi_faults.py tests/faults/test_call_faults.py \
	tests/faults/test_api_faults.py tests/faults/test_kubelet_faults.py tests/faults/test_doctor_faults.py tests/kube/test_bounds.py

.DEFAULT_GOAL := help
.PHONY: help demo picture test test-slow test-api test-e2e test-vm faults soak lint format bench bench-compare bench-baseline docs clean

help: ## say what can be made
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; Python 3.11 or newer is needed" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing cpubind into $(VENV)"
	@$(PIP) install $(QUICK) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing cpubind and what its tests need into $(VENV)"
	@$(PIP) install $(QUICK) --editable '.[dev]'
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run ## the whole agent on a virtual A3 node with 640 CPUs and 16 NPUs (ARGS="--device a2" for another)
	@$(BIN)/cpubind demo $(ARGS)

test: lint ## lint, types, import contracts, and all tests that need nothing but this machine
	$(BIN)/pytest -n 4 -m "not api and not e2e and not vm and not soak" --ignore=tests/cluster $(SLOW_API:%=--ignore=%) \
		$(SLOW:%=--ignore=%) $(ARGS)

test-slow: $(VENV)/.dev ## what of that takes longer: agents killed at any moment, commands with every fault, fuzzing
	$(BIN)/pytest -n 4 -m "not api" $(SLOW) $(ARGS)

test-api: $(VENV)/.dev ## the agent against a real kube-apiserver, taken from $KUBEBUILDER_ASSETS (see setup-envtest)
	$(BIN)/pytest -n 2 tests/cluster $(SLOW_API) $(ARGS)
	$(BIN)/pytest -n 2 -m api --ignore=tests/cluster $(SLOW_API:%=--ignore=%) $(ARGS)

test-e2e: $(VENV)/.dev ## chart and image on a real one-node cluster; tests/e2e/conftest.py says how it is found
	$(BIN)/pytest -m e2e tests/e2e $(ARGS)

test-vm: $(VENV)/.dev ## the agent on a real ARM64 kernel with several NUMA nodes, booted by $VM_NUMA_GUEST
	$(BIN)/pytest -m vm tests/vm $(ARGS)

faults: $(VENV)/.dev ## the fault matrix: what host, npu-smi and API server can do wrong, tried and printed as one table
	@$(BIN)/python -m tests.faults -n 2 $(ARGS)

soak: $(VENV)/.dev ## the agent beside a thousand threads born and gone each second, for ten minutes (SECONDS=600)
	SOAK_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -s -m soak tests/soak $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## let ruff format everything
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.dev ## measure what the agent costs, beside its budgets (ARGS="--quick --case threads"; ARGS=--help)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-compare: $(VENV)/.dev ## a quick measurement, that fails where a ratio has doubled against benchmarks/baseline.json
	@$(BIN)/python -m benchmarks --quick $(ARGS)
	@$(BIN)/python -m benchmarks compare

bench-baseline: $(VENV)/.dev ## on a quiet machine: measure, and make benchmarks/baseline.json of it
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks baseline

picture: $(VENV)/.dev ## make docs/pictures/node.svg anew
	$(BIN)/python -m tests.docs.picture >docs/pictures/node.svg.new
	@mv docs/pictures/node.svg.new docs/pictures/node.svg

docs: $(VENV)/.dev ## make docs/metrics.md, and the examples of other pages, anew
	$(BIN)/python -m tests.docs.metrics_page
	$(BIN)/python -m tests.docs.choosing
	$(BIN)/python -m tests.docs.troubles

clean: ## remove what was made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
