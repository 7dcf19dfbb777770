"""Find equal values in two programs, in any order of axes and along the data flow."""
