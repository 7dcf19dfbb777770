"""Support for frameworks whose modules are called in their own way; each file implements `modules.Kind`."""
