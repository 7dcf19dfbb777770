"""Inputs for the calls of a model to fit."""
