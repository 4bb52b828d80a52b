# SPDX-License-Identifier: Apache-2.0
# The commands of the project; CMakePresets.json has the builds they use.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo test lint format build package kernels wheels ports docs asan tsan threads test-arm test-kernels compilers test-compiler abi fuzz soak mutation mutation-gpu vllm sglang clean help dependencies

JOBS ?= $(shell nproc)
python := .venv/bin/python

demo: dependencies build/release/build.ninja ## Search the King James Bible by meaning
	@cmake --build --preset release --target sentence_search
	@scripts/demo.sh $(ARGS)

test: build lint ## Build, lint and run every test
	@ctest --preset release --parallel $(JOBS)

test-kernels: build ## Compile GPU kernels of every kind, without a GPU, and check that none spills
	@ctest --preset kernels --parallel $(JOBS)

lint: build/lint/build.ninja ## Check format, clang-tidy, Python and the project's rules
	@cmake --build build/lint --target build.ninja -- --quiet # configures again if CMakeLists.txt changed
	@scripts/python-environment.sh lint
	@$(python) scripts/lint.py --jobs $(JOBS)

format: dependencies ## Format every C++ and Python file
	@scripts/python-environment.sh lint
	@$(python) scripts/lint.py --format

build: build/release/build.ninja ## Install missing packages and build build/release
	@cmake --build --preset release

package: build ## Make .deb packages and a .tar.gz, build/release/packages
	@cpack --config build/release/CPackConfig.cmake -B build/release/packages

kernels: build ## Compile every combination of common options, or CALLS='--config FILE', for DEVICES=h100 into build/kernels/*.whl
	@scripts/kernels-wheel.sh $(or $(DEVICES),h100) $(if $(CALLS),-- $(CALLS))

wheels: dependencies ## Build and test the published wheels, build/wheels/dist; ARCH=x86_64 or aarch64 for one machine
	@scripts/wheels.sh $(ARCH)

ports: dependencies ## Make the source archive with ports for vcpkg and Conan, build/ports, and build them
	@scripts/python-environment.sh ports
	@$(python) scripts/ports.py $(URL)

docs: dependencies ## Build the documentation site, build/docs
	@scripts/docs/build.sh

asan: build/asan/build.ninja ## Run every test under AddressSanitizer and UndefinedBehaviorSanitizer
	@cmake --build --preset asan
	@ctest --preset asan --parallel $(JOBS)

tsan: build/tsan/build.ninja ## Run every test under ThreadSanitizer
	@cmake --build --preset tsan
	@ctest --preset tsan --parallel $(JOBS)

threads: build/tsan/build.ninja ## Run the multi-threaded tests under ThreadSanitizer
	@cmake --build --preset tsan
	@ctest --preset tsan-threads --parallel $(JOBS)

test-arm: ## Cross-compile for 64-bit ARM and test the CPU engine on NEON and on SVE under qemu
	@scripts/install-dependencies.sh g++-aarch64-linux-gnu qemu-user-static libhwy-dev:arm64 libtbb-dev:arm64 \
	  libfmt-dev:arm64 libmd-dev:arm64 libopenblas-dev:arm64 libgtest-dev:arm64 libgmock-dev:arm64
	@cmake --preset arm --log-level=NOTICE
	@cmake --build --preset arm
	@ctest --preset arm-neon --parallel $(JOBS)
	@ctest --preset arm-sve --parallel $(JOBS)

compilers: ## Compile headers and examples without warnings by every g++ from 12 and clang++ from 14 that apt has
	@scripts/install-dependencies.sh $$(apt-cache --names-only search '^(g\+\+-1[2-9]|clang-(1[4-9]|2[0-9]))$$' | cut -d' ' -f1)
	@python3 tests/package/compile_cleanly.py .

test-compiler: ## Build and test with COMPILER=g++-14, clang++-19 or another that apt has
	@scripts/test-compiler.sh "$(COMPILER)" $(JOBS)

abi: ## Compare the library's ABI with the last release's, or with that of BASE=REVISION
	@scripts/abi.sh $(BASE)

fuzz: ## Fuzz the file readers and the C ABI, SECONDS=60 each
	@scripts/install-dependencies.sh clang-14 libclang-rt-14-dev
	@cmake --preset fuzz --log-level=NOTICE
	@cmake --build --preset fuzz
	@scripts/fuzz.sh $(or $(SECONDS),60)

soak: build/release/build.ninja ## Test random configurations for SECONDS=600
	@cmake --build --preset release --target random_tests
	@scripts/soak.sh $(or $(SECONDS),600)

mutation: dependencies ## Check that the tests detect deliberate bugs
	@python3 scripts/mutation/run.py

mutation-gpu: dependencies ## The same for the sm90 kernels, on a machine with a Hopper GPU
	@python3 scripts/mutation/run_gpu.py

vllm: dependencies ## Serve tiny models by VLLM=0.32.0 on Strobe and on its own CPU backend, and compare
	@scripts/install-wheel.sh build/python-environment
	@scripts/serving.sh vllm $(or $(VLLM),0.32.0) -rP

sglang: dependencies ## Serve tiny models by SGLANG=0.5.23 on Strobe on the CPU, and compare with transformers
	@scripts/install-wheel.sh build/python-environment
	@scripts/serving.sh sglang $(or $(SGLANG),0.5.23) -rP

clean: ## Remove build/ and .venv/
	@rm -rf build .venv

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1mmake %-12s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dependencies:
	@scripts/install-dependencies.sh

build/%/build.ninja: | dependencies
	@cmake --preset $* --log-level=NOTICE
