"""What mixes positions in a layer: attention, and a file for each variant; the table chooses."""
