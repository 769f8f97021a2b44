# Every target makes the virtual environment first if there is none; nothing else needs to be installed by hand.
PYTHON  ?= python3
PROFILE ?= demo
JOBS    ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
SEEDS   ?= 1
# The paper's own data, for PROFILE=paper: Kaggle's train.txt; the folder of day_0.gz ... day_23.gz; GLUE's folder (SST-2,
# QNLI, QQP) with RoBERTa's; XNLI's with XLM-R's.
CRITEO     ?=
CRITEO_1TB ?=
GLUE       ?=
ROBERTA    ?=
XNLI       ?=
XLM_R      ?=
# What carries the runs: this machine (local), JOBS at once, or a cluster (ray, slurm) with further sweep.* settings.
ENGINE      ?= local
ENGINE_ARGS ?=
# Further Hydra overrides of the comparison, of the streams, of the texts, of those with a large vocabulary.
ARGS        ?=
STREAM_ARGS ?=
TEXT_ARGS   ?=
XNLI_ARGS   ?=

# The virtual environment, and what tests, linters and clusters need besides.
VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
DEV   := $(VENV)/.dev

# Hundreds of processes import torch: kept bytecode halves their start, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test test-all gpu lint conf docs wheel reproduce estimate readme clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo "  PROFILE=smoke|demo|paper  SEEDS=3  JOBS=4  ENGINE=ray|slurm  ARGS='any Hydra override'  STREAM_ARGS=  TEXT_ARGS="
	@echo "  CRITEO=train.txt  CRITEO_1TB=  GLUE=  ROBERTA=  XNLI=  XLM_R=folder belong to reproduce and estimate;"
	@echo "  PYTHON=python3.12 and PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu to setup."

setup: $(DEV)  ## make the virtual environment (.venv)

# torch comes first and by its exact version, so that no dependency pulls another build in. The rest is for uv, which takes a
# sixth of pip's time, and for pip where uv fails: it knows no pip.conf.
define installed
test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --quiet --no-compile "$$(grep '^torch==' constraints.txt)" uv -c constraints.txt
$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[$(1)]' -c constraints.txt \
  || $(BIN)/python -m pip install --quiet -e '.[$(1)]' -c constraints.txt
endef
MADE_OF := pyproject.toml constraints.txt dpfest/kernels.c pipelines/data/hashing.c

$(READY): $(MADE_OF)
	$(call installed,text)
	touch $@

$(DEV): $(MADE_OF)
	$(call installed,dev)
	touch $(READY) $@

# A process a core, up to four; each with one thread, so that they do not wait for one another. Each begins with tests
# that stand together, which share what a module prepares.
PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
test: $(DEV)  ## run the tests (at most 12 minutes on 2 cores)
	$(PYTEST)

test-all: $(DEV)  ## run these and all others that this machine can: whole experiments, clusters, documents (40 minutes)
	$(PYTEST) -m ""

# Ten minutes: the speeds of the GPU and of steps, with the kernels and without them, and then the tests of what runs there.
gpu: $(DEV)  ## on a machine with a GPU: time steps, in report/gpu and report/gpu-kernels, and test its kernels
	DPFEST_DEVICE_KERNELS=1 $(BIN)/python -c "import torch; from dpfest import devices; \
	  assert devices.serving(torch.zeros(1, device='cuda')), 'the kernels do not serve'"
	for with in 1 0; do DPFEST_DEVICE_KERNELS=$$with $(BIN)/python -m dpfest bench device --repeats 7 device=cuda \
	  paths.report=report/gpu$$(test $$with = 0 || echo -kernels) || exit 1; done
	DPFEST_DEVICE_KERNELS=1 $(BIN)/python -m pytest -q tests/dpfest/test_cuda.py tests/dpfest/device

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

conf: $(READY)  ## conf/'s files of defaults, after a change of a dataclass of settings
	$(BIN)/python -m pipelines.config.shipped

docs: $(DEV)  ## the documentation as a site, in site/ (public names from docstrings; a broken link is an error)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo site/index.html

wheel: $(READY)  ## dist/dpfest-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/dpfest-*.whl

# A path as an override: quoted for Hydra (double quotes) and for the shell around it (single ones), whatever is in it.
quoted = '$(1)="$(subst ','\'',$(subst ",\",$(2)))"'

# Each piece of work: its experiment and what that is given. In the paper's profile, those whose data are named.
clicks     := $(if $(CRITEO),$(call quoted,data.path,$(CRITEO))) $(ARGS)
comparison := experiment=comparison $(clicks)
units      := experiment=units
map        := experiment=map
streaming  := experiment=streaming $(if $(CRITEO_1TB),$(call quoted,data.path,$(CRITEO_1TB))) $(STREAM_ARGS)
text       := experiment=text $(TEXT_ARGS)
glue        = experiment=text data=$(1) $(call quoted,data.path,$(GLUE)/$(2)) $(call quoted,model.path,$(ROBERTA)) $(TEXT_ARGS)
sst2       := $(call glue,sst2,SST-2)
qnli       := $(call glue,qnli,QNLI)
qqp        := $(call glue,qqp,QQP)
xnli       := experiment=text_large_vocabulary $(call quoted,data.path,$(XNLI)) $(call quoted,model.path,$(XLM_R)) $(XNLI_ARGS)
text_large_vocabulary := experiment=text_large_vocabulary $(XNLI_ARGS)
ifeq ($(PROFILE),paper)
WORK  := $(if $(CRITEO)$(ARGS),comparison) $(if $(CRITEO_1TB)$(STREAM_ARGS),streaming) $(if $(GLUE),sst2 qnli qqp) $(if $(XNLI),xnli)
else
WORK  := comparison streaming units map $(patsubst conf/experiment/%.yaml,%,$(wildcard conf/experiment/text*.yaml))
# A short benchmark: two and a half minutes for the paper's table of times, half a minute for whole steps.
QUICK := profile=$(PROFILE)
BENCH := --repeats 3 bench.seconds=1
endif
SEEDED := "seed=range($(SEEDS))"
SHARED := profile=$(PROFILE) $(SEEDED) sweep.jobs=$(JOBS)
# Ray and Slurm's client come with what tests need.
ENVIRONMENT := $(if $(filter local,$(ENGINE)),$(READY),$(DEV))
CARRIED := $(if $(filter-out local,$(ENGINE)),sweep.engine=$(ENGINE) $(ENGINE_ARGS))
REPORT  = $(BIN)/dpfest report profile=$(PROFILE) $(SEEDED) $(clicks)

# The empty line ends each command where several are made.
define estimated
@$(BIN)/dpfest report --list $(SHARED) $($(1)) | grep '^experiment='

endef
define swept
$(BIN)/dpfest sweep $(SHARED) $($(1)) train.save_model=false $(CARRIED)

endef

estimate: $(ENVIRONMENT)  ## how many runs `make reproduce` makes with the same variables, and how long they take
	@test -n "$(strip $(WORK))" || \
		{ echo "PROFILE=paper needs the paper's data: CRITEO=, CRITEO_1TB=, GLUE= and ROBERTA=, XNLI= and XLM_R=" >&2; exit 2; }
	@test "$(PROFILE)" != paper || test -e report/bench/step.json || \
		$(BIN)/dpfest bench step --repeats 5 bench.largest_rows=338782
	$(foreach name,$(WORK),$(call estimated,$(name)))

# The first figure is drawn as soon as there are runs for it: in the demo journey's. The rest is one sweep, which imports
# torch once, unless an experiment has arguments of its own. Then the settings of journey's comparison that most claims are
# about get two seeds more.
OWN      := $(strip $(clicks) $(CRITEO_1TB) $(STREAM_ARGS) $(TEXT_ARGS) $(XNLI_ARGS))
comma    := ,
all      := experiment=$(subst $() $(),$(comma),$(WORK))
DEMO     := $(filter demo,$(PROFILE))
MORE          := more_controls more_fest more_adafest
more_controls := algorithm=dpsgd,frozen
more_fest     := algorithm=fest algorithm.selection.rows=30000,100000
more_adafest  := algorithm=adafest algorithm.noise_ratio=1
journey   = $(subst $(SEEDED),$(1) data=journey,$(call swept,comparison))
reproduce: $(if $(DEMO),$(ENVIRONMENT),estimate)  ## the paper's comparisons on data at hand, and their report (PROFILE=demo: minutes)
	$(if $(DEMO),$(call journey,$(SEEDED)),$(call swept,$(firstword $(WORK))))
	$(REPORT) $(if $(DEMO),--only fig3)
	$(foreach name,$(if $(DEMO),$(if $(OWN),$(WORK),all),$(wordlist 2,9,$(WORK))),$(call swept,$(name)))
	$(if $(DEMO),$(foreach more,$(MORE),$(call journey,"seed=range(3)" $($(more)))))
	$(BIN)/dpfest bench embedding $(QUICK) $(if $(DEMO),--repeats 6 bench.seconds=10,$(BENCH))
	$(BIN)/dpfest bench step $(QUICK) $(BENCH) $(if $(DEMO),bench.largest_rows=338782)
	$(BIN)/dpfest audit $(QUICK) $(if $(DEMO),audit.draws=100000) privacy.noise_seed=0 $(ARGS)
	$(REPORT)

readme: $(READY)  ## write README's results and their picture from docs/reference, and the documents' table of paths
	$(BIN)/python -m reports.readme
	$(BIN)/python -m tests.paths

clean:  ## remove the virtual environment and caches; data/, runs/ and report/ stay
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
