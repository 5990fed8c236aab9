# On a machine with python3, pip and make, `make demo` and `make test` install everything they need.

PYTHON ?= python3
VENV   := .venv
# On Windows, run make in Git Bash.
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY  := $(VENV)/.ready
EXTRAS := plot,map,table,hf,ray,web,models,docs,dev

# Containers often set it; every process of the tests would then compile the Python of torch again: 7 s of processor.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-all check lint format bench paper package test-lowest test-newest docs clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(READY)  ## Embed eight small tasks offline, print distances and a recommendation, draw a figure
	$(BIN)/task2vec demo

test: check  ## Run lint, type checks, the import contract, docstring examples and the tests
	$(BIN)/pytest -m "not long" -n 2 --dist worksteal

test-quick: $(READY)  ## Run a quick subset of the tests
	$(BIN)/pytest -m "not long" -n 2 $(QUICK)

test-all: check  ## Also run the tests that take minutes: crashes, long fuzzing, clusters
	$(BIN)/pytest -n 2 --dist worksteal

check: lint  ## Run only the quick checks: lint, format, import contract, workflows and types
	$(BIN)/pyright --pythonpath $(BIN)/python

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff
	$(BIN)/zizmor --quiet --offline --min-severity medium .github

format: $(READY)  ## Format the code and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Compare speed and error with the original algorithm; print ratios, write JSON
	$(BIN)/python benchmarks/run.py

paper: $(READY)  ## Reproduce the paper's tables and figures that need no images, in task2vec-paper/ (about ten minutes on two idle cores)
	$(BIN)/python -m experiments.selection --out task2vec-paper/selection
	$(BIN)/python -m experiments.transfer --out task2vec-paper/selection
	$(BIN)/python -m experiments.metatask.quality --out task2vec-paper/metatask
	$(BIN)/python -m experiments.norms --out task2vec-paper/properties

package: $(READY)  ## Build the sdist and the wheel, and test the wheel in an empty environment
	PYTHON=$(CURDIR)/$(BIN)/python .ci/package

test-lowest:  ## Run a quick subset of the tests with the oldest versions that pyproject.toml allows
	$(call try,lowest,--resolution lowest-direct,-W default::DeprecationWarning -W default::FutureWarning)

test-newest:  ## Run the same subset with the newest versions available
	$(call try,newest,--upgrade)

docs: $(READY)  ## Build the documentation, with the reference of the Python API and the command line, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## Remove the environment and all generated files
	rm -rf $(VENV) .venv-lowest .venv-newest build dist site task2vec-demo task2vec-map task2vec-paper task2vec-selection task2vec-metatask task2vec-taxonomy .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +

# Tests that use every dependency: networks, Fisher, heads, files, tables, figures, pages, commands.
QUICK := tests/test_import.py tests/test_reference.py tests/probe/test_load.py tests/probe/test_download.py \
	tests/select/test_candidates.py tests/fisher/test_per_sample.py tests/head/test_fit.py tests/distance/test_distances.py tests/embedding/test_file.py tests/embedding/test_embed.py \
	tests/library/test_library.py tests/tasks/test_folder.py tests/tasks/test_table.py tests/tasks/test_huggingface.py \
	tests/test_parallel.py tests/plots/test_layout.py tests/cli/test_embed.py tests/cli/test_doctor.py tests/web/test_api.py \
	tests/hostile/test_web_serve.py
# Old versions may warn about each other: warnings are shown and do not fail the tests.
define try
	@test -x .venv-$(1)/bin/python || $(PYTHON) -m venv .venv-$(1)
	@.ci/install .venv-$(1)/bin/python $(2) -e '.[all,docs,test]'
	.venv-$(1)/bin/pytest -m "not long" -n 2 $(3) $(QUICK)
endef

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing task2vec[$(EXTRAS)] into $(VENV); the first time, this takes minutes, and 6 GB of disk space for torch with CUDA"
	@.ci/install $(BIN)/python -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
