"""Fitting: which configuration does a module have?"""
