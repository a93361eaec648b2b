"""The seed file: a trained model as seeds and scalars, in a file that other programs read
(docs/seed-file.md).
"""
