"""Decoders whose projections are fused by groups of heads."""
