"""A port by its own loader: hub folders written for it, inputs in its framework, and answers in any form."""
