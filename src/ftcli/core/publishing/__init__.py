"""The publish layer: an output is complete or it is not there, on a disk and in an object store."""
