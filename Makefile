# Everything a person or CI calls. `make setup` is idempotent and needs root only when packages are missing.
JOBS ?= $(shell nproc)
PYTHON ?= python3

.PHONY: setup venv build demo test test-long test-asan test-tsan bench format format-check layers fuzz clean

setup:
	tools/setup

build: setup
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)

layers:
	$(PYTHON) tools/check_layers.py

format:
	git ls-files 'src/*.h' 'src/*.cc' 'bench/*.cc' 'bench/*.h' | xargs clang-format-19 -i

format-check:
	git ls-files 'src/*.h' 'src/*.cc' 'bench/*.cc' 'bench/*.h' | xargs clang-format-19 --dry-run -Werror

test: test-asan

test-asan: setup
	cmake --preset asan >/dev/null
	cmake --build --preset asan -j $(JOBS)
	ctest --test-dir build/asan --output-on-failure

test-tsan: setup
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan -j $(JOBS)
	TSAN_OPTIONS="suppressions=$(CURDIR)/tests/tsan.supp halt_on_error=1" ctest --test-dir build/tsan --output-on-failure

clean:
	rm -rf build
