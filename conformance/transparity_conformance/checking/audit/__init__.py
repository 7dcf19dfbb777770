"""Audits of a port: does it obey every field of its configuration, and does it read every tensor of its file?"""
