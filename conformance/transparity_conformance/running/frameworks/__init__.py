"""Modules of frameworks with their own way to call a model: one file per framework, with a common protocol."""
