"""Planted bugs as rows of TOML files.

The modules define the schema of a row, build the ports with bugs, judge the reports, and compute the measures.
"""
