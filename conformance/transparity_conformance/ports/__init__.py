"""A stranger's port: loading, recording, checking in process, as a command and from a bundle of files."""
