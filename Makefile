# `make test` needs Python 3.11 with pip, nothing else; `make demo` and `make unit` run on 3.9 to
# 3.13: make unit PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3.11
NEWEST ?= 2.21.0
TENSORFLOW ?= $(if $(filter python3.12 python3.13,$(notdir $(PYTHON))),$(NEWEST),2.15.1)
VENV ?= .venv
# Processes that run tests at once.
JOBS ?= 2
# How often a test that fails is run again; each failure is printed all the same.
RERUNS ?= 0

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(notdir $(PYTHON))-$(TENSORFLOW)
TOOLS := $(VENV)-tools
SOURCES := estimator_det inputs model_fn exporters benchmarks tests docs setup.py noxfile.py
# What another TensorFlow breaks first: golden numbers (whole models contain matching and heads),
# an input pipeline, a resumed run. `make versions` trains, evaluates, exports and serves.
SMOKE := tests/compat tests/boxes/nms tests/losses tests/inputs/test_pipeline.py \
  tests/model_fn/runs/test_runner.py tests/benchmarks/test_conformance.py
# Steps that `make versions` trains before checkpoints change hands.
STEPS ?= 20

# Tests that need packages of extras. `make test` runs the tests of `serve`.
EXTRAS_TESTS := tests/exporters/formats/test_export.py::test_converters_that_are_installed \
  tests/exporters/formats/test_formats.py tests/exporters/formats/test_onnx.py \
  tests/exporters/test_video.py tests/exporters/test_detect_shards.py \
  tests/inputs/conversion/test_beam_pipeline.py tests/programs/test_tracking.py
# The last releases that fit TensorFlow 2.15, whose TensorBoard imports the pkg_resources of setuptools 81.
TFJS := tensorflowjs==4.22.0 tensorflow-decision-forests==1.8.1 jax==0.4.34 flax==0.10.4 \
  setuptools==81.0.0

# protoc writes for protobuf 4, which only the first of the supported TensorFlows bring.
comma := ,
EXTRAS := test$(if $(filter 2.15.%,$(TENSORFLOW)),$(comma)protos)

# The lock has one TensorFlow for each Python: pyproject.toml, [tool.uv].
LOCKED := $(filter $(notdir $(PYTHON))/$(TENSORFLOW),\
  python3.9/2.15.1 python3.10/2.15.1 python3.11/2.15.1 python3.12/2.21.0 python3.13/2.21.0)
# Modules are compiled when they are imported first: pip takes a third of its time for all of them.
INSTALL = $(BIN)/python -m pip install --quiet --no-compile

# $(call layer,FOLDER): an environment that has the packages of $(VENV) as well, so that only others
# are installed.
SITE = $$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
layer = $(PYTHON) -m venv --clear --without-pip $(1) && \
  echo "import site; site.addsitedir('$(call SITE,$(VENV))')" >"$(call SITE,$(1))/layer.pth"

# TensorFlow's notes on missing accelerators hide what matters.
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Tests start some forty processes, each of which would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv lint types contracts unit dist test-dist test-extras audit release smoke smoke-newest versions test test-all test-newest test-matrix \
  demo docs protos lock format clean

help:
	@echo "make test       lint, types, import contracts and tests: about 8 minutes on two cores"
	@echo "make test-newest    golden numbers, a run and an export on TensorFlow $(NEWEST), and that it and"
	@echo "                $(TENSORFLOW) resume from each other's checkpoints: about 4 minutes"
	@echo "make test-all   all tests, those marked exhaustive included, and a longer comparison of the"
	@echo "                two TensorFlows: about an hour; CONTRIBUTING.md says when to run it"
	@echo "make test-matrix    all tests on four TensorFlows and every Python that each runs on: hours"
	@echo "make demo       train, evaluate, export and run a small detector; pictures in demo_output"
	@echo "make docs       these pages, an API reference and all fields of configurations as a site in site/"
	@echo "make venv       the environment in $(VENV) (other interpreter: make PYTHON=python3.10 …)"
	@echo "make lint | types | contracts | unit    the parts of make test"
	@echo "make lock       requirements*_lock.txt, which environments are installed from, of the newest versions"
	@echo "make dist       wheel and source distribution in dist/, checked; make test-dist runs the demo from each"
	@echo "make test-extras    tests of ONNX, OpenVINO, TensorFlow.js, videos, Beam and MLflow: about 3 minutes"
	@echo "make audit      known vulnerabilities of the packages in requirements_lock.txt"
	@echo "make release REPOSITORY=https://…    make test, make test-dist, and what is left to do by hand"
	@echo "make format     put sources into the house format"
	@echo "make protos     regenerate estimator_det/protos/*_pb2.py"
	@echo "make clean      remove what was built, the environment included"

venv: $(STAMP)

# Done again only when what is installed changes; rebuilt for another Python or TensorFlow. Some
# systems ship Python without the parts that put pip into an environment; the pip they have can do
# that too.
$(STAMP): setup.py pyproject.toml requirements_test_lock.txt
	@[ ! -h $(VENV) ] || { echo "$(VENV) is a link, whose target would be emptied: make VENV=FOLDER"; exit 1; }
	@echo "== environment in $(VENV) ($(PYTHON), TensorFlow $(TENSORFLOW)): a few minutes, once"
	$(PYTHON) -m venv $(if $(wildcard $(STAMP)),,--clear) $(VENV) || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(if $(LOCKED),$(INSTALL) --require-hashes --requirement requirements_test_lock.txt)
	$(INSTALL) $(if $(LOCKED),--no-deps --no-build-isolation) --editable '.[$(EXTRAS)]' 'tensorflow==$(TENSORFLOW)'
	@touch $@

# The newest versions that fit, for every Python at once; each Python can install them on x86-64 and on
# ARM, or the target fails. uv reads no settings of pip, so folders of wheels that this machine may have
# are left out.
UV = UV_CUSTOM_COMPILE_COMMAND='make lock' $(VENV)-lock/bin/uv pip compile --quiet --upgrade --generate-hashes
COMPILE = $(UV) pyproject.toml --group lock --universal --python-version 3.9
TRY = $(VENV)-lock/bin/uv pip install --no-config --quiet --dry-run --python $(VENV)-lock/bin/python \
  --require-hashes --only-binary :all:
lock:
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv
	$(COMPILE) --output-file requirements_lock.txt
	$(COMPILE) --constraint requirements_lock.txt --extra test --extra protos --output-file requirements_test_lock.txt
	$(COMPILE) --extra test --extra all --output-file requirements_extras_lock.txt
	$(UV) --group tools --universal --python-version 3.9 --constraint requirements_test_lock.txt \
	  --output-file requirements_tools_lock.txt
	printf '%s\n' $(TFJS) | $(UV) - --python-version 3.11 --output-file requirements_tfjs_lock.txt
	for python in 3.9 3.10 3.11 3.12 3.13; do for machine in x86_64 aarch64; do \
	  $(TRY) --python-version $$python --python-platform $$machine-manylinux_2_28 --requirement requirements_test_lock.txt \
	  || exit 1; done; done
	rm -rf $(VENV)-lock

# What docs, audit and dist run.
$(TOOLS)/.installed: $(STAMP) requirements_tools_lock.txt
	$(call layer,$(TOOLS))
	$(TOOLS)/bin/python -m pip install --quiet --no-compile --require-hashes --requirement requirements_tools_lock.txt
	@touch $@

# Wheel and source distribution. REPOSITORY=https://… makes the links of the long description absolute.
dist: $(TOOLS)/.installed
	rm -rf dist build
	$(TOOLS)/bin/python -m build --quiet --no-isolation --outdir dist
	$(TOOLS)/bin/twine check --strict dist/*

# Each of them in an empty environment, and the demo from it.
test-dist: dist
	$(PYTHON) -m venv --clear $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --require-hashes --requirement requirements_lock.txt
	for archive in dist/*; do \
	  $(VENV)-dist/bin/python -m pip install --quiet --no-deps --no-build-isolation --force-reinstall $$archive && \
	  (cd $(VENV)-dist && bin/estimator-det demo --size tiny --num_train_steps 20 --quiet) || exit 1; \
	done
	rm -rf $(VENV)-dist

# TensorFlow.js in an environment of its own. A test that is skipped fails.
test-extras: $(STAMP)
	$(call layer,$(VENV)-extras)
	$(VENV)-extras/bin/python -m pip install --quiet --no-compile --require-hashes --requirement requirements_extras_lock.txt
	$(call layer,$(VENV)-tfjs)
	$(VENV)-tfjs/bin/python -m pip install --quiet --no-compile --require-hashes --requirement requirements_tfjs_lock.txt
	NO_SKIPS=1 ESTIMATOR_DET_CONVERTERS=$(abspath $(VENV)-tfjs) $(subst $(BIN),$(VENV)-extras/bin,$(PYTEST)) $(EXTRAS_TESTS)
	rm -rf $(VENV)-extras $(VENV)-tfjs

audit: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m tests.audit

# What keeps the version from a release is said before the tests, not half an hour later.
release: $(STAMP)
	$(BIN)/python -m tests.release --check
	$(MAKE) test test-dist
	$(BIN)/python -m tests.release

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/python -m tests.prose

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

# A file's tests stay in one process, for they share what is slow to make.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --reruns $(RERUNS)

unit: $(STAMP)
	$(PYTEST) -m "not exhaustive"

test: lint types contracts unit

smoke: $(STAMP)
	$(PYTEST) -m "not exhaustive" $(SMOKE)

# Whether two TensorFlows agree; the environment of the newest must be there.
versions: $(STAMP)
	$(BIN)/python -m benchmarks.versions --steps $(STEPS) \
	  --python $(BIN)/python --python $(VENV)-newest/bin/python

smoke-newest:
	$(MAKE) smoke VENV=$(VENV)-newest TENSORFLOW=$(NEWEST)

test-newest: $(STAMP) smoke-newest
	$(MAKE) versions STEPS=5

test-all: lint types contracts
	$(PYTEST)
	$(MAKE) venv VENV=$(VENV)-newest TENSORFLOW=$(NEWEST)
	$(MAKE) versions

# Interpreters that are missing are reported, not left out.
test-matrix: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' 'tensorflow==$(TENSORFLOW)'
	$(BIN)/python -m nox

demo: $(STAMP)
	$(BIN)/estimator-det demo --output_dir demo_output --num_train_steps 800

# The variable hides an advertisement of the theme. `strict` turns warnings into errors.
docs: $(TOOLS)/.installed
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/python -m mkdocs build --quiet

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

protos: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. estimator_det/protos/*.proto

clean:
	rm -rf $(VENV) $(foreach each,newest dist lock extras tfjs tools,$(VENV)-$(each)) .nox build dist site *.egg-info demo_output .mypy_cache .ruff_cache .pytest_cache \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
