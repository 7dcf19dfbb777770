"""Bundles: inputs and expected outputs as files, for ports in any language."""
