# make train          set up .venv, train on the included images and validate
# make test           set up .venv and run the fast tests, those not marked slow (6 to 9 minutes on two EPYC cores)
# make test-all       run every test (about 50 minutes on two EPYC cores)
# make test-speed     compare the speed with plain TensorFlow, and fail if it is 25 % below the usual ratio (30 seconds)
# make findings       reproduce three findings of a paper in small runs, in logs/findings (36 minutes on two slow cores)
# make kernels        compile the C++ kernels, if there is a compiler; other targets do this when they first run
# make bench          compare with Keras and PyTorch in a separate environment; SHORT=1 measures less, in less time
# make lint           run ruff, and tools/wording.py on all texts
#
# PYTHON=python3.12 chooses the interpreter (3.10 to 3.13). VENV=DIR chooses the folder of the environment.
# GPU=1 installs TensorFlow for NVIDIA cards in .venv-gpu (docs/installing.md).

VENV ?= .venv$(if $(GPU),-gpu)
PEERS ?= .venv-bench
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	&& echo $$p && break; done)
RUN = $(VENV)/bin/python
WORKERS = -n auto --maxprocesses 4 --dist worksteal --durations 25

.PHONY: train findings test test-all test-speed bench kernels lint setup clean

train: $(VENV)/.kernels
	$(RUN) train.py --config quickstart

findings: $(VENV)/.kernels
	$(RUN) -m experiments.findings

test: $(VENV)/.test
	$(RUN) -m pytest -q -m "not slow" $(WORKERS)

test-all: $(VENV)/.test
	$(RUN) -m pytest -q $(WORKERS)

test-speed: $(VENV)/.kernels
	$(RUN) -m bench.plain --check

bench: $(VENV)/.kernels $(PEERS)/.peers
	$(RUN) -m bench.peers --torch-python $(PEERS)/bin/python $(if $(SHORT),--short)
	$(RUN) -m bench.peers --table

lint: $(VENV)/.test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) tools/wording.py

setup: $(VENV)/.kernels

kernels: $(VENV)/.runtime
	@$(RUN) -m cnn_harness.emulator.native.build

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.10 to 3.13 found; give one with make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "The venv module is missing; on Debian run apt install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.runtime: requirements.txt constraints.txt pyproject.toml setup.py | $(VENV)/bin/python
	@echo "Installing TensorFlow and other packages in $(VENV): some minutes, depending on the network"
	$(RUN) -m pip install --quiet --disable-pip-version-check $(if $(GPU),'.[gpu]',-r requirements.txt) -c constraints.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable . || \
	echo "gc-profile and gc-info are not installed; use python -m cnn_harness.tools.gc_profile and cnn_harness.tools.gc_info instead"
	@touch $@

# The kernels are compiled only if there is a C++ compiler.
$(VENV)/.kernels: $(VENV)/.runtime $(wildcard cnn_harness/emulator/native/*.cc cnn_harness/emulator/native/*.h) cnn_harness/emulator/native/library.py
	@$(RUN) -m cnn_harness.emulator.native.build
	@touch $@

$(VENV)/.test: $(VENV)/.kernels requirements-test.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-test.txt -c constraints.txt
	@touch $@

# Install timm without torchvision, because the benchmark needs no images from it.
$(PEERS)/.peers: requirements-bench.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-bench.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps timm==1.0.31
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) cnn_harness/emulator/native/built
