# Stagecraft's front door: `make help` lists the targets. Every target installs what it needs first, except those for GPUs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

TORCH_VERSION := 2.13.0
TRANSFORMERS_VERSION := 5.22.2
SAFETENSORS_VERSION := 0.8.0
WHEELS := .torch-$(TORCH_VERSION)-safetensors-$(SAFETENSORS_VERSION)
PYTHON ?= python3
JOBS ?= $(shell nproc)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
PREFIX ?= /usr/local
SECONDS ?= 3600
FAULT_TRIALS ?= 200
CROSSINGS_SECONDS ?= 600

PACKAGES := cmake ninja-build g++ ccache mold \
  libopenmpi-dev openmpi-bin libcli11-dev nlohmann-json3-dev libfmt-dev libgtest-dev libgmock-dev librapidcheck-dev libcpp-httplib-dev coinor-cbc
TEST_PACKAGES := zsh
MORE_TEST_PACKAGES := libmpich-dev mpich
SANITIZER_PACKAGES := clang libclang-rt-dev
PAGE_PACKAGES := emscripten nlohmann-json3-dev libfmt-dev cmake ninja-build
PAGE_TEST_PACKAGES := chromium chromium-driver python3-selenium
LINT_PACKAGES := clang clang-format clang-tidy

.PHONY: help setup packages torch command build page test-page install demo test test-all test-rest test-more test-asan test-tsan test-fuzz test-python test-upstream test-gpu \
  crossings bench bench-gpu figures lint pictures wheel wheel-schedule wheel-training together test-sources clean

help:  ## This list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: packages torch  ## Install the Debian packages and the torch wheel (into .venv); cheap to run again

# Installs only what is missing, so that a second run needs neither network nor root.
define install_packages
	missing=(); for p in $(1); do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing+=($$p); done; \
	if [ $${#missing[@]} -gt 0 ]; then \
	  echo "setup: installing $${missing[*]}"; \
	  command -v apt-get > /dev/null || { echo "setup: no apt-get here: install these yourself: $${missing[*]}" >&2; exit 1; }; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends $${missing[@]} > $${TMPDIR:-/tmp}/stagecraft-apt.log 2>&1 \
	    || { tail -5 $${TMPDIR:-/tmp}/stagecraft-apt.log; echo "setup: apt-get failed (log: $${TMPDIR:-/tmp}/stagecraft-apt.log): are you root, or do you have sudo and a network?" >&2; exit 1; }; \
	fi
endef

packages:
	@$(call install_packages,$(PACKAGES))

torch: .venv/$(WHEELS)

.venv/$(WHEELS): | packages
	@echo "setup: installing torch $(TORCH_VERSION) into .venv (a minute or two)"
	@$(PYTHON) -c 'import ensurepip' 2> /dev/null || { $(call install_packages,python3-venv); }
	@$(PYTHON) -m venv .venv || { echo "setup: $(PYTHON) cannot make a virtual environment: install python3-venv, or give PYTHON=..." >&2; exit 1; }
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION) safetensors==$(SAFETENSORS_VERSION) numpy \
	  || { echo "setup: pip could not install torch==$(TORCH_VERSION): check the network, or run it by hand in .venv" >&2; exit 1; }
	@touch $@

# Only the tests that export published architectures need it; it must not bring another torch along.
.venv/.models-$(TRANSFORMERS_VERSION): | .venv/$(WHEELS)
	@echo "setup: installing transformers $(TRANSFORMERS_VERSION) into .venv"
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check transformers==$(TRANSFORMERS_VERSION) torch==$(TORCH_VERSION) \
	  || { echo "setup: pip could not install transformers: check the network, or run it by hand in .venv" >&2; exit 1; }
	@touch $@

command: packages  ## Build the command alone (build/bin/stagecraft), without LibTorch where there is none
	@mkdir -p build && cmake --preset release > build/cmake.log 2>&1 || { cat build/cmake.log; exit 1; }
	@cmake --build --preset release -j $(JOBS) --target stagecraft

build: setup command  ## Build the libraries and the programs (build/bin/stagecraft, and what `stagecraft train` needs)
	@cmake --build --preset release -j $(JOBS) --target installed

VERSION := $(shell awk '/^project/ {print $$3}' CMakeLists.txt)

# The engine is compiled by Debian's Emscripten; the page itself is put together by a script of ours.
page:  ## Build the page: schedules planned, simulated and shown in a browser (build/share/stagecraft/page.html)
	@$(call install_packages,$(PAGE_PACKAGES))
	@mkdir -p build && emcmake cmake -G Ninja -S web/engine -B build/engine -DCMAKE_BUILD_TYPE=Release -DSTAGECRAFT_VERSION=$(VERSION) > build/engine.log 2>&1 \
	  || { cat build/engine.log; exit 1; }
	@cmake --build build/engine -j $(JOBS)
	@$(PYTHON) web/build.py build/engine/engine.js build/engine/engine.wasm build/share/stagecraft/page.html

# Debian's Python, since the driver of the browser is one of its packages.
test-page: build page  ## Drive the page in Debian's Chromium: every control, numbers equal to the command's, the live page
	@$(call install_packages,$(PAGE_TEST_PACKAGES))
	@cd tests/page && STAGECRAFT_PAGE_PICTURES="$(if $(PICTURES),$(abspath $(PICTURES)))" STAGECRAFT_BIN="$(abspath build/bin/stagecraft)" PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m unittest

# Builds as who calls it; only the copying is done as root, and only where the folder is not one's own.
install: build  ## Install libraries, headers, CMake package and commands in PREFIX (/usr/local); DESTDIR is respected
	@place="$(DESTDIR)$(abspath $(PREFIX))"; while [ ! -e "$$place" ]; do place=$$(dirname "$$place"); done; \
	  as=; [ -w "$$place" ] || as="$(SUDO)"; \
	  $$as env DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(abspath $(PREFIX))"

demo: setup command  ## Train a small GPT on this repository's text, 4 ranks as threads, and compare with one device
	@cmake --build --preset release -j $(JOBS) --target gpt_demo
	@build/bin/gpt_demo --out build/demo README.md CONTRIBUTING.md $$(git ls-files 'docs/*.md' 'src/*.cpp' 'include/*.h')

test: setup  ## Build and run the tests: unit, property, parity, command line, faults, install
	@$(call install_packages,$(TEST_PACKAGES))
	@echo "== release" && cmake --preset release > /dev/null && cmake --build --preset tests -j $(JOBS) && ctest --preset release -j $$(($(JOBS) + 1))

test-all: test  ## The same, every setting of the long ones, MPICH, published models, sanitizers, fuzzers
	@$(MAKE) --no-print-directory test-rest

test-rest: test-more test-asan test-tsan test-fuzz

test-more: setup .venv/.models-$(TRANSFORMERS_VERSION)  ## Every setting of the long tests, MPICH, published models
	@$(call install_packages,$(TEST_PACKAGES) $(MORE_TEST_PACKAGES))
	@echo "== more" && cmake --preset release > /dev/null && cmake --build --preset more-tests -j $(JOBS) && STAGECRAFT_FAULT_TRIALS=$(FAULT_TRIALS) \
	  STAGECRAFT_CROSSINGS_SECONDS=$(CROSSINGS_SECONDS) ctest --preset more -j $(JOBS)

test-asan test-tsan: test-%: setup  ## Tests with the address and undefined-behaviour sanitizers, or the thread sanitizer
	@$(call install_packages,$(SANITIZER_PACKAGES))
	@echo "== $*" && cmake --preset $* > /dev/null && cmake --build --preset $* -j $(JOBS) && ctest --preset $* -j $(JOBS)

test-fuzz: packages  ## Fuzzers, for a few seconds each
	@$(call install_packages,$(SANITIZER_PACKAGES))
	@echo "== fuzz" && cmake --preset fuzz > /dev/null && cmake --build --preset fuzz -j $(JOBS) && ctest --preset fuzz -j $(JOBS)

# An environment that sees torch in .venv, so that the test tools stay out of there.
build/upstream/.ready: | .venv/$(WHEELS)
	@echo "test-upstream: installing pytest and what PyTorch's tests need into build/upstream"
	@.venv/bin/python -m venv build/upstream
	@.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(build/upstream/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth
	@build/upstream/bin/pip install --quiet --disable-pip-version-check pytest pytest-timeout expecttest numpy \
	  || { echo "test-upstream: pip failed: check the network" >&2; exit 1; }
	@touch $@

# Their files are not part of this project: TESTS says where they are, ONLY=test_stage runs one of them.
test-upstream: torch build/upstream/.ready  ## PyTorch's own pipelining tests on stagecraft.pipelining; TESTS=a checkout of PyTorch
	@[ -n "$(TESTS)" ] || { echo "test-upstream: say where PyTorch's tests are: make test-upstream TESTS=path/to/pytorch (a checkout of v$(TORCH_VERSION))" >&2; exit 2; }
	@build/upstream/bin/python tests/python/upstream/run.py "$(TESTS)" $(ONLY)

crossings: setup  ## Random crossings of features against one device, for SECONDS (3600)
	@cmake --preset release > /dev/null && cmake --build --preset release -j $(JOBS) --target crossings_test
	@STAGECRAFT_CROSSINGS_SECONDS=$$(($(SECONDS) * 7 / 10)) build/bin/crossings_test
	@for ranks in 2 3 4; do STAGECRAFT_CROSSINGS_SECONDS=$(SECONDS) mpirun --allow-run-as-root --oversubscribe -n $$ranks build/bin/crossings_test || exit 1; done

bench: setup command together  ## Ours beside the installed torch, ratios printed, written to build/bench/*.json
	@mkdir -p build/bench
	@cmake --build --preset release -j $(JOBS) --target benches
	@failed=0; \
	  .venv/bin/python bench/schedule_bench.py --ours build/bin/schedule_bench --json build/bench/schedule.json || failed=1; \
	  .venv/bin/python bench/step_bench.py --ours build/bin/step_bench --threads build/bin/threads_bench --json build/bench/step.json || failed=1; \
	  .venv/bin/python bench/export_bench.py --ours build/bin/export_bench --stagecraft build/bin/stagecraft --json build/bench/export.json || failed=1; \
	  .venv/bin/python bench/processes_bench.py --handover build/bin/handover_bench --step build/bin/step_bench --replicas build/bin/replicas_bench --json build/bench/processes.json || failed=1; \
	  .venv/bin/python bench/training_bench.py --sharding build/bin/sharding_bench --recompute build/bin/recompute_bench --json build/bench/training.json || failed=1; \
	  build/bin/optimizer_bench build/bench/optimizer.json || failed=1; \
	  .venv/bin/python bench/fidelity_bench.py --bench build/bin/fidelity_bench --json build/bench/fidelity.json || failed=1; \
	  OMP_NUM_THREADS=1 build/python/together/bin/python bench/python_bench.py --json build/bench/python.json || failed=1; \
	  build/bin/save_bench 1024 4 64 4 build/bench/checkpoints > build/bench/save.json && cat build/bench/save.json || failed=1; \
	  exit $$failed

# --- GPUs ---

# Offline, with whatever torch PYTHON has: it must be 2.11 or later, with CUDA. PREFIX_PATH: further places of packages.
PREFIX_PATH ?=
define configure_gpu
	@mkdir -p build/bench; $(PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "$@: $(PYTHON) has no torch that sees a GPU: give PYTHON=..." >&2; exit 1; }
	@cmake -G Ninja -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DSTAGECRAFT_PARITY=OFF -DSTAGECRAFT_PYTHON="$$(command -v $(PYTHON))" \
	  -DSTAGECRAFT_BUILD_PYTHON=$$($(PYTHON) -c 'import os, sysconfig; print("ON" if os.path.exists(sysconfig.get_path("include") + "/Python.h") else "OFF")') \
	  -DSTAGECRAFT_NCCL="$(if $(NCCL),$(abspath $(NCCL)))" \
	  -DCMAKE_PREFIX_PATH="$(PREFIX_PATH);$$($(PYTHON) -c 'import torch; print(torch.utils.cmake_prefix_path)')" > build/gpu.log 2>&1 || { tail -20 build/gpu.log; exit 1; }
endef

# Ranks as processes share one GPU, which needs NCCL 2.30 or later: NCCL=path/to/libnccl.so.2 takes the place of LibTorch's own. As many
# tests run side by side as have GPU_JOBS processes at most (see tests/gpu_tests.cmake); those that measure time run alone.
NCCL ?=
GPU_JOBS ?= 12

test-gpu:  ## On a GPU: steps as graphs, equivalence to one device, transports (threads, MPI, NCCL), accidents, training; NCCL=path/to/libnccl.so.2
	$(configure_gpu)
	@grep -q 'STAGECRAFT_BUILD_PYTHON:BOOL=ON' build/gpu/CMakeCache.txt || echo "test-gpu: stagecraft.torch is NOT TESTED, because $(PYTHON) has no headers: install python3-dev"
	@cmake --build build/gpu -j $(JOBS) --target gpu_tests
	@ctest --test-dir build/gpu -L '^gpu$$' -j $(GPU_JOBS) --output-on-failure --no-tests=error

bench-gpu:  ## On a GPU: ours beside the installed torch, steps eager and as graphs, training a GPT; predicted times, memory
	$(configure_gpu)
	@cmake --build build/gpu -j $(JOBS) --target gpu_step_bench gpu_prediction_bench memory_bench stagecraft stagecraft_train \
	  $$(grep -q 'STAGECRAFT_BUILD_PYTHON:BOOL=ON' build/gpu/CMakeCache.txt && echo stagecraft_python)
	@failed=0; \
	  $(PYTHON) bench/gpu_step_bench.py --ours build/gpu/bin/gpu_step_bench $(if $(NCCL),--nccl "$(NCCL)") --json build/bench/gpu_step.json || failed=1; \
	  ! grep -q 'STAGECRAFT_BUILD_PYTHON:BOOL=ON' build/gpu/CMakeCache.txt || PYTHONPATH="$(abspath build/gpu/python)" $(PYTHON) bench/gpu_python_bench.py --json build/bench/gpu_python.json || failed=1; \
	  build/gpu/bin/gpu_prediction_bench || failed=1; \
	  build/gpu/bin/memory_bench cuda 16 2048 16 4 1024 bfloat16 4 || failed=1; \
	  $(PYTHON) bench/gpu_gpt_bench.py --stagecraft build/gpu/bin/stagecraft --json build/bench/gpu_gpt.json || failed=1; \
	  exit $$failed

figures: packages  ## Search every published row anew and write docs/planner.md (about ten minutes)
	@cmake --preset release > /dev/null && cmake --build --preset release -j $(JOBS) --target write_figures
	@build/bin/write_figures docs/planner.md

pictures: command  ## Redraw the pictures of the README with the program itself
	@bash docs/images/draw.sh build/bin/stagecraft docs/images

lint: packages  ## Formatting and static analysis
	@$(call install_packages,$(LINT_PACKAGES))
	@cmake --preset release -B build/lint -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DSTAGECRAFT_UNITY=OFF > /dev/null
	@git ls-files '*.h' '*.cpp' | xargs clang-format --dry-run -Werror
	@git ls-files 'src/*.cpp' 'apps/*.cpp' | xargs -P $(JOBS) -n 4 clang-tidy -p build/lint --quiet

# --- Python ---

# pip builds in an environment of its own; packages come from wherever pip is told to take them.
build/python/tools/.ready: Makefile
	@$(PYTHON) -c 'import ensurepip' 2> /dev/null || { $(call install_packages,python3-venv); }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { $(call install_packages,python3-dev); }
	@$(PYTHON) -m venv build/python/tools
	@build/python/tools/bin/pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.10' \
	  || { echo "wheel: pip could not install scikit-build-core: check the network" >&2; exit 1; }
	@touch $@

wheel: wheel-schedule wheel-training  ## Build the Python wheels into build/wheels

# What `make command` builds is linked, so that nothing is compiled twice; pip only packs it.
wheel-schedule: packages build/python/tools/.ready
	@cmake --preset release -DSTAGECRAFT_BUILD_PYTHON=ON -DPython_EXECUTABLE="$(abspath build/python/tools/bin/python)" > build/cmake.log 2>&1 \
	  || { cat build/cmake.log; exit 1; }
	@cmake --build --preset release -j $(JOBS) --target stagecraft _schedule
	@rm -f build/wheels/stagecraft-[0-9]*.whl
	@build/python/tools/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheels \
	  --config-settings=build-dir="$(abspath build/python/packing)" --config-settings=cmake.define.STAGECRAFT_PREBUILT="$(abspath build)" python/schedule
	@ls -l build/wheels/stagecraft-[0-9]*.whl | awk '{print "wheel: " $$NF ", " $$5 " bytes"}'

wheel-training: setup wheel-schedule
	@cmake --preset release > /dev/null && cmake --build --preset release -j $(JOBS) --target stagecraft_python
	@rm -f build/wheels/stagecraft_torch-*.whl
	@build/python/tools/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheels \
	  --config-settings=build-dir="$(abspath build/python/packing-training)" --config-settings=cmake.define.STAGECRAFT_PREBUILT="$(abspath build)" python/training
	@ls -l build/wheels/stagecraft_torch-*.whl | awk '{print "wheel: " $$NF ", " $$5 " bytes"}'

# Both wheels together, with the torch of .venv: what users of the training half have.
together: wheel
	@.venv/bin/python -m venv --clear --without-pip build/python/together
	@.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/python/together/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	@build/python/tools/bin/pip --python build/python/together/bin/python install --quiet --disable-pip-version-check --no-index --no-deps \
	  --only-binary :all: build/wheels/stagecraft*.whl

build/python/types/.ready: Makefile
	@$(PYTHON) -m venv build/python/types
	@build/python/types/bin/pip install --quiet --disable-pip-version-check 'mypy>=1.11' \
	  || { echo "test-python: pip could not install mypy: check the network" >&2; exit 1; }
	@touch $@

# Types, which take seconds; then the first wheel alone in an empty environment (no torch, no numpy, nothing that could compile); then the second in the build folder; then both together.
test-python: together build/python/types/.ready  ## The schedule wheel in an empty environment, then stagecraft.torch and stagecraft.pipelining
	@$(PYTHON) tests/python/types/check.py build/python/types/bin/mypy build/python/together/bin/python
	@cmake --build --preset release -j $(JOBS) --target parity_gradients stagecraft_python_stand_in
	@echo "== python" && $(PYTHON) -m venv --clear --without-pip build/python/empty
	@build/python/tools/bin/pip --python build/python/empty/bin/python install --quiet --disable-pip-version-check --no-index --no-deps \
	  --only-binary :all: build/wheels/stagecraft-[0-9]*.whl
	@cd tests/python/schedule && PYTHONDONTWRITEBYTECODE=1 "$(abspath build/python/empty)/bin/python" -m unittest
	@ctest --preset python -j $(JOBS)
	@cd tests/python/together && PYTHONDONTWRITEBYTECODE=1 "$(abspath build/python/together)/bin/python" -m unittest
	@cd tests/python/schedule && PYTHONDONTWRITEBYTECODE=1 "$(abspath build/python/together)/bin/python" -m unittest test_costs test_simulation  # with numpy

# What a user's pip does with the sources. It compiles both halves, a quarter of an hour without ccache: for releases, not for CI.
test-sources: torch build/python/tools/.ready  ## Both Python packages built by pip from a clone, into empty environments, and tried there
	@rm -rf build/python/clone build/python/from-sources && git clone --quiet . build/python/clone
	@build/python/tools/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/python/from-sources build/python/clone/python/schedule
	@$(PYTHON) -m venv --clear --without-pip build/python/empty
	@build/python/tools/bin/pip --python build/python/empty/bin/python install --quiet --disable-pip-version-check --no-index --no-deps \
	  --only-binary :all: build/python/from-sources/stagecraft-[0-9]*.whl
	@cd tests/python/schedule && PYTHONDONTWRITEBYTECODE=1 "$(abspath build/python/empty)/bin/python" -m unittest
	@.venv/bin/python -m venv --clear build/python/sources
	@.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/python/sources/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	@build/python/sources/bin/pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.10'
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/python/sources/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps ./build/python/clone/python/training
	@cd tests/python/training && PYTHONDONTWRITEBYTECODE=1 "$(abspath build/python/sources)/bin/python" -m unittest test_pipeline test_equivalence

clean:  ## Remove what was built (setup stays)
	rm -rf build
