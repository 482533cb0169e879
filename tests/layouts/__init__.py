"""Layouts of public checkpoints, every tensor's name, dtype and shape, and what is published of their totals.

Shapes come of the public config.json by what the public modeling code makes of it; no count stands in a layout.
"""
