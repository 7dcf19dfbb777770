"""Images and frames of audio in place of tokens: the calls of a module that reads them, and what its front end does."""
