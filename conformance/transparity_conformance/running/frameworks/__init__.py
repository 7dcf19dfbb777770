"""Support for modules of several frameworks; the files `equinox` and `keras` implement `modules.Kind`."""
