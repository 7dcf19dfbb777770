"""The audit of a port: does it follow every field of its configuration, and read every tensor of its file?"""
