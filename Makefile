# `make help` lists the targets. Everything is installed into .venv: the versions of the lock in
# requirements/, each file only if its SHA-256 is there. A target installs what it needs once, and
# again when the lock or, in a way that an editable install does not follow, the package has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The lock is complete, so nothing is resolved; what builds a package is in it too.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation
LOCKED := $(INSTALL) --require-hashes --only-binary :all: --no-binary s5-pytorch --use-pep517
NATIVE := CMakeLists.txt $(wildcard src/native/* src/native/*/*)
MODULES := find src/linrnn -name '*.py' | sort
CHANGED := pyproject.toml requirements/linrnn.cdx.json $(NATIVE) $(VENV)/.modules

# Bytecode is kept, whatever the environment says: without it each of four workers compiles all of
# the sources and the tests anew. Half of the tests goes to each worker, and who is idle takes half
# of what is left to the other: those of a file stay together and share what they prepare.
# OpenBLAS would start a thread a core in each worker, and those that wait take the other's time.
PYTEST := PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
# As every static checker does, an int is taken where a float is asked for.
CHECKER := '--jaxtyping-packages=linrnn,beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))'
# Exit code 5 says that nothing was selected, which is no failure of what was.
ALLOW_EMPTY := || [ $$? -eq 5 ]

.DEFAULT_GOAL := help
.PHONY: help quickstart install test test-slow sanitize lint format lock torch-cpu bill audit dist release portable lists docs bench bench-gpu tritons test-aeon bench-errors bench-layers bench-cells bench-conv bench-long-conv bench-learning bench-newton bench-memories bench-segments bench-splits bench-curves bench-stream bench-long-haul bench-learn-haul bench-data bench-decode bench-steps bench-flat bench-kept-memory bench-small-series bench-front-door bench-calibration bench-imputing bench-thresholds bench-agents bench-hf first-minutes house clean bench-updates bench-serve bench-quantized FORCE

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 18

quickstart: $(VENV)/.train  ## install, then train an LRU on handwritten digits
	$(BIN)/linrnn train digits
	@$(MAKE) --no-print-directory $(VENV)/.answers

install: $(VENV)/.dev $(VENV)/.answers  ## install everything a developer needs into .venv

test: $(VENV)/.dev  ## the tests, with and then without the run-time shape checker
	$(PYTEST) -m "not slow and not unchecked" $(CHECKER) $(ALLOW_EMPTY)
	$(PYTEST) -m "unchecked and not slow" $(ALLOW_EMPTY)

test-slow: $(VENV)/.dev  ## the tests marked slow, in the same two passes
	$(PYTEST) -m "slow and not unchecked" $(CHECKER) $(ALLOW_EMPTY)
	$(PYTEST) -m "slow and unchecked" $(ALLOW_EMPTY)

sanitize: $(VENV)/.dev  ## the native kernels under sanitizers of memory, undefined behaviour and races; some minutes
	PATH="$(abspath $(BIN)):$$PATH" tests/native/sanitize $(BIN)/python

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff rewrite the files
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

TRITONS ?= 3.3.0 3.4.0 3.5.0 3.6.0

tritons: $(VENV)/.dev  ## compile the GPU kernels with older versions of Triton, without a GPU; some minutes
	set -e; for version in $(TRITONS); do \
	  folder=$(CURDIR)/build/triton-$$version; echo "triton $$version"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $$folder triton==$$version; \
	  PYTHONPATH=$$folder $(PYTEST) tests/unit/ops/test_triton_launches.py; done

AEON ?= 1.6.0

# aeon holds NumPy, pandas and scikit-learn back, so its own versions of these lie in an environment
# that finds all else in .venv. Of the other packages only the sets of series are read.
BESIDE := build/aeon-$(AEON)
$(BESIDE)/.done: $(VENV)/.dev
	$(BIN)/python -m venv $(BESIDE)
	$(BESIDE)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: aeon==$(AEON)
	$(BESIDE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sktime==1.2.0 pyts==0.14.1 tslearn==0.10.0
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(BESIDE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/linrnn.pth
	touch $@

test-aeon: $(BESIDE)/.done  ## the estimators by the checks of aeon, in a separate environment; needs the network; some minutes
	OMP_NUM_THREADS=1 $(BESIDE)/bin/python -m pytest -q -p no:cacheprovider tests/unit/estimators/test_aeon.py

bench-gpu: $(VENV)/.dev  ## check and time the Triton kernels on a GPU, in under ten minutes
	$(BIN)/python benchmarks/gpu.py

# One resolution by uv serves every platform and Python: constraints.txt has its versions. Each file in
# requirements/ is what some extras need of them, with hashes, installed after those before it. PyTorch
# lies apart, with what its CUDA build needs, since torch-cpu.txt can take its place. Not among the
# extras is `hf`, which Python 3.10 cannot have; its packages are those that `dev` brings.
COMPILE := $(BIN)/python -m uv pip compile --quiet --no-python-downloads --universal --python-version 3.10 --only-binary :all: --no-binary s5-pytorch --custom-compile-command "make lock"
HASHED := $(COMPILE) --generate-hashes --constraints constraints.txt
NO_CUDA = $$(sed -nE 's/^((nvidia|cuda)[a-z0-9-]*)==.*/--no-emit-package \1/p' constraints.txt)
LAYER = $(HASHED) --no-emit-package torch $(NO_CUDA) pyproject.toml
extras = $(addprefix --extra ,$(1))
# Lists of pins in build/pins that hold no name twice, without markers: neither pip nor pip-audit looks
# at what is for another platform or Python otherwise.
PINS = rm -rf build/pins && mkdir -p build/pins && awk -F== '/^[a-z0-9]/ {sub(/ .*/, ""); print > ("build/pins/" ++seen[$$1] ".txt")}'

lock: $(VENV)/.supply  ## write the lock anew; for newer versions with UPGRADE="--upgrade-package NAME"
	$(COMPILE) --no-annotate $(UPGRADE) $(call extras,build train tables onnx text triton serve rl dev docs bench supply) pyproject.toml -o constraints.txt
	echo torch | $(HASHED) - -o requirements/torch.txt
	$(LAYER) --no-emit-package triton $(call extras,build train) -o requirements/train.txt
	$(LAYER) $(call extras,tables onnx text triton serve rl dev docs) -o requirements/dev.txt
	$(LAYER) $(call extras,bench) -o requirements/bench.txt
	$(LAYER) $(call extras,supply) -o requirements/supply.txt
	$(MAKE) -o $(VENV)/.supply torch-cpu bill  # the tools are there, whatever the new lock says

# The hash of the CPU build that pip finds here, if PyTorch has a new version; those for other machines
# are added by hand. A line without a hash installs nothing, and a test fails.
torch-cpu: $(VENV)/.supply  ## the hash of PyTorch without CUDA; `make lock` writes it too
	pin=$$(sed -n 's/^torch==.*/&+cpu/p' constraints.txt); grep -q "^$$pin " requirements/torch-cpu.txt || { rm -rf build/torch; \
	  $(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --dest build/torch "$$pin"; \
	  { echo "# PyTorch without CUDA, taken instead of torch.txt where pip is told where it lies"; echo "$$pin \\"; \
	    $(BIN)/python -m pip hash build/torch/*.whl | sed -n 's/^--/    --/p'; } >requirements/torch-cpu.txt; }

bill: $(VENV)/.supply  ## the bill of materials, from the lock; `make lock` writes it too
	rm -rf build/bill && mkdir -p build/bill
	$(COMPILE) --no-annotate --constraints constraints.txt pyproject.toml -o build/bill/always.txt
	printf 'transformers\naccelerate\n' | $(HASHED) $(call extras,train tables text triton onnx serve rl) pyproject.toml - -o build/bill/wheel.txt
	$(PINS) build/bill/wheel.txt
	set -e; for list in $$(ls build/pins); do \
	  $(BIN)/python -m pip install --quiet --dry-run --ignore-installed --ignore-requires-python --no-deps --only-binary :all: \
	    --report build/bill/$$list.json --requirement build/pins/$$list; done
	$(BIN)/python .ci/sbom.py build/bill

audit: $(VENV)/.supply  ## licences of what is installed, known vulnerabilities of the whole lock (needs the network and fails without)
	$(BIN)/python -m piplicenses
	$(PINS) constraints.txt
	failed=0; for list in build/pins/*.txt; do \
	  $(BIN)/python -m pip_audit --strict --disable-pip --no-deps --requirement $$list || failed=1; done; \
	[ $$failed = 0 ] || { echo "audit: failed: there are vulnerabilities, or the database could not be asked" >&2; exit 1; }

dist: $(VENV)/.dev  ## source distribution, wheel and SBOM of a release, into dist/
	rm -rf dist
	$(BIN)/python -m linrnn.cli._verbs.precompute src/linrnn
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation
	cp requirements/linrnn.cdx.json dist/

release: $(VENV)/.dev  ## check, build and test a release from its source distribution; without a date yet: REHEARSAL=1; some minutes
	$(BIN)/python .ci/release.py $(if $(REHEARSAL),--rehearsal)

portable: $(VENV)/.dev  ## the native kernels by other compilers and on other processors, as far as these are installed
	PATH="$(abspath $(BIN)):$$PATH" .ci/portable

lists: $(VENV)/.dev  ## every table that is written from the catalogues, and measured of mixers that are new
	$(BIN)/python docs/lists.py
	$(BIN)/python tests/golden/constants.py
	$(BIN)/python docs/measure_laws.py --missing
	$(BIN)/python docs/measure_costs.py --missing

docs: $(VENV)/.dev  ## the lists of the pages, and the documentation site, into site/
	$(BIN)/python docs/lists.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/screenshots.py
	@if command -v node >/dev/null; then node docs/search.js site; else echo "docs: node is not installed, so the search was not tested"; fi

bench: $(VENV)/.bench  ## the speed of linear_scan on this CPU, against others; about 6 minutes
	$(BIN)/python benchmarks/scan.py

bench-errors: $(VENV)/.bench  ## its rounding errors, as a table and a plot; about 3 minutes
	$(BIN)/python benchmarks/errors.py

bench-layers: $(VENV)/.bench  ## the speed and memory of whole layers, against others; in float32 and bfloat16; about 12 minutes
	$(BIN)/python benchmarks/layers.py
	$(BIN)/python benchmarks/layers.py --half

bench-cells: $(VENV)/.bench  ## the speed of cells on the native machine, against the loop and other kernels, and of the layers made of them; about 25 minutes
	$(BIN)/python benchmarks/cells.py
	$(BIN)/python benchmarks/sequential.py

bench-conv: $(VENV)/.bench  ## the speed of state-space layers, against their equations as people copy them; about 5 minutes
	$(BIN)/python benchmarks/conv.py

bench-learning: $(VENV)/.bench  ## a step of each online learner, by what was read before, and its traces; about 5 minutes
	$(BIN)/python benchmarks/learning.py

bench-newton: $(VENV)/.bench  ## Newton's method on the cells of all layers: agreement, rounds, residual; about 1 minute
	$(BIN)/python benchmarks/newton.py

bench-memories: $(VENV)/.bench  ## the speed and memory of matrix memories, against others; about 15 minutes
	$(BIN)/python benchmarks/memories.py

bench-segments: $(VENV)/.bench  ## layers of segments beside their own products, at lengths up to 16,384, and streamed
	$(BIN)/python benchmarks/segments.py

bench-splits: $(VENV)/.bench  ## what splitting a sequence changes, mixer by mixer; about 5 minutes
	$(BIN)/python benchmarks/splits.py

bench-decode: $(VENV)/.bench  ## how fast language models write and read, against others
	$(BIN)/python benchmarks/decode.py

bench-hf: $(VENV)/.bench  ## other people's models of transformers, by their functions and by our ops; about 10 minutes
	$(BIN)/python benchmarks/hf.py

bench-agents: $(VENV)/.bench  ## an update and a step of RecurrentPPO with a memory of ours, beside its LSTM; about 3 minutes
	$(BIN)/python benchmarks/agents.py

bench-thresholds: $(VENV)/.bench  ## what each threshold of the CPU kernels costs beside half and double of it; about 3 minutes
	$(BIN)/python benchmarks/thresholds.py

first-minutes:  ## follow README.md as a newcomer, in fresh environments; needs the network; about 15 minutes
	$(PYTHON) docs/first_minutes.py

house: $(VENV)/.dev  ## lines, names and comments of the sources, by room
	$(BIN)/python benchmarks/house.py

bench-steps: $(VENV)/.bench  ## a streaming step of each mixer, recorded and as its operators; about 2 minutes
	$(BIN)/python benchmarks/steps.py

bench-updates: $(VENV)/.bench  ## steps that write their state in place, beside operators and scans of one step
	$(BIN)/python benchmarks/updates.py

bench-flat: $(VENV)/.bench  ## whether a token costs the same at position 1 and at 1,000,000
	$(BIN)/python benchmarks/flat.py

bench-quantized: $(VENV)/.bench  ## weights of 8 and 4 bits, beside a read; TEXT=FILE to train on, GGML=FOLDER of llama.cpp; about 15 minutes
	$(BIN)/python benchmarks/quantized.py --text $(TEXT) $(if $(GGML),--ggml $(GGML))

bench-kept-memory: $(VENV)/.dev  ## what keeping freed memory saves of a training step, and costs; about 2 minutes
	$(BIN)/python benchmarks/kept_memory.py

bench-small-series: $(VENV)/.bench $(VENV)/.train $(BESIDE)/.done  ## accuracy on small series, beside a nearest neighbour and classifiers of aeon; needs the network; about 20 minutes
	$(BESIDE)/bin/python benchmarks/small_series.py

bench-front-door: $(VENV)/.bench $(VENV)/.train  ## the answer of linrnn train beside simple methods and nn.GRU on small sets; about 30 minutes
	$(BIN)/python benchmarks/front_door.py

bench-calibration: $(VENV)/.bench $(VENV)/.train  ## probabilities of classes before and after calibration, and what early answers cost; about 10 minutes
	$(BIN)/python benchmarks/calibration.py

bench-imputing: $(VENV)/.bench $(VENV)/.train  ## errors of values in gaps, beside lines, last values and imputers of scikit-learn; about 15 minutes
	$(BIN)/python benchmarks/imputing.py

bench-long-conv: $(VENV)/.bench  ## a step of a long convolution, read online and as a product with its past; about 1 minute
	$(BIN)/python benchmarks/long_conv.py

bench-data: $(VENV)/.bench  ## whether a training step waits for its data; about 2 minutes
	$(BIN)/python benchmarks/data.py

bench-stream: $(VENV)/.bench $(VENV)/.train  ## a gigabyte through `linrnn stream`: memory and speed
	$(BIN)/python benchmarks/stream.py

bench-long-haul: $(VENV)/.bench $(VENV)/.train  ## an hour of `linrnn stream` and one of training: memory, open files, threads
	$(BIN)/python benchmarks/long_haul.py

bench-learn-haul: $(VENV)/.bench $(VENV)/.train  ## an hour of `linrnn stream --learner`, paced to a twentieth of a core: memory, time a token
	$(BIN)/python benchmarks/learn_haul.py

bench-serve: $(VENV)/.bench $(VENV)/.train  ## thousands of streams beside their model, and `linrnn serve` that is killed; about 4 minutes
	$(BIN)/python benchmarks/serve.py

bench-curves: $(VENV)/.bench  ## time against the length of the sequence, as a plot; about 2 minutes
	$(BIN)/python benchmarks/curves.py

clean:  ## remove what the targets made, .venv included; runs/ stays
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "linrnn needs Python 3.10 or newer; set PYTHON=")'
	@echo "make: creating an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# An editable install has noted which file each module is. What its compiler made is kept, so that
# a new module takes seconds and not the minutes of a first time.
$(VENV)/.modules: FORCE | $(BIN)/python
	@$(MODULES) | cmp -s - $@ || $(MODULES) > $@

# A CPU build of PyTorch is no file of the public index; it is taken where pip is told of one.
$(VENV)/.torch: requirements/torch-cpu.txt requirements/torch.txt | $(BIN)/python
	@echo "make: installing PyTorch, some minutes"
	@$(LOCKED) -r requirements/torch-cpu.txt 2>$(VENV)/torch-cpu.log || \
		{ echo "make: pip has no CPU build of PyTorch, so this is the default one ($(VENV)/torch-cpu.log)"; $(LOCKED) -r requirements/torch.txt; }
	@touch $@

# Users need the kernels of their own processor alone, as pyproject.toml says; tests need all. Those of
# other processors may take twice as long as a wheel's, where -O3 takes 4 to 15 times as long to compile.
# Where `make install` has built all, they stay: CMake deletes objects of sets that it leaves out.
ISAS = $(if $(wildcard $(VENV)/.dev),,native)
$(VENV)/.train: requirements/train.txt $(CHANGED) $(VENV)/.torch
	@echo "make: installing linrnn and compiling its kernels, some minutes the first time"
	@$(LOCKED) -r $<
	@SKBUILD_BUILD_DIR=$(VENV)/native SKBUILD_CMAKE_DEFINE=LINRNN_ISAS=$(ISAS) $(INSTALL) -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.train
	@echo "make: installing the tools of developers and compiling all kernels, some minutes the first time"
	@$(LOCKED) -r $<
	@SKBUILD_BUILD_DIR=$(VENV)/native SKBUILD_CMAKE_DEFINE="LINRNN_ISAS=;LINRNN_OPTIMISE_OTHERS=-O2" $(INSTALL) -e .
	@touch $@

# The output of `list`, `show` and `train TASK --help` for these sources is stored once, in about 15 s, so
# that these commands need not import PyTorch. With other sources it is computed again.
$(VENV)/.answers: $(VENV)/.train
	@$(BIN)/python -m linrnn.cli._verbs.precompute || true
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	$(LOCKED) -r $<
	touch $@

$(VENV)/.supply: requirements/supply.txt $(VENV)/.dev
	$(LOCKED) -r $< || { echo "make: failed: what lock and audit need cannot be installed, so nothing was checked" >&2; exit 1; }
	touch $@
