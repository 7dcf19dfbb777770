"""The exam: bugs in other people's code, and whether the checker and common rules detect them."""
