"""The measure of `adapt`: small ports in the manner of published ones, each with names and layouts of its own."""
