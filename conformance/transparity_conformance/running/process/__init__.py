"""Run ports in their own processes: start a process, send requests over a socket, and stop a process that is late."""
