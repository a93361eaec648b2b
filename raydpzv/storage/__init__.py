"""Keep a copy of a run's folder on a file system that pyarrow opens, written by one process at a
time.

A run writes its folder to a disk of its machine. An uploader copies what changes to the storage and
then writes a manifest, which names all files of the folder at one moment. No object that a manifest
names is ever overwritten. So the storage holds a complete folder at every moment, and `raydpzv
resume URI` continues it on another machine.
"""
