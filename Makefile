# Every target makes what it needs by itself: a machine with Python >= 3.11, make and a
# network is enough. The environment is .venv; it is installed again only when
# pyproject.toml has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Seconds that `make demo` measures for.
BUDGET ?= 60
# Processes that run tests: one more than there are cores, for many tests wait for other processes.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
# Each process of tests keeps a core busy, so the thread pool of polars would be in the others' way.
# A process keeps half of the tests, with what their modules share, until another has none left.
PYTEST := POLARS_MAX_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 \
	--dist worksteal
# Tests that import TensorFlow or JAX: TensorFlow and Triton, which PyTorch brings, cannot be in one
# process, and JAX warns of every fork, so these tests have processes of their own. So have those
# that fork: a fork of a process in which many libraries have begun threads may hang.
APART := tests/levels/framework/tensorflow tests/levels/framework/keras tests/levels/framework/jax \
	tests/program/test_two_frameworks.py tests/target/test_other_frameworks.py
TOGETHER := $(addprefix --ignore=,$(APART))
# The other files that have tests of a mark: where few tests run, only their files are read.
marked = $(filter-out $(addsuffix %,$(APART)),$(shell grep -rlw --include='test_*.py' 'mark.$(1)' tests))
# What Python has compiled is kept for the next process, whatever the caller wants elsewhere.
unexport PYTHONDONTWRITEBYTECODE
# Asked when a recipe that needs it runs, for by then there is a torch.
GPU = $(shell $(BIN)/python -c 'import torch; print("a GPU" * torch.cuda.is_available())')
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip compiles one file after the other; thirty thousand take less time on all cores. Some packages
# bring files for other Pythons, which cannot be compiled.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

.PHONY: help demo test test-slow test-timing test-all coverage check docs words bench clean

help:  ## Say what the targets do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /make \1	/' | expand -t 15

demo: $(VENV)/.runtime  ## Profile ResNet-50 on every level that this machine has
	-$(if $(GPU),$(MAKE) --quiet $(VENV)/.cupti)
	$(BIN)/xsp profile torchvision:resnet50 $(if $(GPU),--levels 4 --device cuda,--levels 3) \
		--budget $(BUDGET) -o resnet50.xsp
	@echo
	@echo "The trace is in resnet50.xsp. What to do with it:"
	@echo "  $(BIN)/xsp show resnet50.xsp          the tree again"
	@echo "  $(BIN)/xsp doctor                     what this machine can measure, and what disturbs it"
	@echo "  $(BIN)/python -c 'import xsp; print(xsp.load(\"resnet50.xsp\").spans)'"
	@echo "                                          every span as a row of a polars frame"
	@echo "  docker compose up -d && $(BIN)/xsp export resnet50.xsp"
	@echo "                                          in Jaeger, http://localhost:16686 (no Docker: xsp jaeger)"

# No test is ever run again: one that may fail without a fault is a fault itself. So tests that compare
# times (marked `timing`) have no neighbors: they run by themselves, in one process.
QUICK := not slow and not timing
SLOW := slow and not timing

test: $(VENV)/.development $(VENV)/.cupti  ## Run the tests, but for those that start processes, fuzz at length or compare times (some minutes)
	$(PYTEST) -m '$(QUICK)' --hypothesis-profile quick $(APART) $(ARGS)
	$(PYTEST) -m '$(QUICK) and forks' --hypothesis-profile quick $(call marked,forks) $(ARGS)
	$(PYTEST) -m '$(QUICK) and not forks' --hypothesis-profile quick $(TOGETHER) $(ARGS)

test-slow: $(VENV)/.development $(VENV)/.cupti  ## Run the tests that start processes or fuzz at length; Jaeger's need scripts/build-jaeger
	$(PYTEST) -m '$(SLOW)' $(APART) $(ARGS)
	$(PYTEST) -m '$(SLOW)' $(call marked,slow) $(ARGS)

test-timing: $(VENV)/.development $(VENV)/.cupti  ## Run the tests that compare times, on a machine that does nothing else
	$(BIN)/python -m pytest -m timing --numprocesses 0 $(call marked,timing) $(ARGS)

test-all:  ## Run all tests: test, test-slow and test-timing, one after the other
	$(MAKE) test
	$(MAKE) test-slow
	$(MAKE) test-timing

# Not in CI: Python 3.11 runs 40 % slower while coverage watches it.
coverage: $(VENV)/.development $(VENV)/.cupti  ## Run all tests that `make test` runs, and fail where they cover too little
	$(PYTEST) -m '$(QUICK)' --hypothesis-profile quick --cov --cov-report= --cov-fail-under=0 $(APART) $(ARGS)
	$(PYTEST) -m '$(QUICK) and forks' --hypothesis-profile quick --cov --cov-append --cov-report= \
		--cov-fail-under=0 $(call marked,forks) $(ARGS)
	$(PYTEST) -m '$(QUICK) and not forks' --hypothesis-profile quick --cov --cov-append --cov-report=term \
		$(TOGETHER) $(ARGS)

check: $(VENV)/.development $(VENV)/.cupti  ## Check format, lint, types, import rules and the report's script
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports
	$(BIN)/python scripts/check-scripts

docs: $(VENV)/.development  ## Build the documentation, into build/docs
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/docs

words: $(VENV)/.development  ## Check the README, guides and help texts: short sentences, plain words
	$(BIN)/python -m pytest tests/test_words.py $(ARGS)

bench: $(VENV)/.development  ## Print the tables behind the numbers of docs/accuracy.md (some hours)
	$(BIN)/python benchmarks/exactness.py $(ARGS)
	$(BIN)/python benchmarks/exactness.py --waste layer $(ARGS)
	$(BIN)/python benchmarks/exactness.py --waste op $(ARGS)
	$(BIN)/python benchmarks/estimator.py
	$(BIN)/python benchmarks/slowdown.py $(ARGS)
	$(BIN)/python benchmarks/overhead_table.py
	$(BIN)/python benchmarks/programs.py
	$(BIN)/python benchmarks/within.py
	$(BIN)/python benchmarks/watched.py
	$(BIN)/python benchmarks/framework_exactness.py tensorflow
	$(BIN)/python benchmarks/framework_exactness.py eager
	$(BIN)/python benchmarks/framework_exactness.py onnxruntime
	$(BIN)/python benchmarks/framework_exactness.py jax
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python benchmarks/waiting.py
	$(BIN)/python benchmarks/afterwards.py
	$(BIN)/python benchmarks/inside.py
	$(BIN)/python benchmarks/library.py
	$(BIN)/python benchmarks/correlation.py
	$(BIN)/python benchmarks/merging.py
	$(BIN)/python benchmarks/importing.py
	$(BIN)/python benchmarks/records.py
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/ctf.py
	$(BIN)/python benchmarks/analyses.py
	$(BIN)/python benchmarks/comparison.py
	$(BIN)/python benchmarks/zoo_results.py
	$(BIN)/python benchmarks/zoo_report.py
	$(BIN)/python benchmarks/ranks.py ddp
	$(BIN)/python benchmarks/ranks.py reduce
	$(BIN)/python benchmarks/zoo_cluster.py

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "xsp needs Python 3.11 or later, and $(PYTHON) is not: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# --group, which the next rule needs, came with pip 25.1
$(VENV)/.pip: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.runtime: pyproject.toml | $(VENV)/.pip
	$(INSTALL) --editable '.[torch,zoo]'
	$(COMPILE)
	@touch $@

$(VENV)/.development: pyproject.toml | $(VENV)/.runtime
	$(INSTALL) --editable '.[torch,tensorflow,onnxruntime,jax,zoo,pandas,report,ray]' --group dev
	$(COMPILE)
	@touch $@

# That of torch's CUDA, or where that has none the newest of the same major release; and without
# its libcupti: torch has brought one, and pip would change torch for another.
$(VENV)/.cupti: $(VENV)/.runtime
	cuda="$$($(BIN)/python -c 'import torch; print(torch.version.cuda or 13)')"; \
		$(BIN)/python -m pip install --quiet --no-deps "cupti-python==$$cuda.*" || \
		$(BIN)/python -m pip install --quiet --no-deps "cupti-python==$${cuda%%.*}.*"
	@touch $@
