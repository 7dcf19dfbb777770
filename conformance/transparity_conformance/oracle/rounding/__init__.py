"""Ways in which right programs compute the same: they err differently, and the budget has to cover each."""
