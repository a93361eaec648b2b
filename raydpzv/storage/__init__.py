"""Folders on file systems that pyarrow opens: written by one process at a time, brought there as they grow.

A run writes its folder to a disk of its machine. From there a mirror brings what has changed to the storage, in
commits: each names all files of the folder at one moment, and what it names is never written over. So the storage holds
a whole folder at every moment, which `raydpzv resume` goes on with on a machine that has none of it.
"""
