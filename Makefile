# Two commands matter: `make demo` and `make test`. Each creates .venv when it is needed and works in any order.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # steps of `test` run in order, so that pytest's summary is the last thing printed

PYTHON ?= python3
JOBS   ?= 2
KILLS  ?= 24
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.demo
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Waiting OpenMP threads would otherwise spin and take a core from the thread that works.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo test lint format typecheck imports unit stress fuzz compat docs clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One thread for each process that the demo starts; nothing is downloaded.
demo: export OMP_NUM_THREADS ?= 1
demo: $(DEMO) ## Train and compare all three tasks on small data: one table, one report, about four minutes
	@$(BIN)/powerpool demo --offline $(ARGS)

test: lint typecheck imports unit ## Everything that must pass: lint, format, types, imports, tests

lint: $(STAMP) ## Ruff: lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## Ruff: fix what can be fixed, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMP) ## Mypy on the whole package
	$(BIN)/mypy

imports: $(STAMP) ## Import-linter: imports flow in one direction
	$(BIN)/lint-imports

# One thread for each of the JOBS pytest workers.
unit stress: export OMP_NUM_THREADS ?= 1
unit: $(STAMP) ## Tests and doctests, without the long trials
	$(BIN)/pytest -n $(JOBS) $(ARGS)

stress: $(STAMP) ## The long randomised trials, and runs of every task that are killed and resumed
	$(BIN)/pytest -n $(JOBS) -m stress --junitxml=build/stress.xml $(ARGS)
	$(BIN)/python -m tests.stress.kills --kills $(KILLS)

# 20 times the examples of `make unit` (POWERPOOL_FUZZ), others each time; then a minute of atheris for each target, where
# there is a build of it.
fuzz: export OMP_NUM_THREADS ?= 1
fuzz: export POWERPOOL_FUZZ ?= 20
fuzz: $(STAMP) ## Damaged files of every kind, other ones each time, and a minute of atheris for each
	-@$(PIP) atheris
	$(BIN)/pytest -n $(JOBS) --hypothesis-profile fresh --junitxml=build/fuzz.xml tests/trust/test_fuzz.py $(ARGS)
	$(BIN)/python -m tests.fuzz.with_atheris all -max_total_time=60

# Environments take some gigabytes each. The record is committed for a release.
compat: $(STAMP) ## The tests of the core on the oldest and newest torch and every Python here; a real ray cluster
	$(BIN)/python -m tests.compat $(ARGS)

docs: export NO_MKDOCS_2_WARNING ?= 1
docs: $(STAMP) ## The documentation as a site, into site/: strict, and without a request to any other server
	$(BIN)/mkdocs build --strict $(ARGS)
	@echo "site/index.html: open it, or serve it with its search box: $(BIN)/python -m http.server --directory site"

clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache tests/.ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: pip then settles on the pinned build before anything else asks for torch.
$(VENV)/.torch: constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@$(PIP) torch
	@touch $@

$(DEMO): pyproject.toml constraints.txt $(VENV)/.torch
	@$(PIP) -e ".[demo]"
	@touch $@

$(STAMP): pyproject.toml constraints.txt $(VENV)/.torch
	@$(PIP) -e ".[dev,demo,train,sweep,sklearn,graph,vision,figures,docs]"
	@touch $@ $(DEMO)
