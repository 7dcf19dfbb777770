"""A feed-forward that is a mixture of experts."""
