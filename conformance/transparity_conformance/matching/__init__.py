"""Matching of values between two programs, in any order of axes and along the data flow."""
