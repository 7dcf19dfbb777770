"""The same numbers sooner: packed weights, and one batch over several cores or devices."""
