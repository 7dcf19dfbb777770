"""Processes of ports: start a process, send requests over a socket, and stop it in time."""
