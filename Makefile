# Each target sets up what it needs: a virtual environment in .venv, at the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable

# a hundred processes of the tests would each compile the package again
unexport PYTHONDONTWRITEBYTECODE

# pip says nothing for a minute while it unpacks: a line now and then shows that it is alive. It would compile on one core;
# some packages have files that no Python of this version can compile.
define install
	@echo "Installing what kernrl needs into $(VENV): one to three minutes."
	@(while sleep 10; do echo "  still installing"; done) & ticking=$$!; trap "kill $$ticking" EXIT; $(INSTALL) $(1) && \
		{ $(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true; }
	@touch $@
endef

.PHONY: help quickstart test test-fast lint docs advice clean

help:  ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: $(VENV)/.installed  ## set up, and see kernrl at work on this machine
	$(BIN)/kernrl quickstart

test: $(VENV)/.installed-dev  ## set up, and run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal -m "not gpu"

test-fast: $(VENV)/.installed-dev  ## the tests that take seconds, for the loop of editing and testing
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal -m "not gpu and not slow"

lint: $(VENV)/.installed-dev  ## set up, and run ruff and pyright
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

docs: $(VENV)/.installed  ## write the reference of commands, and the tables of figures
	$(BIN)/python scripts/make_cli_docs.py
	$(BIN)/python scripts/make_results_page.py

advice: $(VENV)/.installed  ## write the page on what a model is told between turns
	$(BIN)/python scripts/make_advice_page.py

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis dist build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.)

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,'.[dev]')
	@touch $(VENV)/.installed
