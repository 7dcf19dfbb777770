"""Bundles: a check as files, for ports in any language and on any machine."""
