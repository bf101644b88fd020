# Every target sets up what it needs inside this folder; nothing is installed outside .venv.
#   make run     the app on this machine, no cluster needed
#   make test    the quick tests: those that start no other process
#   make quick   those of them that import what you changed
# Variables: PYTHON=python3.12 picks another interpreter; PIP_ARGS adds options to every pip call, for example an index.
# TORCH_ARGS are those of torch: on Linux without NVIDIA's driver, PyTorch's index of CPU builds; TORCH_ARGS= takes the
# build of the usual index.

PYTHON ?= python3
PIP_ARGS ?=
CPU_TORCH := --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu
HAS_CUDA := $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /dev/dxg)
# Whoever names an index of packages, here or in pip's own variables and files, chooses torch's build by it.
HAS_INDEX = $(PIP_ARGS)$(PIP_INDEX_URL)$(PIP_EXTRA_INDEX_URL)$(shell $(BIN)/python -m pip config list 2>/dev/null | grep -i index)
TORCH_ARGS ?= $(if $(filter Linux,$(shell uname -s)),$(if $(HAS_CUDA)$(HAS_INDEX),,$(CPU_TORCH)))
# Workers of the tests. Those that compute get one a core. Quick ones wait a third of their time and those of processes
# most of it, so they get two. Each takes 1 GB and imports all tests, so never more than eight.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
at_most_eight = $(shell echo $$(( $(1) < 8 ? $(1) : 8 )))
JOBS ?= $(call at_most_eight,$(CORES))
WAITING_JOBS ?= $(call at_most_eight,2*$(CORES))
# Folders without a quick test, which each worker would import for nothing.
OTHER_TIERS := tests/cluster tests/gpu tests/fakes
VENV := .venv
BIN := $(VENV)/bin
# In random order, whose seed is printed; --randomly-seed=N repeats it. Random numbers keep their own seeds.
PYTEST := $(BIN)/python -m pytest --dist loadgroup --randomly-dont-reset-seed
SHELL := bash
.SHELLFLAGS := -o pipefail -c
# One line for each download: silence for a minute reads like a hang, and everything is too much.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile $(PIP_ARGS)
# Where this is set, every process would compile its libraries anew: seconds for torch alone.
unexport PYTHONDONTWRITEBYTECODE
SHOWN := awk '/Downloading|Installing collected/ {print substr($$0, 1, 110) > "/dev/stderr"}'
ARGS ?=
# Python with torch for CUDA, on a machine whose packages cannot be installed by pip; then no .venv is made.
GPU_PYTHON ?= $(BIN)/python
# The image that `make sbom` describes.
IMAGE ?= l2rtui-node
GPU_NEEDS := $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/dev)

.DEFAULT_GOAL := help
.PHONY: help setup run quick test test-process test-slow test-gpu test-simulated-gpu test-cluster test-smoke test-packages nightly \
  nightly-slow nightly-simulated-gpu nightly-examples nightly-cluster nightly-programs coverage check check-style check-types check-contracts check-house format bench bench-gpu mutants screenshots curves docs dist release sbom wheel lock rbac clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "l2rtui needs Python 3.11 or later; set PYTHON=python3.12 or the like")'
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/runtime: requirements/runtime.txt requirements/torch.txt pyproject.toml | $(VENV)/made
	@echo "installing the app and the runtime" >&2
	@$(PIP) -r requirements/runtime.txt | $(SHOWN)
	@case "$(TORCH_ARGS)$(HAS_CUDA)" in \
	  *whl/cpu*) echo "installing torch for the CPU (no NVIDIA driver here): 0.2 GB to fetch, 0.7 GB on disk" >&2;; \
	  /*) echo "installing torch for CUDA: about 3 GB to fetch, 7 GB on disk" >&2;; \
	  *) echo "installing torch: 0.2 GB for the CPU, about 3 GB for CUDA, as the index has it" >&2;; \
	esac
	@if [ -t 2 ]; then $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_ARGS) $(TORCH_ARGS) \
	    -r requirements/torch.txt >&2; \
	  else $(PIP) $(TORCH_ARGS) -r requirements/torch.txt | $(SHOWN); fi
	@$(PIP) --quiet --no-deps -e .
	@touch $@

$(VENV)/dev: requirements/dev.txt $(VENV)/runtime
	@echo "installing the test tools" >&2
	@$(PIP) -r requirements/dev.txt | $(SHOWN)
	@touch $@

setup: $(VENV)/runtime  ## make .venv and install the app and the runtime into it

run: $(VENV)/runtime  ## open the app on this machine
	@$(BIN)/l2rtui --backend local $(ARGS)

# Where nothing is changed, those of the last commit.
quick: $(VENV)/dev  ## run the tests that import what you changed, for at most 15 s
	@files=$$($(BIN)/python -m tests.affected) && $(BIN)/python -m pytest -q -p no:randomly --most-seconds 15 \
	  -m "not process and not slow and not cluster and not gpu and not packages" $(ARGS) $$files

test: $(VENV)/dev  ## run the tests that stay in one process: minutes
	@$(PYTEST) -n $(WAITING_JOBS) -m "not process and not slow and not cluster and not gpu and not packages" $(addprefix --ignore=,$(OTHER_TIERS)) $(ARGS)

test-process: $(VENV)/dev  ## run the tests that start processes
	@$(PYTEST) -n $(WAITING_JOBS) -m "process and not slow and not cluster and not gpu and not packages" $(ARGS)

test-slow: $(VENV)/dev  ## run the tests that take long: learning, faults, building the one file
	@$(PYTEST) -n $(JOBS) -m "slow and not cluster and not gpu and not packages" $(ARGS)

# In an environment of its own that sees .venv: what users add to it must not decide what the other tests find.
$(VENV)/packages/made: requirements/packages.txt $(VENV)/dev
	@echo "installing packages that users may add" >&2
	@$(BIN)/python -m venv $(VENV)/packages
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$($(VENV)/packages/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
	@$(VENV)/packages/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-compile $(PIP_ARGS) \
	  -r requirements/packages.txt | $(SHOWN)
	@touch $@

test-packages: $(VENV)/packages/made  ## run the tests of trackers, datasets and environments that users may add
	@L2R_HAS_PACKAGES=1 $(VENV)/packages/bin/python -m pytest -p no:randomly -m packages $(ARGS)

test-gpu: $(GPU_NEEDS)  ## run the tests that need a graphics card
	@$(GPU_PYTHON) -m pytest tests/gpu -m gpu $(ARGS)

test-simulated-gpu: $(VENV)/dev  ## run those tests on a CUDA device that is simulated on the CPU (needs g++)
	@$(PYTEST) -n $(JOBS) -p tests.fakes.cuda.plugin tests/gpu tests/fakes/cuda --ignore=tests/gpu/test_elastic.py -m gpu $(ARGS)

test-cluster: $(VENV)/dev  ## run the tests that need a Kubernetes behind $KUBECONFIG
	@$(BIN)/python -m pytest -p no:randomly -m cluster $(ARGS)

test-smoke: $(VENV)/dev  ## run forty of them: launch, scale, kill, destroy, watch, logs, exec, leases
	@$(BIN)/python -m pytest -p no:randomly -m "cluster and smoke" $(ARGS)

# What is too long for each change: .ci/run takes a fifth of the tests, chosen by the commit.
nightly: $(VENV)/dev  ## run everything that is long: slow and cluster tests, new examples, fuzz, keys, curves (hours)
	@$(MAKE) --no-print-directory --keep-going nightly-slow nightly-simulated-gpu nightly-examples nightly-cluster nightly-programs test-packages

nightly-slow: $(VENV)/dev
	@$(MAKE) --no-print-directory test-slow

nightly-simulated-gpu: $(VENV)/dev
	@$(MAKE) --no-print-directory test-simulated-gpu

nightly-examples: $(VENV)/dev
	@$(PYTEST) -n $(JOBS) --hypothesis-profile=nightly -m "hypothesis and not process and not cluster and not gpu and not packages" --timeout=1800
	@$(PYTEST) -n $(JOBS) --hypothesis-profile=nightly -m slow tests/l2rtui/ui/test_render_oracle.py tests/l2rtui/ui/test_true_statements.py

nightly-cluster: $(VENV)/dev
	@if [ -n "$$KUBECONFIG" ]; then $(MAKE) --no-print-directory test-cluster; \
	else echo "NOT RUN: the cluster tests, for want of KUBECONFIG" >&2; fi

nightly-programs: $(VENV)/dev
	@$(BIN)/python -m tests.fuzz
	@$(BIN)/python -m tests.bench monkey
	@$(BIN)/python -m tests.bench kills
	@$(BIN)/python -m tests.bench curves --out build/nightly-curves

coverage: $(VENV)/dev  ## fail unless the tests reach every branch of the domain
	@$(PYTEST) -n $(JOBS) tests/l2rtui/domain tests/l2rtui/services/test_spec_gpus.py \
	  tests/l2rtui/backends/kubernetes/test_counted_gpus.py --cov=l2rtui.domain --cov-branch --cov-report=term --cov-fail-under=100 $(ARGS)

check: $(VENV)/dev  ## format, lint, types, contracts, house rules
	@$(MAKE) --no-print-directory --jobs=2 --keep-going check-types check-style check-contracts check-house

check-style: $(VENV)/dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

check-types: $(VENV)/dev
	@$(BIN)/mypy

check-contracts: $(VENV)/dev
	@$(BIN)/lint-imports

check-house: $(VENV)/dev
	@$(BIN)/python -m tests.house

format: $(VENV)/dev  ## rewrite the sources in the house style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/dev  ## list the measurements of tests/bench; ARGS="NAME" runs one, ARGS="NAME --tiny" a short one
	@$(BIN)/python -m tests.bench $(ARGS)

bench-gpu: $(GPU_NEEDS)  ## print what a GPU gives, in less than ten minutes
	@$(GPU_PYTHON) -m tests.bench.gpu $(ARGS)

mutants: $(VENV)/dev  ## change operators and constants of modules; print the changes that no test notices (ARGS="--only ledger")
	@$(BIN)/python -m tests.bench mutants $(ARGS)

screenshots: $(VENV)/dev  ## drive the app and write screenshots/ (ARGS="cluster recording" needs no process)
	@$(BIN)/python -m tests.shots $(ARGS)

curves: $(VENV)/dev  ## train the racing examples with five seeds each and draw how they learn (an hour)
	@$(BIN)/python -m tests.bench.curves $(ARGS)
	@$(BIN)/python -m tests.bench.curves --spec manifests/racing-view.yaml --out docs/learning-view $(ARGS)

# In an environment of its own: MkDocs and the tests ask for different versions of the same packages. MkDocs renders
# without network; --strict fails on a broken link or anchor, and on a page that is not in the navigation of mkdocs.yml
# (with --quiet it would not: MkDocs counts only the warnings that it shows). tests.documents also fails on a command
# that the program does not know, and on a page that no other links to.
docs: build/docs-tools/made $(VENV)/runtime  ## check the pages and build the documentation site into build/docs
	@$(BIN)/python -m tests.documents $(CURDIR)
	@NO_MKDOCS_2_WARNING=1 build/docs-tools/bin/mkdocs build --strict
	@echo "read it: $(PYTHON) -m http.server --bind 127.0.0.1 --directory build/docs" >&2

build/docs-tools/made: requirements/docs.txt
	@$(PYTHON) -m venv build/docs-tools
	@build/docs-tools/bin/python -m pip install --disable-pip-version-check --quiet --no-compile $(PIP_ARGS) -r requirements/docs.txt
	@touch $@

# In an environment of its own: what goes into the file is what is pinned for it, and nothing of the tests.
dist:  ## build dist/l2rtui: one file that runs without root, pip and network (Linux)
	@$(PYTHON) -m venv build/dist
	@build/dist/bin/python -m pip install --disable-pip-version-check --quiet --no-compile $(PIP_ARGS) -r requirements/dist.txt
	@build/dist/bin/python docker/onefile/build.py --requirements requirements/serve.txt --out dist/l2rtui
	@build/dist/bin/python docker/sbom.py --requirements requirements/serve.txt --out dist/l2rtui.cdx.json

# Images need a Docker Engine; without one the rest is built and checked, and a line says what is not.
release: wheel dist  ## build wheel, source archive, one file, images and SBOMs, and check them in empty environments
	@$(BIN)/python docker/sbom.py --requirements requirements/app.txt --out dist/l2rtui-wheel.cdx.json
	@version=$$($(BIN)/python -c 'import l2rtui; print(l2rtui.__version__)'); \
	  if [ "$$(git describe --tags --exact-match 2>/dev/null)" != "v$$version" ]; then \
	    echo "a trial: no tag v$$version is at this commit" >&2; fi; \
	  if [ -n "$$(git status --porcelain)" ]; then echo "a trial: the tree has changes that no commit has" >&2; fi
	@if docker info >/dev/null 2>&1; then $(BIN)/l2rtui image build $(IMAGE) --tag "$$(git rev-parse --short=12 HEAD)" && \
	    $(BIN)/python docker/sbom.py --image "$(IMAGE):$$(git rev-parse --short=12 HEAD)" --out dist/$(notdir $(IMAGE)).cdx.json; \
	  else echo "NOT BUILT: the images and their SBOM, for want of a Docker Engine" >&2; fi
	@L2R_RELEASE=$(CURDIR)/dist $(BIN)/python -m pytest -q -p no:randomly tests/e2e/test_installed.py tests/e2e/test_onefile.py
	@cd dist && ls | grep -v SHA256SUMS | xargs sha256sum > SHA256SUMS && cat SHA256SUMS

sbom: $(VENV)/dev  ## write what is in an image as CycloneDX: make sbom IMAGE=l2rtui-node
	@$(BIN)/python docker/sbom.py --image $(IMAGE) --out dist/$(notdir $(subst :,-,$(IMAGE))).cdx.json

wheel: $(VENV)/dev  ## build the wheel and the source archive into dist/
	@rm -f dist/l2rtui-*.whl dist/l2rtui-*.tar.gz  # of other versions
	@$(BIN)/python -m build --no-isolation --outdir dist .

# With the hashes of every file of a version, for any system and Python from 3.11 on; uv resolves for all of them at once.
# torch stands apart without: which build of it fits (CUDA, CPU) is the choice of the index, and pip has to take it.
# Its libraries for CUDA come with it, by exact versions in its own metadata.
# Extras stay written: where only another package asks for name[extra], pip of before 23.3 takes its newest version
# instead of the pinned one, and then refuses it for want of a hash.
lock:  ## renew requirements/*.txt from *.in (needs uv)
	@for set in app serve dist image runtime dev packages docs; do \
	  { echo "# Exact versions that are tested together; made from $$set.in by \`make lock\`."; \
	    uv pip compile --quiet --universal --no-strip-extras --python-version 3.11 --generate-hashes --no-header --no-annotate requirements/$$set.in \
	    | awk '/^[a-z]/ {skip = /^(torch|triton|cuda-|nvidia-[^m])/} !skip'; } > requirements/$$set.new && \
	  mv requirements/$$set.new requirements/$$set.txt || exit 1; done
	@sed -n '/^torch==/p' requirements/image.in > requirements/torch.txt

rbac: $(VENV)/runtime  ## write manifests/rbac.yaml from the table of rights
	@$(BIN)/python -m l2rtui.backends.kubernetes.manifests.rbac > manifests/rbac.new && mv manifests/rbac.new manifests/rbac.yaml

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
