"""Bundles: the inputs and expected outputs of a check as files, for ports in any language and on any machine."""
