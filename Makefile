# make train   set up .venv and run the main job on the embedded photographs
# make test    set up .venv and run the tests, of the long ones every sixteenth, 6 minutes on two cores of an EPYC
# make test-rotating  20 minutes of the tests that make test leaves out, others after each commit
# make test-slow      all tests, an hour and a half on two slow cores
# make test-speed     a ResNet-8 beside the same in plain TensorFlow: fails where a quarter of the usual ratio is lost; half a minute
# make findings  the paper's three findings in miniature: table and picture in logs/findings, 36 minutes on two slow cores
# make kernels compile the kernels in C++, if there is a compiler; the other targets do so at their first call
# make bench   this harness beside Keras and PyTorch, in an environment of its own; SHORT=1 for some rows in three rounds
# make lint    ruff, and tools/wording.py on all that people read
#
# PYTHON=python3.12 chooses the interpreter (3.10 to 3.13); VENV=dir another place for the environment.
# GPU=1 takes TensorFlow for NVIDIA cards, in .venv-gpu (docs/installing.md).

VENV ?= .venv$(if $(GPU),-gpu)
PEERS ?= .venv-bench
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	&& echo $$p && break; done)
RUN = $(VENV)/bin/python
WORKERS = -n auto --maxprocesses 4 --dist worksteal --durations 25

.PHONY: train findings test test-rotating test-slow test-speed bench kernels lint setup clean

train: $(VENV)/.kernels
	$(RUN) train.py --config quickstart

findings: $(VENV)/.kernels
	$(RUN) tools/findings.py

test: $(VENV)/.test
	$(RUN) -m pytest -q $(WORKERS)

test-rotating: $(VENV)/.test
	$(RUN) -m pytest -q --slow-for 1200 $(WORKERS)

test-slow: $(VENV)/.test
	$(RUN) -m pytest -q --slow $(WORKERS)

test-speed: $(VENV)/.kernels
	$(RUN) benchmarks/plain.py --check

bench: $(VENV)/.kernels $(PEERS)/.peers
	$(RUN) benchmarks/peers.py --torch-python $(PEERS)/bin/python $(if $(SHORT),--short)
	$(RUN) benchmarks/peers.py --table

lint: $(VENV)/.test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) tools/wording.py

setup: $(VENV)/.kernels

kernels: $(VENV)/.runtime
	@$(RUN) -m emulator.native.build

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.10 to 3.13 found; name one: make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "The venv module is missing; on Debian: apt install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.runtime: requirements.txt constraints.txt pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check $(if $(GPU),'.[gpu]',-r requirements.txt) -c constraints.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable . || \
	echo "The commands gc-profile and gc-info are not installed; python -m harness.commands.gc_profile and harness.commands.gc_info are the same"
	@touch $@

# in C++, where a compiler is
$(VENV)/.kernels: $(VENV)/.runtime $(wildcard emulator/native/*.cc emulator/native/*.h) emulator/native/library.py
	@$(RUN) -m emulator.native.build
	@touch $@

$(VENV)/.test: $(VENV)/.kernels requirements-test.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-test.txt -c constraints.txt
	@touch $@

# timm without torchvision, which it needs for pictures only
$(PEERS)/.peers: requirements-bench.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-bench.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps timm==1.0.31
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) emulator/native/built
