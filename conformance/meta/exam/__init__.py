"""The exam: bugs as changes of other people's code, what the checker finds, and what the rules in use find."""
