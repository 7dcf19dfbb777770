"""Bundles: a check's inputs and expected outputs as files, for ports in any language and on any machine."""
