# Every target does the set-up it needs: `make run` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run test check docs bench oracle clean

run: $(VENV)/.run       ## the result that started the project
	$(BIN)/epdsim run scenarios/validation/cached-images.yaml

test: $(VENV)/.testing  ## the tests
	$(BIN)/python -m pytest -n 2 -q

check: $(VENV)/.testing ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(VENV)/.docs     ## the documentation, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs docs/_build/html

bench: $(VENV)/.testing ## codec and simulator benchmarks
	$(BIN)/python -m pytest -q -m bench

oracle: $(VENV)/.oracle ## comparison with transformers' processors and rope indices
	$(BIN)/python -m pytest -q -m oracle tests/oracle

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(VENV)/.testing: $(VENV)/.run
	$(PIP) --editable '.[testing]'
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/.oracle: $(VENV)/.testing
	$(PIP) --editable '.[oracle]'
	touch $@

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .ruff_cache
