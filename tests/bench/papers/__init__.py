"""The papers' figures, one module for each paper; tests/bench/figures runs them."""
