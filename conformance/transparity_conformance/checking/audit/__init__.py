"""Audits of a port: does it obey every field of its configuration, and read every tensor of its file?"""
