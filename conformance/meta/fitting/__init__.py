"""Measures of fitting: modules of drawn configurations, and whether `transparity fit` finds them."""
