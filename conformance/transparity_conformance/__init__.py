"""What the columns are held to: claims, evidence, budgets, and the agreement matrix."""
