"""The audit of a loader: does it follow every field of the configuration, and read every tensor of the file?"""
