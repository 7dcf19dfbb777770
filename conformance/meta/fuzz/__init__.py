"""Fuzz tests: Hypothesis draws unusual inputs, and each must end in a verdict or in one readable sentence."""
