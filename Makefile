# Everything runs in .venv of this checkout; the first target that needs it sets it up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := $(wildcard iglu/kernels/cpu/*)

.PHONY: help demo test slow check-all lint docs matrix wheel pictures accuracy compilers arm windows sanitize clean

help:
	@echo "make demo       set up, then the tour: what IGLU is and how right and fast this library is"
	@echo "make test       set up, then the tests"
	@echo "make lint       ruff and mypy"
	@echo "make slow       the tests that take minutes: Ray, torchrun, runs killed many times, compilers"
	@echo "make check-all  lint, the tests, and all that takes minutes"
	@echo "make matrix     the tests under each setting of processor, threads, backend and compiler"
	@echo "make docs       build the documentation site into build/site"
	@echo "make wheel      build the wheel and check it in a fresh environment"
	@echo "make accuracy   print the worst error of every function, in units in the last place"
	@echo "make arm        the same for 64-bit ARM, cross-built and run under qemu"
	@echo "make windows    the same for 64-bit Windows, cross-built and run under wine"
	@echo "make compilers  build the loops by every compiler that is here, and run them under the sanitizers"
	@echo "make sanitize   the loops on fuzzed tensors under the address and undefined-behaviour sanitizers"
	@echo "make pictures   draw the pictures of the README and the docs"
	@echo "make clean      remove what was built"

# torch first, by itself and under the constraint: anything else may ask for a build of several gigabytes.
$(VENV)/torch.stamp: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@touch $@

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml setup.py $(SOURCES)
	$(PIP) --editable '.[lab]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/demo.stamp
	$(PIP) --editable '.[lab,hf,timm,lightning,onnx,dev]'
	@touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/iglu demo

# Unbuffered, so that a file shows its progress too, a line for every seventy tests.
test: $(VENV)/test.stamp
	PYTHONUNBUFFERED=1 $(BIN)/pytest --numprocesses 2 --dist worksteal -m 'not slow'

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A short case of each is among the tests of every day; that on Ray where it is installed.
slow: $(VENV)/test.stamp
	$(PIP) ray
	$(BIN)/pytest tests/test_sweep_ray.py
	$(BIN)/pytest -m slow --ignore tests/test_sweep_ray.py

# Triton is a gigabyte, so only here.
check-all: lint test slow docs matrix
	$(PIP) triton
	$(BIN)/pytest tests/test_triton.py
	tools/check_wheel

# The variable silences a notice of the theme about its own future.
docs: $(VENV)/test.stamp
	$(PIP) --editable '.[lab,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

matrix: $(VENV)/test.stamp
	tools/check_settings --numprocesses 2 --dist worksteal

wheel: $(VENV)/test.stamp
	tools/check_wheel

sanitize: $(VENV)/test.stamp
	tools/check_sanitized

pictures: $(VENV)/test.stamp
	$(BIN)/python tools/pictures.py docs/images

accuracy: $(VENV)/test.stamp
	$(BIN)/python tools/accuracy.py

arm:
	tools/check_arm

windows:
	tools/check_windows

compilers:
	tools/check_compilers

clean:
	rm -rf $(VENV) build dist *.egg-info iglu/*.so
