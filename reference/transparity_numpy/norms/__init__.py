"""Layer norms, RMS norms and batch norm."""
