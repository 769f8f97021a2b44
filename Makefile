# Every target makes the virtual environment first if there is none; nothing else needs to be installed by hand.
PYTHON  ?= python3
PROFILE ?= demo
JOBS    ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
SEEDS   ?= 1
# Further Hydra overrides for `make reproduce`, e.g. ARGS="data.path=/data/criteo/train.txt".
ARGS    ?=
STREAM_ARGS ?=
TEXT_ARGS   ?=
XNLI_ARGS   ?=

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup test lint reproduce clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo "  PROFILE=smoke|demo|paper  SEEDS=3  JOBS=4  ARGS='any Hydra override'  STREAM_ARGS=...  TEXT_ARGS=...  XNLI_ARGS=..."
	@echo "  belong to reproduce;"
	@echo "  PYTHON=python3.12 and PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu to setup."

setup: $(READY)  ## make the virtual environment (.venv)

# torch comes first and by its exact version, so that no dependency pulls another build in.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	touch $@

test: $(READY)  ## run the tests (the slow ones: .venv/bin/pytest -m slow)
	$(BIN)/python -m pytest -m "not slow"

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

# ARGS concern the comparison, STREAM_ARGS the streams, TEXT_ARGS the texts, XNLI_ARGS those of a large vocabulary: their
# data are others.
reproduce: $(READY)  ## the paper's comparisons on data at hand, and their report (PROFILE=demo: minutes)
	$(BIN)/dpfest sweep experiment=comparison profile=$(PROFILE) sweep.jobs=$(JOBS) \
		"seed=range($(SEEDS))" train.save_model=false $(ARGS)
	$(BIN)/dpfest sweep experiment=streaming profile=$(PROFILE) sweep.jobs=$(JOBS) \
		"seed=range($(SEEDS))" train.save_model=false $(STREAM_ARGS)
	$(BIN)/dpfest sweep experiment=text profile=$(PROFILE) sweep.jobs=$(JOBS) \
		"seed=range($(SEEDS))" train.save_model=false $(TEXT_ARGS)
	$(BIN)/dpfest sweep experiment=text_large_vocabulary profile=$(PROFILE) sweep.jobs=$(JOBS) \
		"seed=range($(SEEDS))" train.save_model=false $(XNLI_ARGS)
	$(BIN)/dpfest audit profile=$(PROFILE) privacy.noise_seed=0 $(ARGS)
	$(BIN)/dpfest report profile=$(PROFILE) $(ARGS)

clean:  ## remove the virtual environment and caches; data/, runs/ and report/ stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
