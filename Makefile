# `make demo` and `make test` do all the set-up by themselves, in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Most of what is installed is modules of the kubernetes client that nobody imports: Python compiles what it needs.
QUICK := --no-compile

# What takes its time: outages, whole processes and earlier releases, on the small API server as on the real one; and,
# which needs nothing but this machine, agents that are killed at any moment, commands with everything that they can
# meet, the longest of those that look for counterexamples, what a real Prometheus is asked, what a package index has of
# what is locked, floods and storms of hostile pods, agents without one right or another, watches in which nothing comes,
# captures of whole nodes, and what a browser shows.
SLOW_API := tests/api/test_api_faults.py tests/api/test_api_refused.py tests/api/test_api_process.py \
	tests/api/test_api_upgrade.py
SLOW := tests/control/test_control_kill.py tests/control/test_steps_kill.py tests/cli/test_cli_faults.py \
	tests/cli/test_cli_run.py tests/planning/test_planning_again.py tests/kube/test_watch_faults.py \
	tests/api/test_api_large.py tests/host/test_irqbalance_daemon.py tests/node/npu_smi/test_npu_smi_fuzz.py \
	tests/node/npu_smi/test_npu_smi_hostile_names.py tests/control/test_stability.py \
	tests/monitoring/test_alerts_alive.py tests/monitoring/test_dashboard_alive.py tests/image/test_runtime.py \
	tests/image/test_locked.py tests/hostile/test_floods.py tests/hostile/test_storms.py \
	tests/hostile/test_names_said.py tests/hostile/test_annotations_asked.py tests/hostile/test_forged_rows.py \
	tests/privileges \
	tests/fuzz/test_fuzzed.py tests/fuzz/test_sizes.py tests/fuzz/test_run.py tests/fuzz/test_damaged_snapshot.py \
	tests/faults/test_host_faults.py tests/faults/test_npu_smi_faults.py tests/faults/test_call_faults.py \
	tests/faults/test_api_faults.py tests/faults/test_kubelet_faults.py tests/faults/test_doctor_faults.py \
	tests/kube/test_bounds.py tests/kube/test_watch.py tests/api/test_api_plan_gone.py tests/cli/test_cli_capture.py \
	tests/telemetry/test_page_in_browser.py

.DEFAULT_GOAL := help
.PHONY: help demo picture test test-slow test-api test-e2e test-vm faults fuzz soak lint format bench bench-compare \
	bench-fleet bench-baseline docs lock licences sbom audit clean

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

$(VENV)/.supply: pyproject.toml | $(BIN)/python
	@echo "installing what makes locks and bills of materials into $(VENV)"
	@$(PIP) install $(QUICK) --editable '.[supply]'
	@touch $@

# What the image gets of Python packages, installed as it is there.
LOCKED := build/locked
$(LOCKED)/.complete: requirements.lock | $(BIN)/python
	@rm -rf $(LOCKED)
	@$(BIN)/python -m venv --without-pip $(LOCKED)
	@$(PIP) --python $(LOCKED) install $(QUICK) --only-binary :all: --require-hashes --requirement requirements.lock
	@touch $@

demo: $(VENV)/.run ## the whole agent on a virtual A3 node with 640 CPUs and 16 NPUs (ARGS="--device a2" for another)
	@$(BIN)/cpubind demo $(ARGS)

test: lint ## lint, types, import contracts, and all tests that need nothing but this machine
	$(BIN)/pytest -n 4 -m "not api and not e2e and not vm and not soak" --ignore=tests/cluster $(SLOW_API:%=--ignore=%) \
		$(SLOW:%=--ignore=%) $(ARGS)

test-slow: $(VENV)/.dev $(VENV)/.supply ## what of that takes longer: agents killed at any moment, commands with every fault, fuzzing
	$(BIN)/pytest -n 4 -m "not api" $(SLOW) $(ARGS)

test-api: $(VENV)/.dev ## the agent against a real kube-apiserver, taken from $KUBEBUILDER_ASSETS (see setup-envtest)
	$(BIN)/pytest -n 2 tests/cluster $(SLOW_API) $(ARGS)
	$(BIN)/pytest -n 2 -m api --ignore=tests/cluster $(SLOW_API:%=--ignore=%) $(ARGS)

test-e2e: $(VENV)/.dev ## chart and image on a real one-node cluster; tests/e2e/conftest.py says how it is found
	$(BIN)/pytest -m e2e tests/e2e $(ARGS)

test-vm: $(VENV)/.dev ## the agent on a real ARM64 kernel with several NUMA nodes, booted by $VM_NUMA_GUEST
	$(BIN)/pytest -m vm tests/vm $(ARGS)

fuzz: $(VENV)/.dev ## every parser, with atheris where that can be had, for SECONDS=60 of one CPU (ARGS="--keep cgroup maps")
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(PIP) install --editable '.[fuzz]' || \
		echo "ATHERIS COULD NOT BE INSTALLED" >&2
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),60) $(ARGS)

faults: $(VENV)/.dev ## the fault matrix: what host, npu-smi and API server can do wrong, tried and printed as one table
	@$(BIN)/python -m tests.faults -n 4 $(ARGS)

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

bench-fleet: $(VENV)/.dev ## so many agents against one real kube-apiserver of $KUBEBUILDER_ASSETS (NODES=100)
	@$(BIN)/python -m benchmarks.fleet --nodes $(or $(NODES),100) $(ARGS)

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
	$(BIN)/python -m tests.docs.privileges

# ARGS=--upgrade takes newer versions; without it those that are locked stay where pyproject.toml still allows them.
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock"

lock: $(VENV)/.supply ## lock what the image is made from anew, with hashes (ARGS=--upgrade: at the newest versions)
	$(BIN)/$(COMPILE) $(ARGS) pyproject.toml --output-file requirements.lock
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])' \
		| tr " " "\n" | $(BIN)/$(COMPILE) $(ARGS) - --output-file requirements-build.lock

licences: $(LOCKED)/.complete ## make docs/licences.md anew, from what the lock installs
	$(BIN)/python -m image.licences $(LOCKED)

sbom: $(LOCKED)/.complete $(VENV)/.supply ## write build/cpubind.cdx.json: a CycloneDX bill of what the lock installs
	$(BIN)/python -m image.sbom $(LOCKED) build/cpubind.cdx.json

audit: $(VENV)/.supply ## ask for known vulnerabilities of what the lock installs; says so where nobody can be asked
	$(BIN)/python -m image.audit

clean: ## remove what was made
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
