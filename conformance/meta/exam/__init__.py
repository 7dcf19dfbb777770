"""The exam: bugs as changes of other people's code, and what the checker and common rules find."""
