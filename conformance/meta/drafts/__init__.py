"""First drafts: ports with several bugs at once, as text that is changed in the independent port, nothing wired."""
