# `make demo` and `make test` need Python 3.11+ and pip, and nothing else: they create the virtual
# environment themselves. Every target can be run again at any time.
PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
RELEASE ?= .venv-release
BIN := $(VENV)/bin
# two workers with one BLAS thread each: more threads than cores only wait for each other; one worker runs
# all tests of a file, which share what is dear (but the slow tests of a file take hours)
TEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

.PHONY: help demo test test-slow coverage test-oldest torch test-torch check style types docs bench guard bench-accuracy rivals audit audit-long audit-diffprivlib mutants trace reproduce tables gallery report-picture lock clean front-door release-check

help:
	@echo "make demo         a CSV of patients to a private model, its report and an audit; results in demo/"
	@echo "make test         run the tests"
	@echo "make test-slow    run the long statistical tests too"
	@echo "make coverage     run the tests and show which lines they reach; pages in coverage-report/"
	@echo "make test-oldest  run the tests with the oldest supported scikit-learn"
	@echo "make check        style, strict types, documentation"
	@echo "make docs         build the documentation as a site in docs/_build/html"
	@echo "make front-door   one hostile row in every container to every callable: the full product, an hour"
	@echo "make test-torch   run the tests of the torch pass, on the CPU (installs torch)"
	@echo "make bench        measure speed, as ratios in one run"
	@echo "make guard        a few of these ratios, against those in benchmarks/results/guard.csv"
	@echo "make bench-accuracy  measure accuracy against the published algorithms"
	@echo "make rivals       a DP-SGD network, DP-EBM, private trees and diffprivlib on the same splits; JOBS=N"
	@echo "make audit        attack every mechanism and estimator and its broken twin; results in audit-report/"
	@echo "make audit-long   the same with a thousand fits of each estimator, and weaker faults: hours"
	@echo "make audit-diffprivlib  the same attacks on diffprivlib, in an environment of its own"
	@echo "make trace        how many files and functions one fit enters; FIT=ridge lists them"
	@echo "make mutants      break the library in the ways of tools/mutants.toml and see that tests notice:"
	@echo "                  half an hour; MUTANTS='ID ...' for some of them, MUTANTS=--changed for what changed"
	@echo "make tables       write the measured tables of the documentation from benchmarks/results"
	@echo "make gallery      draw the pictures of the gallery again"
	@echo "make report-picture  take the picture of the report in the README, with Chromium"
	@echo "make release-check  build the packages in dist/, check them, and run the demonstration from the"
	@echo "                  installed wheel in a fresh environment"
	@echo "make reproduce    golden values from 100-digit arithmetic, and the papers' figures in reproduction/;"
	@echo "                  SONGS=FILE for the Million Song table, which is downloaded otherwise"

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/dpkernel demo --out demo

test: $(VENV)/.installed
	$(TEST) $(BIN)/python -m pytest -n 2 --dist loadfile -q

test-slow: $(VENV)/.installed
	$(TEST) $(BIN)/python -m pytest -n 2 -q -m "slow or not slow"

coverage: $(VENV)/.installed
	$(TEST) $(BIN)/python -m pytest -n 2 --dist loadfile -q --cov --cov-report=term:skip-covered --cov-report=html

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
		-e . pytest pytest-xdist hypothesis mpmath pandas polars
	@touch $@

test-oldest: $(OLDEST)/.installed
	$(TEST) $(OLDEST)/bin/python -m pytest -n 2 --dist loadfile -q \
		tests/test_estimator_contract.py tests/test_ridge.py tests/test_ledger.py tests/test_features.py \
		tests/test_kernels.py tests/test_sparse.py tests/test_classifier.py tests/test_robust.py

torch: $(VENV)/.installed
	$(BIN)/python -c "import torch" 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'

test-torch: torch
	$(TEST) $(BIN)/python -m pytest -q tests/test_torch.py tests/test_torch_records.py
	$(TEST) $(BIN)/python -m pytest -q tests/test_tutorials.py -k gpu

front-door: $(VENV)/.installed
	$(TEST) $(BIN)/python -m pytest -n 2 -q -m "slow or not slow" tests/test_front_door.py

check: style types docs

style: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(TEST) $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/ridge.py
	$(BIN)/python benchmarks/sgd.py
	$(BIN)/python benchmarks/accounting.py

guard: $(VENV)/.installed
	$(TEST) $(BIN)/python benchmarks/guard.py

bench-accuracy: $(VENV)/.installed
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/folds.py
	$(BIN)/python benchmarks/regression.py
	for what in regression classes quantiles parts siblings small limit; do $(BIN)/python benchmarks/learned_kernel.py $$what; done
	$(BIN)/python benchmarks/targets.py
	$(BIN)/python benchmarks/ablation.py
	$(BIN)/python benchmarks/classification.py
	$(BIN)/python benchmarks/sgd.py --accuracy
	$(BIN)/python benchmarks/output_perturbation.py

rivals: $(VENV)/.installed
	$(TEST) $(BIN)/python benchmarks/rivals.py --append --jobs $(or $(JOBS),2)
	$(PYTHON) -m venv .venv-rivals
	.venv-rivals/bin/python -m pip install --quiet --disable-pip-version-check \
		interpret-core==0.7.8 diffprivlib==0.6.6 scikit-learn==1.6.1
	$(TEST) .venv-rivals/bin/python benchmarks/rivals.py --append --jobs $(or $(JOBS),2) \
		--methods "DP-EBM" "diffprivlib linear" "diffprivlib forest"
	.venv-rivals/bin/python benchmarks/rival_defects.py
	$(BIN)/python tools/rival_pictures.py
	$(BIN)/python tools/doc_tables.py

audit: $(VENV)/.installed
	$(TEST) $(BIN)/python -m dpkernel.proof.audit --out audit-report --quick

audit-long: $(VENV)/.installed
	$(TEST) $(BIN)/python -m dpkernel.proof.audit --out audit-report

audit-diffprivlib:
	$(PYTHON) -m venv .venv-diffprivlib
	.venv-diffprivlib/bin/python -m pip install --quiet --disable-pip-version-check diffprivlib==0.6.6 scikit-learn==1.6.1 -e .
	.venv-diffprivlib/bin/python benchmarks/diffprivlib_audit.py

trace: $(VENV)/.installed
	$(BIN)/python tools/trace_fit.py $(FIT)

mutants: $(VENV)/.installed
	$(BIN)/python tools/mutants.py $(MUTANTS)

reproduce: $(VENV)/.installed
	$(BIN)/python tools/make_golden.py --check
	$(TEST) $(BIN)/python -m dpkernel.proof.reproduce all --quick --out reproduction $(if $(SONGS),--data $(SONGS))

tables: $(VENV)/.installed
	$(BIN)/python tools/doc_tables.py

gallery: $(VENV)/.installed
	$(BIN)/python tools/gallery.py
	$(BIN)/python tools/rival_pictures.py

report-picture: demo
	$(BIN)/python tools/report_picture.py demo/report.html

lock: $(VENV)/.installed
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

release-check: $(VENV)/.installed
	rm -rf dist $(RELEASE)
	$(BIN)/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check 'twine==7.0.0'
	$(RELEASE)/bin/python -m twine check --strict dist/*
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(RELEASE)/bin/python tools/release.py dist
	cd $(RELEASE) && bin/dpkernel demo --out demo

clean:
	rm -rf $(VENV) $(OLDEST) $(RELEASE) demo audit-report bench-report coverage-report .coverage dist docs/_build .pytest_cache .mypy_cache .ruff_cache
