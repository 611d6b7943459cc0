# One command for each thing a newcomer wants. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPECHECK := build/typecheck
PEERS ?= build/peers
RESULTS := benchmarks/results

.PHONY: help demo model test test-slow test-page check lint types layering bench bench-peers clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: model ## start the runtime on a real model and run a program against it
	@$(BIN)/branchline run examples/quickstart.py

model: $(STAMP) ## fetch the default model (93 MB, once)
	@$(BIN)/branchline pull smollm2

test: model ## everything that is not marked slow, gpu or page
	@$(BIN)/pytest
	@echo "make: skipped what needs a browser: \`make test-page\` runs it"

test-slow: model ## the tests that take minutes
	@$(BIN)/pytest -m slow

test-page: model ## the gateway's page in a browser; installs Debian's Chromium where there is none
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		echo "make: installing Chromium"; apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || { \
		echo "make: this needs Chromium; install it (Debian: apt install chromium)" >&2; exit 1; }
	@$(BIN)/pytest -m page

check: lint types layering ## ruff, mypy --strict, who may import whom

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# The packages are checked as they install: the folders' names are not the packages' names, and a
# sub-package that pyproject.toml forgets is missing here too. A stale build/ would hide that.
types: $(STAMP)
	@rm -rf build/lib build/bdist.* $(TYPECHECK)
	@$(BIN)/python -m pip install --quiet --no-deps --target $(TYPECHECK) .
	@MYPYPATH=$(TYPECHECK) $(BIN)/mypy -p branchline

layering: $(STAMP)
	@$(BIN)/pytest -q tests/test_layering.py

bench: model ## what every workload takes (medians of 3), the policy and the tree (10 minutes)
	@$(BIN)/python benchmarks/serve.py --repeat 3 --json $(RESULTS)/serve.json
	@$(BIN)/python benchmarks/policy.py
	@$(BIN)/python benchmarks/tree.py

# Uses the folder PEERS, which it fills first: an hour and 6 GB, once. Keep other work off the cores.
bench-peers: model ## the same prompts through vLLM and llama.cpp too: table and chart (25 minutes)
	@$(BIN)/python -m pip install --quiet -e '.[bench]'
	@benchmarks/peers/setup.sh $(PEERS) $(BIN)/python
	@$(BIN)/python benchmarks/compare.py --peers $(PEERS) --json $(RESULTS)/peers.json --chart docs/benchmarks.png

clean: ## remove everything that make has made in this folder
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone: the build that this platform's default index gives for one version.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: Branchline needs Python 3.11 or newer, and '$(PYTHON)' is not; try 'make PYTHON=python3.12'" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "make: '$(PYTHON)' has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "make: setting up $(VENV) (torch is large: this takes minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet 'torch==2.13.0'
	@$(BIN)/python -m pip install --quiet -e '.[runtime,http,dev]'
	@touch $@
