# Everything a person or CI calls. `make setup` needs root (or sudo) only when Debian packages are missing.
JOBS ?= $(shell nproc)
PYTHON ?= python3
VENV := build/venv

.PHONY: setup venv build demo test test-unit test-e2e test-kubernetes test-long test-asan test-tsan bench fuzz \
        reference manifests kubernetes-tools format format-check layers tidy clean

setup:
	tools/setup

venv: $(VENV)/.ready

$(VENV)/.ready: tests/e2e/requirements.txt | setup
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check -r tests/e2e/requirements.txt
	touch $@

# The release build: build/release/penstock, benchmarks and load programs.
build: setup
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)

# Four simulated engines, the gateway before them, a mixed load, and a table of where requests went.
demo: setup
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target penstock
	$(PYTHON) tools/demo

# All that must hold for a change to land: unit tests under ASan and UBSan, then the real binary.
test: layers test-asan test-e2e

test-unit: test-asan

test-asan: setup
	cmake --preset asan >/dev/null
	cmake --build --preset asan -j $(JOBS)
	ctest --test-dir build/asan --output-on-failure

test-tsan: setup
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan -j $(JOBS)
	TSAN_OPTIONS="suppressions=$(CURDIR)/tests/tsan.supp halt_on_error=1" ctest --test-dir build/tsan --output-on-failure

test-e2e: setup venv
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target penstock extproc_generator
	$(VENV)/bin/python -m pytest -q --timeout 120 tests/e2e tests/deploy \
	  tests/kubernetes

# Helm, etcd, the API server and its controllers into build/kubernetes/, from the Go module proxy: about twelve
# CPU-minutes, once.
kubernetes-tools:
	tools/kubernetes-tools

# The charts as Helm renders them, and what they make on a real API server; nothing is skipped.
test-kubernetes: setup venv kubernetes-tools
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target penstock
	PENSTOCK_NEED_KUBERNETES=1 $(VENV)/bin/python -m pytest -q --timeout 600 tests/kubernetes tests/deploy

# deploy/kubernetes/ from the charts.
manifests:
	tools/kubernetes-tools helm
	tools/render-manifests

# What takes long: h2spec, two real vLLM engines on CPU behind the gateway (6 GB to install), and ten minutes of
# each fuzz target.
test-long: setup venv build
	tools/h2spec
	tools/vllm-tests
	tools/fuzz 600

# A minute of each fuzz target, or `make fuzz SECONDS=600`.
SECONDS ?= 60
fuzz: setup
	tools/fuzz $(SECONDS)

bench: build
	bench/run decision
	bench/run gateway

# docs/reference/*.md from the program's own tables.
reference: build
	mkdir -p docs/reference
	for name in settings picker-configuration plugins metrics; do build/release/penstock reference $$name > docs/reference/$$name.md; done

layers:
	$(PYTHON) tools/check_layers.py

format:
	git ls-files '*.h' '*.cc' | xargs clang-format-19 -i

format-check:
	git ls-files '*.h' '*.cc' | xargs clang-format-19 --dry-run -Werror

tidy: setup
	cmake --preset debug >/dev/null
	git ls-files 'src/*.cc' | grep -v -e _test.cc -e _bench.cc -e _fuzz.cc | xargs -P $(JOBS) -n 4 clang-tidy-19 -p build/debug --quiet

clean:
	rm -rf build
