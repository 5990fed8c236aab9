# Two commands do all the set-up on a machine with python3, pip and make: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
EXTRAS := plot,map,table,hf,ray,web,docs,dev

.DEFAULT_GOAL := help
.PHONY: help demo test check bench test-hostile docs clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(READY)  ## Embed eight small tasks offline, print how alike they are, draw the distances (under 90 s)
	$(BIN)/task2vec demo

test: check  ## Everything that must pass: lint, types, imports, docstring examples, tests
	$(BIN)/pytest -m "not long" -n 2

check: $(READY)  ## The quick part of it: lint, format, types and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/.ready-bench  ## Measure speed and error against the old algorithm; prints ratios, writes JSON
	$(BIN)/python benchmarks/run.py

test-hostile: $(READY)  ## All attacks of tests/hostile, and all that takes long elsewhere
	$(BIN)/pytest tests/hostile tests/library tests/engine tests/experts

docs: $(READY)  ## Build the reference of all public names into site/, from their docstrings
	$(BIN)/python docs/reference.py site

clean:  ## Remove the environment and everything that runs have left behind
	rm -rf $(VENV) build dist site task2vec-demo task2vec-map task2vec-paper task2vec-taxonomy .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# uv installs in a fraction of pip's time, but reads none of pip's settings: they are handed on (an index, more indexes,
# folders of wheels, a certificate), so that a machine with an index of its own asks no other. Wherever uv cannot be had
# or does not manage, pip does the same job.
define install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv || true
	@settings="$$($(BIN)/python -m pip config list 2>/dev/null)"; \
	setting() { printf '%s\n' "$$settings" | sed -n "s/^[^=]*\.$$1='\(.*\)'$$/\1/p" | head -n 1 | sed 's/\\n/ /g'; }; \
	hand_on() { if [ -n "$$2" ] && eval "[ -z \"\$${$$1:-}\" ]"; then export "$$1=$$2"; fi; }; \
	hand_on UV_DEFAULT_INDEX "$$(setting index-url)"; \
	hand_on UV_INDEX "$$(setting extra-index-url)"; \
	hand_on UV_FIND_LINKS "$$(setting find-links | tr -s ' ' ',')"; \
	hand_on UV_NO_INDEX "$$(setting no-index)"; \
	hand_on SSL_CERT_FILE "$$(setting cert)"; \
	echo "installing task2vec[$(1)] into $(VENV) ..."; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --index-strategy unsafe-best-match -c constraints.txt -e '.[$(1)]' \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
endef

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,$(EXTRAS))
	@touch $@

$(VENV)/.ready-bench: $(READY)
	$(call install,bench)
	@touch $@
